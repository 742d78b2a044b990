//! Handles and their places, also from many threads.

use super::*;
use std::sync::atomic::AtomicUsize;

static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// An object of a test's own kind, which counts how many are gone.
struct Counted(usize);

impl Drop for Counted {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::SeqCst);
    }
}

impl Kind for Counted {
    const NAME: &'static str = "counted";
    const NUMBER: usize = 5;
    fn slab() -> &'static Slab<Self> {
        static SLAB: Slab<Counted> = Slab::new();
        &SLAB
    }
    fn note(&self, label: &Label) {
        label.index.store(self.0 as u64, Ordering::Release);
    }
}

/// Another kind, for tests that run at the same time.
struct Plain(usize);

impl Kind for Plain {
    const NAME: &'static str = "error";
    const NUMBER: usize = 6;
    fn slab() -> &'static Slab<Self> {
        static SLAB: Slab<Plain> = Slab::new();
        &SLAB
    }
    fn note(&self, label: &Label) {
        label.index.store(self.0 as u64, Ordering::Release);
    }
}

#[test]
fn an_object_lives_until_its_last_reference_and_pin() {
    let first = put(Arc::new(Counted(7)));
    assert!(retain::<Counted>(first));
    let pin = find::<Counted>(first).unwrap();
    assert_eq!(
        noted::<Counted, _>(first, |l| l.index.load(Ordering::Acquire)),
        Some(7)
    );
    assert!(release::<Counted>(first));
    assert!(release::<Counted>(first));
    assert_eq!((DROPPED.load(Ordering::SeqCst), pin.0), (0, 7));
    // The handle is invalid already, though a call still uses the object.
    assert!(!release::<Counted>(first) && !retain::<Counted>(first));
    assert!(noted::<Counted, _>(first, |_| ()).is_none());
    drop(pin);
    assert_eq!(DROPPED.load(Ordering::SeqCst), 1);
    // The place is used again under another number.
    let second = put(Arc::new(Counted(8)));
    assert_eq!(
        second.of_kind::<Counted>().unwrap().0,
        first.of_kind::<Counted>().unwrap().0
    );
    assert!(find::<Counted>(first).is_none() && !release::<Counted>(first));
    let taken = take::<Counted>(second).unwrap();
    assert!(take::<Counted>(second).is_err());
    assert_eq!((taken.0, DROPPED.load(Ordering::SeqCst)), (8, 1));
    drop(taken);
    assert_eq!(
        (DROPPED.load(Ordering::SeqCst), Counted::slab().live()),
        (2, 0)
    );
}

#[test]
fn what_is_no_handle_of_the_kind_is_refused_and_told() {
    let failure = |number: usize| {
        let handle: *const () = Number(number).handle();
        let failure = get::<Plain, ()>(handle).err().unwrap();
        (failure.code, failure.message)
    };
    assert_eq!(failure(0).0, Code::NullPointer);
    let good = put(Arc::new(Plain(1))).0;
    let none_like_it = [
        1,
        8,
        usize::MAX,
        good - 1,
        good + 1,
        good & !MARK | 1,
        good + (1 << GENERATION_SHIFT),
        good | 1 << (GENERATION_SHIFT + GENERATION_BITS),
        good | ((1 << PLACE_BITS) - 1) << 1,
        &raw const good as usize,
    ];
    for number in none_like_it {
        assert_eq!(failure(number).0, Code::InvalidHandle, "{number:#x}");
    }
    let of_a_queue = good & !KINDS | Queue::NUMBER << KIND_SHIFT;
    let (code, message) = failure(of_a_queue);
    assert_eq!(code, Code::InvalidHandle);
    assert!(message.contains("it is of the type queue"), "{message}");
    take::<Plain>(Number(good)).unwrap();
    assert!(failure(good).1.contains("it was freed"));
}

#[test]
fn a_place_is_given_up_after_its_last_generation() {
    struct Spent;
    static SLAB: Slab<Spent> = Slab::new();
    impl Kind for Spent {
        const NAME: &'static str = "spent";
        const NUMBER: usize = 7;
        fn slab() -> &'static Slab<Self> {
            &SLAB
        }
    }
    let first = put(Arc::new(Spent));
    take::<Spent>(first).unwrap();
    // As if it had been used so often.
    let (place, _) = first.of_kind::<Spent>().unwrap();
    let last = (GENERATIONS - 1) << STATE_GENERATION_SHIFT;
    SLAB.slot(place)
        .unwrap()
        .state
        .store(last, Ordering::SeqCst);
    let spent = put(Arc::new(Spent));
    assert_eq!(spent.of_kind::<Spent>(), Some((place, GENERATIONS - 1)));
    take::<Spent>(spent).unwrap();
    assert!(find::<Spent>(spent).is_none());
    let next = put(Arc::new(Spent));
    assert_eq!(next.of_kind::<Spent>(), Some((place + 1, 0)));
    assert_eq!(SLAB.live(), 1);
    take::<Spent>(next).unwrap();
    assert_eq!(SLAB.live(), 0);
}

#[test]
fn places_follow_each_other_without_a_gap() {
    let mut expected = (0, 0);
    for place in 0..10_000 {
        assert_eq!(position(place), expected, "{place}");
        expected.1 += 1;
        if expected.1 == FIRST << expected.0 {
            expected = (expected.0 + 1, 0);
        }
    }
    assert_eq!(
        position(MOST - 1),
        (CHUNKS - 1, (FIRST << (CHUNKS - 1)) - 1)
    );
}

#[test]
fn counts_do_not_overflow() {
    let number = put(Arc::new(Plain(2)));
    let slot = Target::<Plain>::of(number).unwrap().slot;
    slot.state
        .fetch_add(PINS | (REFERENCES - REFERENCE), Ordering::SeqCst);
    assert!(!retain::<Plain>(number));
    let full = get::<Plain, ()>(number.handle()).err().unwrap();
    assert_eq!(full.code, Code::System);
    slot.state
        .fetch_sub(PINS | (REFERENCES - REFERENCE), Ordering::SeqCst);
    take::<Plain>(number).unwrap();
}

#[test]
fn fc_098_threads_that_free_and_use_the_same_handles() {
    const SHARED: usize = 4;
    let rounds = if cfg!(miri) { 40 } else { 20_000 };
    let shared: [AtomicUsize; SHARED] = Default::default();
    let use_them = |seed: usize| {
        let mut random = seed as u32;
        for round in 0..rounds {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let which = (random >> 16) as usize % SHARED;
            // Some are taken back as engines are, the others retained and released as snapshots are.
            let (place, counted) = (&shared[which], which >= SHARED / 2);
            let number = Number(place.load(Ordering::SeqCst));
            match (random >> 20) % 5 {
                0 => {
                    let value = seed * rounds + round;
                    let new = put(Arc::new(Plain(value)));
                    let old = place.swap(new.0, Ordering::SeqCst);
                    release::<Plain>(Number(old));
                }
                1 if counted => {
                    if let Some(more) = Reference::<Plain>::again(number) {
                        let pin = find::<Plain>(more.number()).unwrap();
                        let seen = noted::<Plain, _>(number, |l| l.index.load(Ordering::Acquire));
                        assert_eq!(seen, Some(pin.0 as u64));
                    }
                }
                2 if !counted => {
                    let _ = take::<Plain>(number).map(|taken| assert!(taken.0 < 8 * rounds));
                }
                3 => {
                    let _ = noted::<Plain, _>(number, |l| l.index.load(Ordering::Acquire));
                }
                _ => {
                    let _ = find::<Plain>(number).map(|pin| assert!(pin.0 < 8 * rounds));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            scope.spawn(move || use_them(seed));
        }
    });
}
