//! Every access to foreign memory: text, arrays, out pointers, structs that carry their size.
//!
//! NULL is checked here, lengths are checked here, and what a pointer must be otherwise stands at the top of the header.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::guard::{Code, Failure, Outcome, infallible};
use crate::handles::{self, Number, Reference};

/// A text: UTF-8, with a length and without a terminating zero. With a length of 0 the pointer doesn't matter and may be
/// NULL. A text that is passed to a function is read during the call only. One that a function gives belongs to the
/// object that it was asked of.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Str {
    /// The first byte.
    pub data: *const c_char,
    /// The number of bytes.
    pub len: usize,
}

impl Str {
    pub(crate) const EMPTY: Self = Self {
        data: c"".as_ptr(),
        len: 0,
    };

    /// A text for the host; valid as long as `text` is where it is.
    pub(crate) fn of(text: &str) -> Self {
        Self {
            data: text.as_ptr().cast(),
            len: text.len(),
        }
    }
}

impl Default for Str {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Bytes with a length.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Bytes {
    /// The first byte.
    pub data: *const u8,
    /// The number of bytes.
    pub len: usize,
}

/// Reads a text of the host.
///
/// # Safety
/// If the length isn't 0, the pointer is NULL or points to that many bytes, which don't change during the call.
pub(crate) unsafe fn text<'a>(text: Str, what: &str) -> Outcome<&'a str> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { array(text.data.cast::<u8>(), text.len, what) }?;
    std::str::from_utf8(bytes).map_err(|error| {
        Failure::new(
            Code::InvalidUtf8,
            format!(
                "{what}: byte {} is not UTF-8; texts are UTF-8",
                error.valid_up_to()
            ),
        )
    })
}

/// Reads an array of the host.
///
/// # Safety
/// If the length isn't 0, the pointer is NULL or points to that many values, which don't change during the call.
pub(crate) unsafe fn array<'a, T>(data: *const T, len: usize, what: &str) -> Outcome<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(null(what));
    }
    check_extent(data, len, what)?;
    // SAFETY: not NULL, aligned, no longer than an object can be; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// A place for several results.
///
/// # Safety
/// As [`array`], but the host lends the values for writing; they may be uninitialised.
pub(crate) unsafe fn places<'a, T>(
    data: *mut T,
    len: usize,
    what: &str,
) -> Outcome<&'a mut [MaybeUninit<T>]> {
    if data.is_null() {
        return Err(null(what));
    }
    check_extent(data, len, what)?;
    // SAFETY: not NULL, aligned, no longer than an object can be; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

fn check_extent<T>(data: *const T, len: usize, what: &str) -> Outcome<()> {
    if !data.is_aligned() {
        return Err(Failure::argument(format!(
            "{what}: the pointer isn't aligned"
        )));
    }
    let bytes = len.checked_mul(size_of::<T>());
    if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Failure::argument(format!(
            "{what}: {len} is no possible length"
        )));
    }
    Ok(())
}

pub(crate) fn null(what: &str) -> Failure {
    Failure::new(Code::NullPointer, format!("{what} is NULL"))
}

/// A place of the host for one result.
pub(crate) struct Out<'a, T>(&'a mut MaybeUninit<T>);

impl<T> Out<'_, T> {
    pub fn set(self, value: T) {
        self.0.write(value);
    }
}

/// Values that a result place has before there is a result.
pub(crate) trait Nothing {
    const NOTHING: Self;
}

impl<T> Nothing for *mut T {
    const NOTHING: Self = std::ptr::null_mut();
}

impl<T> Nothing for *const T {
    const NOTHING: Self = std::ptr::null();
}

impl Nothing for u64 {
    const NOTHING: Self = 0;
}

impl Nothing for usize {
    const NOTHING: Self = 0;
}

impl Nothing for i32 {
    const NOTHING: Self = 0;
}

impl Nothing for Str {
    const NOTHING: Self = Self::EMPTY;
}

/// A place for a result, cleared; `None` if the host doesn't want it.
///
/// # Safety
/// The pointer is NULL or points to memory for a `T` that the host lends for writing.
pub(crate) unsafe fn out<'a, T: Nothing>(place: *mut T) -> Option<Out<'a, T>> {
    if place.is_null() || !place.is_aligned() {
        return None;
    }
    // SAFETY: not NULL, aligned, and lent for writing.
    let place = unsafe { &mut *place.cast::<MaybeUninit<T>>() };
    place.write(T::NOTHING);
    Some(Out(place))
}

/// A place for a result that there must be.
///
/// # Safety
/// As [`out`].
pub(crate) unsafe fn needed_out<'a, T: Nothing>(place: *mut T, what: &str) -> Outcome<Out<'a, T>> {
    // SAFETY: as the caller promises.
    unsafe { out(place) }.ok_or_else(|| null(what))
}

/// A struct of the host that doesn't carry its size.
///
/// # Safety
/// The pointer is NULL or points to a `T` that doesn't change during the call.
pub(crate) unsafe fn fixed<'a, T>(given: *const T, what: &str) -> Outcome<&'a T> {
    // SAFETY: as the caller promises, for an array of one.
    unsafe { array(given, 1, what) }?
        .first()
        .ok_or_else(|| null(what))
}

/// A struct whose first field is its size in bytes as the host was compiled with. It may have grown since: what an older
/// host doesn't know is as in `base`, and what a newer host knows must be zero.
///
/// # Safety
/// `T` is `repr(C)` and valid for every pattern of bytes, its first field is the size as a `usize`, and it has had at least
/// `least` bytes since its first version. The pointer is NULL or points to as many bytes as that field says.
pub(crate) unsafe fn sized<T: Copy>(
    given: *const T,
    base: T,
    least: usize,
    what: &str,
) -> Outcome<T> {
    if given.is_null() {
        return Err(null(what));
    }
    if !given.is_aligned() {
        return Err(Failure::argument(format!(
            "{what}: the pointer isn't aligned"
        )));
    }
    // SAFETY: not NULL, aligned; a host that doesn't even lend the first field breaks the header's rules.
    let size = unsafe { given.cast::<usize>().read() };
    let known = size_of::<T>();
    // No struct of this library will ever be this big: the field was never set.
    const MOST: usize = 4096;
    if size < least || size > MOST {
        return Err(Failure::argument(format!(
            "{what}: its size field is {size}, but must be {least} to {known}: set it to sizeof the struct"
        )));
    }
    if size > known {
        // SAFETY: the host says that it lends `size` bytes.
        let rest =
            unsafe { std::slice::from_raw_parts(given.cast::<u8>().add(known), size - known) };
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Failure::argument(format!(
                "{what}: it sets a field that this version of the library doesn't know; it knows {known} of {size} bytes"
            )));
        }
    }
    let mut read = base;
    // SAFETY: both hold that many bytes, they don't overlap, and any bytes are a valid `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(
            given.cast::<u8>(),
            (&raw mut read).cast::<u8>(),
            size.min(known),
        );
    }
    Ok(read)
}

/// A text that the library made and the host frees, with `proxycfg_text_free`.
#[derive(Debug)]
pub struct TextHandle(());

/// What a text consists of.
#[derive(Debug)]
pub(crate) struct TextObject(String);

impl TextObject {
    /// Makes a text for the host.
    pub fn give(text: String) -> *mut TextHandle {
        Reference::new(Arc::new(Self(text))).into_handle()
    }
}

/// The content of a text; valid until the text is freed. NULL, or a text that was freed, gives an empty one.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_text_content(text: *const TextHandle) -> Str {
    infallible("proxycfg_text_content", || {
        let text = handles::find::<TextObject>(Number::of(text));
        text.map_or(Str::EMPTY, |text| Str::of(&text.0))
    })
}

/// Frees a text. NULL is fine; freeing one twice does nothing.
// SAFETY: see `proxycfg_abi_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn proxycfg_text_free(text: *mut TextHandle) {
    infallible("proxycfg_text_free", || {
        handles::release::<TextObject>(Number::of(text));
    });
}
