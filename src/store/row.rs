//! A stored record with its row indexes.

use serde::{Serialize, Serializer};
use triomphe::Arc;

/// A stored record and the store indexes of its making and of its last change.
///
/// Cloning costs one reference count. As JSON it is the record's own form plus `CreateIndex` and `ModifyIndex`.
#[derive(Debug, PartialEq)]
pub struct Row<T> {
    /// The record.
    pub value: Arc<T>,
    /// Store index of the commit that made the row.
    pub create_index: u64,
    /// Store index of the last commit that changed the row.
    pub modify_index: u64,
}

impl<T> Clone for Row<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            create_index: self.create_index,
            modify_index: self.modify_index,
        }
    }
}

impl<T> Row<T> {
    /// The row that a changed value becomes: keeps the index of its making if there was one before.
    pub(super) fn next(value: T, before: Option<&Self>, index: u64) -> Self {
        Self {
            value: Arc::new(value),
            create_index: before.map_or(index, |row| row.create_index),
            modify_index: index,
        }
    }
}

impl<T> std::ops::Deref for Row<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Serialize> Serialize for Row<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a, T> {
            #[serde(flatten)]
            value: &'a T,
            #[serde(rename = "CreateIndex")]
            create_index: u64,
            #[serde(rename = "ModifyIndex")]
            modify_index: u64,
        }
        Flat {
            value: &*self.value,
            create_index: self.create_index,
            modify_index: self.modify_index,
        }
        .serialize(serializer)
    }
}
