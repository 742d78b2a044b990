mod catalog;
mod local_state;
mod local_sync;
mod sessions;
