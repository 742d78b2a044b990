//! What belongs to the host: its functions, its data, and the destructor that runs exactly once, after the last call.

use std::ffi::c_void;

/// Frees the user data of a host. Called exactly once, after the last call of the function that the data belongs to; on
/// any thread, and never while a lock of the library is held. It must not throw or longjmp.
pub type Destructor = Option<unsafe extern "C" fn(user_data: *mut c_void)>;

/// User data of a host with its destructor.
#[derive(Debug)]
pub(crate) struct UserData {
    pointer: *mut c_void,
    destructor: Destructor,
}

// SAFETY: the header says that user data travels between threads.
unsafe impl Send for UserData {}
// SAFETY: the library only passes the pointer on; whether calls come one at a time is said where the function is given.
unsafe impl Sync for UserData {}

impl UserData {
    pub fn new(pointer: *mut c_void, destructor: Destructor) -> Self {
        Self {
            pointer,
            destructor,
        }
    }

    pub fn pointer(&self) -> *mut c_void {
        self.pointer
    }

    /// Gives the data back to the host, because the call that it came with failed: the destructor won't run.
    pub fn give_back(mut self) {
        self.destructor = None;
    }
}

impl Drop for UserData {
    fn drop(&mut self) {
        if let Some(destructor) = self.destructor.take() {
            // SAFETY: the host gave the function for this pointer, and it is called here only, once.
            unsafe { destructor(self.pointer) };
        }
    }
}
