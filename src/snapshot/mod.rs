//! snapshot.
