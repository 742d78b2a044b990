//! What a client has refused on a stream, and what of it is kept back (decision X5).
//!
//! A refusal names a response, not a resource. If the response held a single change, that content is *quarantined*: it
//! isn't sent again on the stream. If it held several, each of them becomes a *suspect* and is sent once more, alone;
//! the answer to that tells the good from the bad. New content of a name is neither suspect nor quarantined.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use smol_str::SmolStr;

/// How many refused contents are remembered for one name; older ones are forgotten.
const REFUSED_PER_NAME: usize = 8;

/// How many names with refused contents are remembered before those that are gone are forgotten.
const REFUSED_NAMES: usize = 1024;

/// How much of a client's explanation is kept, in bytes.
const REASON_LEN: usize = 4096;

/// What a response says about one name: a version, or (`None`) that the resource is removed.
pub(super) type Content = Option<SmolStr>;

/// One content that the client has refused when it came alone.
#[derive(Debug, Clone)]
struct Refused {
    content: Content,
    reason: SmolStr,
}

/// The refusals of one type on one stream.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    suspects: BTreeMap<SmolStr, Content>,
    quarantined: BTreeMap<SmolStr, VecDeque<Refused>>,
}

impl Refusals {
    /// Whether this content was refused alone.
    pub(super) fn quarantines(&self, name: &str, content: Option<&SmolStr>) -> bool {
        self.reason(name, content).is_some()
    }

    /// Why the client refused this content, if it did so when it came alone.
    pub(super) fn reason(&self, name: &str, content: Option<&SmolStr>) -> Option<&SmolStr> {
        self.quarantined
            .get(name)?
            .iter()
            .find(|refused| refused.content.as_ref() == content)
            .map(|refused| &refused.reason)
    }

    /// Whether this content has to be sent alone, because a response that held it beside others was refused.
    pub(super) fn suspects(&self, name: &str, content: Option<&SmolStr>) -> bool {
        self.suspects
            .get(name)
            .is_some_and(|suspect| suspect.as_ref() == content)
    }

    /// The suspects and their content at the time.
    pub(super) fn all_suspects(&self) -> impl Iterator<Item = (&SmolStr, Option<&SmolStr>)> {
        let suspects = self.suspects.iter();
        suspects.map(|(name, content)| (name, content.as_ref()))
    }

    /// Names with quarantined contents, current or not.
    pub(super) fn names(&self) -> impl Iterator<Item = &SmolStr> {
        self.quarantined.keys()
    }

    /// Makes it a suspect.
    pub(super) fn suspect(&mut self, name: SmolStr, content: Content) {
        self.suspects.insert(name, content);
    }

    /// Ends a suspicion: the client took it, has forgotten the name, or there is newer content.
    pub(super) fn clear(&mut self, name: &str) {
        self.suspects.remove(name);
    }

    /// Keeps this content back from now on.
    pub(super) fn quarantine(&mut self, name: SmolStr, content: Content, reason: SmolStr) {
        self.suspects.remove(&name);
        let refused = self.quarantined.entry(name).or_default();
        refused.retain(|known| known.content != content);
        if refused.len() == REFUSED_PER_NAME {
            refused.pop_front();
        }
        refused.push_back(Refused { content, reason });
    }

    /// A refused removal counts only until the resource is there again.
    pub(super) fn forget_removal(&mut self, name: &str) {
        if let Some(refused) = self.quarantined.get_mut(name) {
            refused.retain(|known| known.content.is_some());
            if refused.is_empty() {
                self.quarantined.remove(name);
            }
        }
    }

    /// Drops suspicions that `keep` says no to.
    pub(super) fn retain_suspects(&mut self, keep: impl Fn(&str, &Content) -> bool) {
        self.suspects.retain(|name, content| keep(name, content));
    }

    /// Bounds the memory: with many names, forgets those that don't exist any more.
    pub(super) fn bound(&mut self, exists: impl Fn(&str) -> bool) {
        if self.quarantined.len() > REFUSED_NAMES {
            self.quarantined.retain(|name, _| exists(name));
        }
    }
}

/// A client's explanation, cut to a length that can be kept.
pub(super) fn shortened(reason: &str) -> SmolStr {
    SmolStr::new(&reason[..reason.floor_char_boundary(REASON_LEN)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_told_apart_and_old_ones_forgotten() {
        let mut refusals = Refusals::default();
        for version in 0..10 {
            let content = Some(SmolStr::new(version.to_string()));
            refusals.quarantine("a".into(), content, "bad".into());
        }
        assert!(!refusals.quarantines("a", Some(&"1".into())));
        assert!(refusals.quarantines("a", Some(&"2".into())));
        assert!(refusals.quarantines("a", Some(&"9".into())));
        assert!(!refusals.quarantines("a", None));
        assert!(!refusals.quarantines("b", Some(&"9".into())));
    }

    #[test]
    fn names_that_are_gone_are_forgotten_when_there_are_many() {
        let mut refusals = Refusals::default();
        for name in 0..=REFUSED_NAMES {
            refusals.quarantine(SmolStr::new(name.to_string()), None, "bad".into());
        }
        refusals.bound(|name| name == "7");
        assert_eq!(refusals.names().collect::<Vec<_>>(), ["7"]);
    }

    #[test]
    fn a_refused_removal_is_forgotten_alone() {
        let mut refusals = Refusals::default();
        refusals.quarantine("a".into(), None, "no".into());
        refusals.quarantine("a".into(), Some("1".into()), "no".into());
        refusals.forget_removal("a");
        assert!(!refusals.quarantines("a", None));
        assert!(refusals.quarantines("a", Some(&"1".into())));
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let text = "ä".repeat(REASON_LEN);
        assert_eq!(shortened(&text).len(), REASON_LEN);
        assert_eq!(shortened(&format!("x{text}")).len(), REASON_LEN - 1);
        assert_eq!(shortened("short"), "short");
    }
}
