//! The catalog and the configuration in memory: nodes, service instances, health checks and config entries.
//!
//! Each commit makes a new [`StoreSnapshot`], which shares all unchanged parts with the one before, and gives it the next
//! **store index**. A [`Reader`] answers queries from one snapshot and records the [`Key`]s that it read. A commit knows
//! the keys that it changed; a query's answer can differ between two snapshots only if one of its keys changed. So whoever
//! keeps the recorded reads in a [`Readers`] index learns from each commit which answers to compute anew: views by a
//! [`ChangeFeed`], blocking reads by [`Store::wait_until_changed`]. Nobody keeps a table of which write affects which query.
//!
//! The cost of a commit is proportional to what it changes, whatever the size of the catalog. Only a change of a node's
//! record or of a node-level check touches all instances on the node, since all of them show it (store.md 2.2).
//!
//! ```
//! use proxycfg::store::{AllowAll, MemoryBackend, Op, Register, Store, Transaction};
//! # fn main() -> Result<(), proxycfg::store::StoreError> {
//! let store = Store::new(Box::new(MemoryBackend), std::sync::Arc::new(AllowAll))?;
//! let mut register = Register::default();
//! register.node.node = "n1".into();
//! register.node.address = "10.0.0.1".into();
//! let applied = store.apply(Transaction::of(Op::Register(Box::new(register))))?;
//! assert_eq!(applied.index, 1);
//!
//! let snapshot = store.snapshot();
//! let reader = snapshot.reader();
//! assert!(reader.instances("web").is_empty());
//! let reads = reader.finish();
//! let changed = store.changes();
//! let wait = store.wait_until_changed(reads, snapshot.index(), Box::new(|| println!("web came")));
//! # drop((wait, changed));
//! # Ok(())
//! # }
//! ```

mod backend;
mod catalog;
mod draft;
#[cfg(feature = "durable")]
pub mod durable;
mod feed;
mod from_model;
mod intentions;
mod key;
mod readers;
mod row;
mod snapshot;
mod tables;
mod transaction;
mod wait;

#[cfg(test)]
mod tests;

pub use backend::{
    AnyRow, Backend, BackendError, CommitRecord, Image, MemoryBackend, OpaqueState, RowKey,
};
pub use catalog::{CommitObserver, Store};
pub use feed::{ChangeFeed, Changes};
pub use key::{CheckKey, InstanceKey, Key, NameSet, PeeredName};
pub use readers::Readers;
pub use row::Row;
pub use snapshot::{InstanceRow, Reader, Reads, StoreSnapshot};
pub use transaction::{
    AllowAll, Applied, Op, Refusal, Register, StoreError, Transaction, WriteCheck,
};
pub use wait::{BlockingQuery, Found, WaitHandle, Waker};
