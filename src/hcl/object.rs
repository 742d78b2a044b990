//! Puts the members of an object together, keeps keys unique, and folds repeated blocks into lists.

use std::collections::HashMap;

use super::{Data, Member, Pos, Value};

/// Below this many members looking at all of them is quicker than hashing.
const INDEXED_FROM: usize = 16;

/// An object under construction.
#[derive(Default)]
pub(super) struct ObjectBuilder {
    members: Vec<Member>,
    /// Per member, whether its value is an object or a list of nothing but objects, which more blocks may join.
    blocks: Vec<bool>,
    /// Where a key is; used for lookups only, once the object is large.
    index: HashMap<String, usize>,
}

impl ObjectBuilder {
    /// Adds a member whose key must be new.
    ///
    /// # Errors
    /// The place of the earlier member with the same key; the new one is dropped.
    pub(super) fn insert(&mut self, member: Member) -> Result<(), Pos> {
        match self.find(&member.key) {
            Some(at) => Err(self.place(at, member.pos)),
            None => {
                self.push(member, false);
                Ok(())
            }
        }
    }

    /// Adds a member; if the key exists and both values are blocks, they become one list of objects.
    ///
    /// # Errors
    /// The place of the earlier member with the same key, if one of the two isn't a block; the new one is dropped.
    pub(super) fn insert_or_join(&mut self, member: Member) -> Result<(), Pos> {
        let joins = is_block(&member.value);
        let Some(at) = self.find(&member.key) else {
            self.push(member, joins);
            return Ok(());
        };
        let place = self.place(at, member.pos);
        let joinable = joins && self.blocks.get(at).is_some_and(|block| *block);
        match self.members.get_mut(at) {
            Some(earlier) if joinable && !(is_empty(&earlier.value) && is_empty(&member.value)) => {
                join(&mut earlier.value, member.value);
                Ok(())
            }
            _ => Err(place),
        }
    }

    pub(super) fn finish(self) -> Data {
        Data::Object(self.members)
    }

    fn place(&self, at: usize, otherwise: Pos) -> Pos {
        self.members.get(at).map_or(otherwise, |member| member.pos)
    }

    fn find(&self, key: &str) -> Option<usize> {
        if self.index.is_empty() {
            self.members.iter().position(|member| member.key == key)
        } else {
            self.index.get(key).copied()
        }
    }

    fn push(&mut self, member: Member, block: bool) {
        let at = self.members.len();
        if at >= INDEXED_FROM {
            if self.index.is_empty() {
                let keys = self.members.iter().map(|member| member.key.clone());
                self.index.extend(keys.zip(0..));
            }
            self.index.insert(member.key.clone(), at);
        }
        self.members.push(member);
        self.blocks.push(block);
    }
}

/// An object, or a list of nothing but objects.
fn is_block(value: &Value) -> bool {
    match &value.data {
        Data::Object(_) => true,
        Data::List(items) => items
            .iter()
            .all(|item| matches!(item.data, Data::Object(_))),
        _ => false,
    }
}

/// An empty list: a value given twice so is an attribute set twice, not two blocks.
fn is_empty(value: &Value) -> bool {
    matches!(&value.data, Data::List(items) if items.is_empty())
}

/// Appends the objects of `later` to those of `earlier`, which becomes a list and keeps its place.
fn join(earlier: &mut Value, later: Value) {
    let pos = earlier.pos;
    let mut items = match std::mem::replace(&mut earlier.data, Data::Null) {
        Data::List(items) => items,
        data => vec![Value::new(data, pos)],
    };
    match later.data {
        Data::List(more) => items.extend(more),
        data => items.push(Value::new(data, later.pos)),
    }
    earlier.data = Data::List(items);
}
