//! Handles: what the host holds in place of engines, watches, queues, sources, snapshots, errors and texts.
//!
//! A handle looks like a pointer but is a number: a mark that no address has, the kind of thing, a place in that kind's
//! slab, and the generation of the place. A place is used again with the next generation, and given up after the last, so
//! no number is ever used again. The library follows nothing that a host says is a handle: it looks into the place, whose
//! memory is never given back, and compares. So a handle that was freed, or of another kind, or no handle at all, is an
//! error instead of a crash (FC-094).
//!
//! All that there is to know of a place is one word: generation, whether it is live, how many references the host holds,
//! and how many calls use it at this moment (pins). A call compares and pins in one atomic operation and unpins in a second
//! one, without a lock. When both counts are 0 the object is dropped and the place is free, so an object that one thread
//! frees while another uses it lives until that call is over (FC-098).
//!
//! Errors, texts and most objects have one reference, which the handle itself is; snapshots are retained and released.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::count::HandleKind;
use crate::engine::Engine;
use crate::guard::{Code, ErrorObject, Failure, Outcome};
use crate::memory::{TextObject, null};
use crate::queue::Queue;
use crate::snapshot::SnapshotObject;
use crate::source::Source;
use crate::watch::Watch;

/// A type that handles stand for.
pub(crate) trait Kind: Send + Sync + Sized + 'static {
    /// What an error calls it.
    const NAME: &'static str;
    /// The kind in a handle, from 1.
    const NUMBER: usize;
    fn slab() -> &'static Slab<Self>;
    /// Notes what is to be readable without a pin.
    fn note(&self, _label: &Label) {}
}

macro_rules! kinds {
    ($($object:ident is $kind:ident $name:literal $(, $note:ident)?;)*) => {
        $(impl Kind for $object {
            const NAME: &'static str = $name;
            const NUMBER: usize = HandleKind::$kind as usize;
            fn slab() -> &'static Slab<Self> {
                static SLAB: Slab<$object> = Slab::new();
                &SLAB
            }
            $(fn note(&self, label: &Label) {
                self.$note(label);
            })?
        })*

        /// The name of a kind.
        fn name_of(number: usize) -> Option<&'static str> {
            $(if number == <$object as Kind>::NUMBER {
                return Some($name);
            })*
            None
        }

        /// How many handles of a kind are live; `None` if there is no such kind.
        pub(crate) fn live(number: usize) -> Option<usize> {
            $(if number == <$object as Kind>::NUMBER {
                return Some(<$object as Kind>::slab().live());
            })*
            None
        }
    };
}

kinds! {
    Engine is Engine "engine";
    Watch is Watch "watch";
    Queue is Queue "queue";
    Source is Source "source";
    SnapshotObject is Snapshot "snapshot", note;
    ErrorObject is Error "error";
    TextObject is Text "text";
}

// A handle, from its lowest bit: 1, place, kind, generation, zeros, 1. It is odd, so no address of anything bigger than a
// byte, and lies where no program has memory, so following it faults instead of doing harm.
const PLACE_BITS: u32 = if usize::BITS >= 64 { 28 } else { 18 };
const KIND_BITS: u32 = 3;
const GENERATION_BITS: u32 = if usize::BITS >= 64 { 24 } else { 8 };
const KIND_SHIFT: u32 = 1 + PLACE_BITS;
const GENERATION_SHIFT: u32 = KIND_SHIFT + KIND_BITS;
const MARK: usize = 1 | 1 << (usize::BITS - 1);
const KINDS: usize = ((1 << KIND_BITS) - 1) << KIND_SHIFT;
/// What is the same in all handles of a kind.
const FIXED: usize = MARK | KINDS | (usize::MAX << (GENERATION_SHIFT + GENERATION_BITS));
const GENERATIONS: u64 = 1 << GENERATION_BITS;

/// A handle's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Number(usize);

impl Number {
    fn new<T: Kind>(place: usize, generation: u64) -> Self {
        // Generations have fewer bits than this takes.
        let generation = (generation as usize) << GENERATION_SHIFT;
        Self(MARK | place << 1 | T::NUMBER << KIND_SHIFT | generation)
    }

    /// The handle that the host gets.
    pub fn handle<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0)
    }

    pub fn of<T>(handle: *const T) -> Self {
        Self(handle.addr())
    }

    /// Its place and generation, if it is of the kind.
    fn of_kind<T: Kind>(self) -> Option<(usize, u64)> {
        let fits = self.0 & FIXED == MARK | T::NUMBER << KIND_SHIFT;
        let generation = (self.0 >> GENERATION_SHIFT) as u64 & (GENERATIONS - 1);
        fits.then_some((self.place(), generation))
    }

    fn place(self) -> usize {
        (self.0 >> 1) & ((1 << PLACE_BITS) - 1)
    }
}

// The state of a place, from its lowest bit: references, pins, live, generation.
const REFERENCE: u64 = 1;
const REFERENCES: u64 = (1 << 24) - 1;
const PIN: u64 = 1 << 24;
const PINS: u64 = ((1 << 15) - 1) << 24;
const LIVE: u64 = 1 << 39;
const STATE_GENERATION_SHIFT: u32 = 40;
/// What a handle is compared with.
const IDENTITY: u64 = !(LIVE - 1);

/// What of an object can be read without a pin. Whoever reads it looks at the state before and after.
#[derive(Default)]
pub(crate) struct Label {
    pub index: AtomicU64,
    pub kind: AtomicI32,
    pub text: AtomicPtr<u8>,
    pub len: AtomicUsize,
}

/// A place. On a line of its own, so that threads that use neighbours don't hold each other up. All bytes zero is a free
/// one of the first generation.
#[repr(align(64))]
struct Slot<T> {
    state: AtomicU64,
    label: Label,
    /// There is one while it is live or pinned.
    object: UnsafeCell<MaybeUninit<Arc<T>>>,
}

// SAFETY: the object is written and taken by one thread, while the state says that nobody else looks.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// The first chunk has this many places, each further one twice as many.
const FIRST: usize = 64;
const CHUNKS: usize = (PLACE_BITS - FIRST.ilog2()) as usize;
/// The places of all chunks.
const MOST: usize = (1 << PLACE_BITS) - FIRST;

/// All places of a kind. They are never given back.
pub(crate) struct Slab<T> {
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    spare: Mutex<Spare>,
}

struct Spare {
    /// Places that were used and are free.
    free: Vec<usize>,
    /// The first place that never was used.
    next: usize,
    /// How many have had their last generation.
    spent: usize,
}

impl<T: Kind> Slab<T> {
    const fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            spare: Mutex::new(Spare {
                free: Vec::new(),
                next: 0,
                spent: 0,
            }),
        }
    }

    fn slot(&self, place: usize) -> Option<&Slot<T>> {
        let (chunk, at) = position(place);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// A free place, for the caller alone.
    fn reserve(&self) -> (usize, &Slot<T>) {
        let mut spare = self.spare.lock();
        let place = spare.free.pop().unwrap_or_else(|| {
            let place = spare.next;
            spare.next += 1;
            place
        });
        drop(spare);
        let (chunk, at) = position(place);
        let slots = self
            .chunks
            .get(chunk)
            .filter(|_| place < MOST)
            .map(|chunk_of| {
                chunk_of.get_or_init(|| {
                    let slots = Box::<[Slot<T>]>::new_zeroed_slice(FIRST << chunk);
                    // SAFETY: numbers, a pointer and what may be uninitialised may all be zero.
                    unsafe { slots.assume_init() }
                })
            });
        match slots.and_then(|slots| slots.get(at)) {
            Some(slot) => (place, slot),
            // Some hundred million live handles: there is no memory for more.
            None => std::alloc::handle_alloc_error(std::alloc::Layout::new::<Slot<T>>()),
        }
    }

    fn live(&self) -> usize {
        let spare = self.spare.lock();
        spare.next - spare.free.len() - spare.spent
    }

    /// Frees a place that nobody refers to any more.
    fn end(&self, place: usize, slot: &Slot<T>) {
        // SAFETY: the last reference and the last pin are gone, so no other thread looks at the object; it is there, since
        // the place was live.
        let object = unsafe { (*slot.object.get()).assume_init_read() };
        let next = (slot.state.load(Ordering::Relaxed) >> STATE_GENERATION_SHIFT) + 1;
        let spent = next == GENERATIONS;
        if !spent {
            slot.state
                .store(next << STATE_GENERATION_SHIFT, Ordering::Release);
        }
        let mut spare = self.spare.lock();
        if spent {
            spare.spent += 1;
        } else {
            spare.free.push(place);
        }
        drop(spare);
        // Last, and with no lock held: it may call the host.
        drop(object);
    }
}

fn position(place: usize) -> (usize, usize) {
    let shifted = place + FIRST;
    let chunk = shifted.ilog2() - FIRST.ilog2();
    (chunk as usize, shifted - (FIRST << chunk))
}

/// Where a handle points to.
struct Target<T: Kind> {
    slot: &'static Slot<T>,
    number: Number,
    identity: u64,
}

impl<T: Kind> Target<T> {
    fn of(number: Number) -> Option<Self> {
        let (place, generation) = number.of_kind::<T>()?;
        let slot = T::slab().slot(place)?;
        let identity = generation << STATE_GENERATION_SHIFT | LIVE;
        Some(Self {
            slot,
            number,
            identity,
        })
    }

    /// Changes the state while the handle is live. `change` says what the state becomes, `None` if it can't. Returns the new
    /// state.
    fn update(&self, change: impl Fn(u64) -> Option<u64>) -> Result<u64, Stop> {
        let mut state = self.slot.state.load(Ordering::Acquire);
        loop {
            if state & IDENTITY != self.identity {
                return Err(Stop::Stale);
            }
            let changed = change(state).ok_or(Stop::Full)?;
            let exchanged = self.slot.state.compare_exchange_weak(
                state,
                changed,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match exchanged {
                Ok(_) => return Ok(changed),
                Err(now) => state = now,
            }
        }
    }

    fn pinned(self) -> Pin<T> {
        Pin {
            slot: self.slot,
            number: self.number,
        }
    }
}

/// Why a handle can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Stale,
    /// More references or calls than can be counted.
    Full,
}

/// An object in use by a call.
pub(crate) struct Pin<T: Kind> {
    slot: &'static Slot<T>,
    number: Number,
}

impl<T: Kind> Pin<T> {
    pub fn number(&self) -> Number {
        self.number
    }

    /// What can be read of it without a pin.
    pub fn label(&self) -> &Label {
        &self.slot.label
    }
}

impl<T: Kind> Deref for Pin<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        // SAFETY: it is there while there are pins, and nobody writes it.
        unsafe { (*self.slot.object.get()).assume_init_ref() }
    }
}

impl<T: Kind> Drop for Pin<T> {
    fn drop(&mut self) {
        let before = self.slot.state.fetch_sub(PIN, Ordering::AcqRel);
        if before & (LIVE | PINS | REFERENCES) == PIN {
            T::slab().end(self.number.place(), self.slot);
        }
    }
}

/// A reference of the host's, on its way there or lent for a call.
pub(crate) struct Reference<T: Kind>(Number, PhantomData<fn() -> T>);

impl<T: Kind> Reference<T> {
    /// The first reference to an object.
    pub fn new(object: Arc<T>) -> Self {
        Self(put(object), PhantomData)
    }

    /// One more to a live object; `None` if it has been released, or there are too many.
    pub fn again(number: Number) -> Option<Self> {
        retain::<T>(number).then_some(Self(number, PhantomData))
    }

    pub fn number(&self) -> Number {
        self.0
    }

    /// Gives it to the host.
    pub fn into_handle<H>(self) -> *mut H {
        let number = self.0;
        std::mem::forget(self);
        number.handle()
    }
}

impl<T: Kind> Drop for Reference<T> {
    fn drop(&mut self) {
        release::<T>(self.0);
    }
}

/// Gives an object a handle, which is its one reference.
pub(crate) fn put<T: Kind>(object: Arc<T>) -> Number {
    let (place, slot) = T::slab().reserve();
    let generation = slot.state.load(Ordering::Relaxed) >> STATE_GENERATION_SHIFT;
    slot.label
        .text
        .store(std::ptr::null_mut(), Ordering::Release);
    object.note(&slot.label);
    // SAFETY: the place is free, and this thread's alone.
    unsafe { (*slot.object.get()).write(object) };
    let state = generation << STATE_GENERATION_SHIFT | LIVE | REFERENCE;
    slot.state.store(state, Ordering::Release);
    Number::new::<T>(place, generation)
}

/// The object of a handle.
pub(crate) fn get<T: Kind, H>(handle: *const H) -> Outcome<Pin<T>> {
    let stop = match pin(Number::of(handle)) {
        Ok(pin) => return Ok(pin),
        Err(stop) => stop,
    };
    Err(refused::<T, H>(handle, stop))
}

/// The object of a handle, if it is live.
pub(crate) fn find<T: Kind>(number: Number) -> Option<Pin<T>> {
    pin(number).ok()
}

fn pin<T: Kind>(number: Number) -> Result<Pin<T>, Stop> {
    let target = Target::<T>::of(number).ok_or(Stop::Stale)?;
    target.update(|state| (state & PINS != PINS).then(|| state + PIN))?;
    Ok(target.pinned())
}

/// Takes the handle back: from here on it is invalid. The object lives until the calls that use it are over.
pub(crate) fn take<T: Kind>(number: Number) -> Outcome<Pin<T>> {
    let ended = |state: u64| (state & PINS != PINS).then(|| (state & !(LIVE | REFERENCES)) + PIN);
    let taken = Target::<T>::of(number)
        .ok_or(Stop::Stale)
        .and_then(|target| target.update(ended).map(|_| target));
    match taken {
        Ok(target) => Ok(target.pinned()),
        Err(stop) => Err(refused::<T, T>(number.handle(), stop)),
    }
}

/// Adds a reference. `false` if the handle is stale or there are too many.
pub(crate) fn retain<T: Kind>(number: Number) -> bool {
    let more = |state: u64| (state & REFERENCES != REFERENCES).then(|| state + REFERENCE);
    Target::<T>::of(number).is_some_and(|target| target.update(more).is_ok())
}

/// Takes a reference back; with the last one the handle is invalid. `false` if it was so before.
pub(crate) fn release<T: Kind>(number: Number) -> bool {
    let Some(target) = Target::<T>::of(number) else {
        return false;
    };
    let less = |state: u64| {
        // A live handle has at least one.
        let less = state - REFERENCE;
        Some(if less & REFERENCES == 0 {
            less & !LIVE
        } else {
            less
        })
    };
    let Ok(now) = target.update(less) else {
        return false;
    };
    if now & (REFERENCES | PINS) == 0 {
        T::slab().end(number.place(), target.slot);
    }
    true
}

/// Reads what was noted of an object, without a pin. `None` if the handle isn't live.
pub(crate) fn noted<T: Kind, R>(number: Number, read: impl FnOnce(&Label) -> R) -> Option<R> {
    let target = Target::<T>::of(number)?;
    let live = || target.slot.state.load(Ordering::Acquire) & IDENTITY == target.identity;
    if !live() {
        return None;
    }
    let result = read(&target.slot.label);
    live().then_some(result)
}

#[cold]
fn refused<T: Kind, H>(handle: *const H, stop: Stop) -> Failure {
    let number = Number::of(handle).0;
    if number == 0 {
        return null(T::NAME);
    }
    if stop == Stop::Full {
        return Failure::new(
            Code::System,
            format!(
                "too many calls at once use one handle of the type {}",
                T::NAME
            ),
        );
    }
    let kind = name_of((number & KINDS) >> KIND_SHIFT).filter(|_| number & MARK == MARK);
    let why = match kind {
        Some(kind) if kind != T::NAME => format!("it is of the type {kind}"),
        _ => "it was freed, or never was one".to_owned(),
    };
    Failure::new(
        Code::InvalidHandle,
        format!("not a live handle of the type {}: {why}", T::NAME),
    )
}

#[cfg(test)]
mod tests;
