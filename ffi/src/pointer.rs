//! JSON pointers (RFC 6901) into encoded JSON: the value that a pointer names is a slice of the text, so that a subtree is
//! neither decoded nor encoded again.
//!
//! The text is trusted to be valid JSON without white space, since the library encoded it; a text that isn't gives `None`,
//! never a panic.

use std::borrow::Cow;
use std::ops::Range;

/// Where the value is that a pointer names. The empty pointer names the whole.
pub(crate) fn find(json: &str, pointer: &str) -> Option<Range<usize>> {
    let mut at = 0;
    if !pointer.is_empty() {
        for token in pointer.strip_prefix('/')?.split('/') {
            at = child(json, at, &unescape(token))?;
        }
    }
    Some(at..end_of_value(json.as_bytes(), at)?)
}

/// `~1` is `/`, `~0` is `~`.
fn unescape(token: &str) -> Cow<'_, str> {
    if token.contains('~') {
        token.replace("~1", "/").replace("~0", "~").into()
    } else {
        token.into()
    }
}

/// Where the member or item of the value at `at` begins.
fn child(json: &str, at: usize, token: &str) -> Option<usize> {
    let bytes = json.as_bytes();
    match bytes.get(at)? {
        b'{' => member(json, at + 1, token),
        b'[' => item(bytes, at + 1, token),
        _ => None,
    }
}

fn member(json: &str, mut at: usize, wanted: &str) -> Option<usize> {
    let bytes = json.as_bytes();
    while *bytes.get(at)? == b'"' {
        let end = end_of_string(bytes, at)?;
        let value = end + 1;
        let key = json.get(at + 1..end - 1)?;
        let same = if key.contains('\\') {
            serde_json::from_str::<String>(json.get(at..end)?).ok()? == wanted
        } else {
            key == wanted
        };
        if same {
            return (*bytes.get(end)? == b':').then_some(value);
        }
        at = end_of_value(bytes, value)?;
        if *bytes.get(at)? != b',' {
            return None;
        }
        at += 1;
    }
    None
}

fn item(bytes: &[u8], mut at: usize, token: &str) -> Option<usize> {
    let plain =
        token.bytes().all(|b| b.is_ascii_digit()) && (token.len() == 1 || !token.starts_with('0'));
    let wanted: usize = plain.then(|| token.parse().ok())??;
    if *bytes.get(at)? == b']' {
        return None;
    }
    for _ in 0..wanted {
        at = end_of_value(bytes, at)?;
        if *bytes.get(at)? != b',' {
            return None;
        }
        at += 1;
    }
    Some(at)
}

fn end_of_string(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn end_of_value(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    let mut depth = 0usize;
    loop {
        match bytes.get(at)? {
            b'"' => at = end_of_string(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            b',' | b':' => {
                // Within an object or list, since the loop ends with the value at depth 0.
                at += 1;
                continue;
            }
            _ => {
                let rest = bytes.get(at..)?;
                let len = rest
                    .iter()
                    .position(|b| matches!(b, b',' | b'}' | b']' | b':'));
                at += len.unwrap_or(rest.len());
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Every pointer into a value.
    fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
        all.push(at.to_owned());
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let key = key.replace('~', "~0").replace('/', "~1");
                    pointers(value, &format!("{at}/{key}"), all);
                }
            }
            Value::Array(items) => {
                for (i, value) in items.iter().enumerate() {
                    pointers(value, &format!("{at}/{i}"), all);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn the_slice_is_what_the_pointer_names() {
        let value = json!({
            "a": [1, -2.5e3, "x\"],{", {"b": [], "c": {}}, [[true], null]],
            "": {"~/": 1, "q\"\\": "ü", "é": [{"k": ""}]},
            "z": "",
        });
        let text = value.to_string();
        let mut all = Vec::new();
        pointers(&value, "", &mut all);
        assert!(all.len() > 15);
        for pointer in all {
            let found = find(&text, &pointer).unwrap();
            let read: Value = serde_json::from_str(&text[found]).unwrap();
            assert_eq!(&read, value.pointer(&pointer).unwrap(), "{pointer}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let text = json!({"a": [1, {"b": 2}], "e": [], "o": {}}).to_string();
        for pointer in [
            "a",
            "/b",
            "/a/2",
            "/a/-",
            "/a/00",
            "/a/01",
            "/a/+1",
            "/a/0/x",
            "/e/0",
            "/o/x",
            "/",
            "/a/",
            "/a/99999999999999999999999",
            "/a/1/b/",
        ] {
            assert_eq!(find(&text, pointer), None, "{pointer}");
        }
    }

    #[test]
    fn broken_text_is_no_panic() {
        for text in [
            "",
            "{",
            "[",
            "{\"",
            "{\"a",
            "{\"a\"",
            "{\"a\":",
            "[1",
            "[1,",
            "\"\\",
            "]",
            "}{",
            "{\"\\u\":1}",
        ] {
            for pointer in ["", "/a", "/0", "/1", "/a/b"] {
                let _ = find(text, pointer);
            }
        }
    }
}
