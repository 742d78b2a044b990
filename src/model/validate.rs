//! The way of every record from a document into the system: read, check, bring to canonical form.
//!
//! 1. *Read* ([`Decode`]): unknown keys and wrong types are problems, but reading goes on.
//! 2. *Check* ([`Validate::validate`] and [`Validate::enterprise_only`]): what was read is checked as it was written, so
//!    that every problem can name its place. Findings that may only follow from a value that couldn't be read are left
//!    out; all others are listed together with the reading problems.
//! 3. *Normalize* ([`Validate::normalize`]): defaults are filled in, spellings unified, lists put into their fixed
//!    order, so that equal records compare equal and an unchanged write is seen as such (store.md 3).
//!
//! Checks hold before and after normalization alike: a normalized record stays valid, and normalizing twice changes
//! nothing.

use crate::hcl::Value;
use crate::model::decode::{Decode, Place, Problem, Problems, Step};

/// A record with rules of its own.
pub trait Validate {
    /// Notes every rule that the record breaks, at the place of the record in its document.
    fn validate(&self, at: &Place<'_>, problems: &mut Problems);

    /// Notes what needs the enterprise edition: other partitions and namespaces, sameness groups, locality policies
    /// (discovery-chain.md 10.7, decisions R4).
    fn enterprise_only(&self, at: &Place<'_>, problems: &mut Problems) {
        let _ = (at, problems);
    }

    /// Brings the record to canonical form.
    fn normalize(&mut self) {}
}

/// Reads, checks and normalizes a whole document as one record. The problems that come with a record are warnings.
///
/// # Errors
/// All problems with line and column, in the order of the document, if there is an error among them.
pub fn read<T: Decode + Validate>(document: &Value) -> Result<(T, Problems), Problems> {
    let mut problems = Problems::default();
    let record = read_at(document, &Place::ROOT, &mut problems);
    problems.locate(document);
    problems.errors.sort_by_key(|p| p.pos);
    problems.warnings.sort_by_key(|p| p.pos);
    record.map_or(Err(problems.clone()), |record| Ok((record, problems)))
}

/// Reads, checks and normalizes one record that is part of a larger document, at the record's place in it. Line and
/// column are left to the caller, who has the whole document ([`Problems::locate`]).
///
/// Returns `None` if the record has an error.
pub fn read_at<T: Decode + Validate>(
    value: &Value,
    at: &Place<'_>,
    problems: &mut Problems,
) -> Option<T> {
    if problems.is_full() {
        return None;
    }
    let mut reading = Problems::default();
    let mut record = T::decode(value, at, &mut reading);
    if let Some(record) = &record {
        let mut found = check(record, at);
        found
            .errors
            .retain(|p| !reading.errors.iter().any(|e| may_follow(p, e)));
        reading.append(found);
    }
    if reading.is_ok() {
        if let Some(record) = &mut record {
            record.normalize();
        }
    } else {
        record = None;
    }
    problems.append(reading);
    record
}

/// Checks and normalizes a record that was built by a program. The problems that come with it are warnings.
///
/// # Errors
/// All problems, if there is an error among them.
pub fn accept<T: Validate>(mut record: T) -> Result<(T, Problems), Problems> {
    let found = check(&record, &Place::ROOT);
    if !found.is_ok() {
        return Err(found);
    }
    record.normalize();
    Ok((record, found))
}

fn check<T: Validate>(record: &T, at: &Place<'_>) -> Problems {
    let mut found = Problems::default();
    record.validate(at, &mut found);
    record.enterprise_only(at, &mut found);
    found
}

/// Whether a finding may be no more than a consequence of a value that couldn't be read: it is about that value, about
/// something in it, or about what contains it. An unreadable list item shifts its neighbours, so it stands for its list.
fn may_follow(finding: &Problem, unread: &Problem) -> bool {
    let unread = match unread.path.split_last() {
        Some((Step::Index(_), list)) => list,
        _ => &unread.path,
    };
    unread.starts_with(&finding.path) || finding.path.starts_with(unread)
}
