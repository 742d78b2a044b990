//! Joining the header changes of splits that follow each other (discovery-chain.md 6.2).

use std::borrow::Cow;

use crate::model::{HeaderModifiers, ServiceSplit};

/// The changes of `base` followed by those of `over`: equal keys take `over`'s value, removals are joined without
/// repeating any that `base` has. Neither input changes; nothing to change counts as absent.
#[must_use]
pub fn merge_headers(
    base: Option<&HeaderModifiers>,
    over: Option<&HeaderModifiers>,
) -> Option<HeaderModifiers> {
    let (base, over) = match (base, over) {
        (base, over) if is_empty(base) => return over.cloned(),
        (base, over) if is_empty(over) => return base.cloned(),
        (Some(base), Some(over)) => (base, over),
        (base, over) => return base.or(over).cloned(),
    };
    let mut merged = base.clone();
    for (into, from) in [(&mut merged.add, &over.add), (&mut merged.set, &over.set)] {
        into.extend(from.iter().map(|(k, v)| (k.clone(), v.clone())));
    }
    merged.remove.extend(
        over.remove
            .iter()
            .filter(|name| !base.remove.contains(name))
            .cloned(),
    );
    Some(merged)
}

/// Whether there is nothing to change.
fn is_empty(headers: Option<&HeaderModifiers>) -> bool {
    headers.is_none_or(|h| h.add.is_empty() && h.set.is_empty() && h.remove.is_empty())
}

/// The definition of a leg of an inner splitter as it appears in the outer one: a request passes the outer splitter
/// first, a response the inner one. Borrowed as long as the outer leg changes nothing.
pub(crate) fn nested_definition<'a>(
    outer: &ServiceSplit,
    inner: &Cow<'a, ServiceSplit>,
) -> Cow<'a, ServiceSplit> {
    if is_empty(outer.request_headers.as_ref()) && is_empty(outer.response_headers.as_ref()) {
        return inner.clone();
    }
    let mut definition = inner.clone().into_owned();
    definition.request_headers = merge_headers(
        outer.request_headers.as_ref(),
        inner.request_headers.as_ref(),
    );
    definition.response_headers = merge_headers(
        inner.response_headers.as_ref(),
        outer.response_headers.as_ref(),
    );
    Cow::Owned(definition)
}
