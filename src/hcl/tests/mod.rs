mod conformance;
mod properties;

use serde_json::{Value as Json, json};

use super::*;

/// The shape of HCL 1's generic decoding: an object under a key is a list of one map.
fn decoded(value: &Value, under_a_key: bool) -> Json {
    match &value.data {
        Data::Object(members) => {
            let map = Json::Object(
                members
                    .iter()
                    .map(|m| (m.key.clone(), decoded(&m.value, true)))
                    .collect(),
            );
            if under_a_key { json!([map]) } else { map }
        }
        Data::List(items) => items.iter().map(|item| decoded(item, false)).collect(),
        _ => value.to_json(),
    }
}

fn read(text: &str) -> Json {
    match parse(text.as_bytes()) {
        Ok(value) => decoded(&value, false),
        Err(errors) => panic!("{text:?}: {errors}"),
    }
}

/// The first problem as `line:column: message`.
fn refusal(text: &str) -> String {
    match parse(text.as_bytes()) {
        Ok(value) => panic!("{text:?} was read as {}", value.to_json()),
        Err(errors) => errors.first().to_string(),
    }
}

fn json_refusal(text: &str) -> String {
    match parse_json(text.as_bytes()) {
        Ok(value) => panic!("{text:?} was read as {}", value.to_json()),
        Err(errors) => errors.first().to_string(),
    }
}

#[test]
fn json_is_strict() {
    let rows = [
        ("", "1:1: found the end of the text where a value is wanted"),
        ("[1,]", "1:4: the comma before this has nothing after it"),
        ("[1 2]", "1:4: found `2` after a list item"),
        ("[,1]", "1:2: found `,` where a value is wanted"),
        ("{\"a\" 1}", "1:6: found `1` after a key: write `:`"),
        ("{a: 1}", "1:2: found `a` where a key is wanted"),
        ("{\"a\": 1", "1:1: this `{` is never closed"),
        ("[\n[1]", "1:1: this `[` is never closed"),
        ("[1] # c", "1:5: found a comment"),
        ("/* c */ 1", "1:1: found a comment"),
        ("True", "1:1: `True` is not a JSON value"),
        ("[01]", "1:2: `01` is not a JSON number"),
        ("[1.]", "1:2: `1.` is not a JSON number"),
        ("[.5]", "1:2: found `.` where a value is wanted"),
        ("[+1]", "1:2: found `+` where a value is wanted"),
        ("[-]", "1:2: `-` is not a JSON number"),
        ("[1e]", "1:2: `1e` is not a JSON number"),
        ("[0x10]", "1:2: `0x10` is not a JSON number"),
        ("[1e400]", "1:2: the number `1e400` is beyond"),
        (
            "[9223372036854775808]",
            "1:2: the number `9223372036854775808` doesn't fit",
        ),
        ("\"a", "1:1: this string is never closed"),
        ("\"a\nb\"", "1:3: a line break inside a string"),
        (
            "\"a\tb\"",
            "1:3: a control character inside a string: write \\u0009",
        ),
        (r#""\x41""#, "1:2: not an escape of JSON"),
        (r#""\u12""#, "1:2: not an escape of JSON"),
        (r#""\ud800""#, "1:2: not an escape of JSON"),
        (r#""\ud800\u0041""#, "1:2: not an escape of JSON"),
        (r#""\udc00""#, "1:2: not an escape of JSON"),
        ("\u{a0}1", "1:1: found character U+00A0"),
        ("1 2", "1:3: found `2` after the end of the document"),
    ];
    for (text, expected) in rows {
        let refusal = json_refusal(text);
        assert!(refusal.starts_with(expected), "{text:?}: {refusal}");
    }
}

#[test]
fn json_values_are_read() {
    let rows = [
        ("1", Data::Int(1)),
        ("-0", Data::Int(0)),
        ("9223372036854775807", Data::Int(i64::MAX)),
        ("-9223372036854775808", Data::Int(i64::MIN)),
        ("1.0", Data::Float(1.0)),
        ("1E+2", Data::Float(100.0)),
        ("0.5e-1", Data::Float(0.05)),
        ("1e19", Data::Float(1e19)),
        (" true ", Data::Bool(true)),
        ("null", Data::Null),
        (
            r#""\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00""#,
            Data::String("\"\\/\u{8}\u{c}\n\r\té😀".to_owned()),
        ),
        ("[]", Data::List(Vec::new())),
        ("{}", Data::Object(Vec::new())),
    ];
    for (text, expected) in rows {
        assert_eq!(
            parse_json(text.as_bytes()).unwrap().data,
            expected,
            "{text}"
        );
    }
}

/// The places of all members and values, in the order of the text.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(format!("{path} {}", value.pos));
    match &value.data {
        Data::Object(members) => {
            for m in members {
                let path = format!("{path}/{}", m.key);
                found.push(format!("{path}@ {}", m.pos));
                places(&m.value, &path, found);
            }
        }
        Data::List(items) => {
            for (i, item) in items.iter().enumerate() {
                places(item, &format!("{path}/{i}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_node_knows_its_place() {
    let mut found = Vec::new();
    places(
        &parse("é = \"ü\"\ns \"x\" {\n  l = [1,\n 2]\n}\ns {}\n".as_bytes()).unwrap(),
        "",
        &mut found,
    );
    assert_eq!(
        found,
        [
            " 1:1",
            "/é@ 1:1",
            "/é 1:5",
            "/s@ 2:1",
            "/s 2:3",
            "/s/0 2:3",
            "/s/0/x@ 2:3",
            "/s/0/x 2:7",
            "/s/0/x/l@ 3:3",
            "/s/0/x/l 3:7",
            "/s/0/x/l/0 3:8",
            "/s/0/x/l/1 4:2",
            "/s/1 6:3",
        ]
    );

    found.clear();
    places(
        &parse(b"\n {\"a\":\n [true, {\"b\" :null}]}").unwrap(),
        "",
        &mut found,
    );
    assert_eq!(
        found,
        [
            " 2:2",
            "/a@ 2:3",
            "/a 3:2",
            "/a/0 3:3",
            "/a/1 3:9",
            "/a/1/b@ 3:10",
            "/a/1/b 3:15",
        ]
    );
}

#[test]
fn several_problems_are_reported_in_one_run() {
    let errors = parse(b"a = 08\nb = \"\\q\"\nb = 1\nc = [1 2]\nd = 09").unwrap_err();
    let places: Vec<_> = errors.iter().map(|e| e.pos.to_string()).collect();
    assert_eq!(places, ["1:5", "2:6", "3:1", "4:8"]);
    assert_eq!(errors.to_string().lines().count(), 4);

    let errors = parse_json(b"{\"a\": 01, \"a\": \"\\x\"}").unwrap_err();
    assert_eq!(errors.iter().count(), 3);

    let many = "a = 08\n".repeat(100);
    let errors = parse(many.as_bytes()).unwrap_err();
    assert_eq!(errors.iter().count(), 20);
    assert!(
        errors
            .to_string()
            .ends_with("correct these problems first)")
    );
}

#[test]
fn depth_is_limited() {
    let nested = |open: &str, middle: &str, close: &str, n: usize| {
        format!("{}{middle}{}", open.repeat(n), close.repeat(n))
    };
    let json_lists = |n| parse_json(nested("[", "", "]", n).as_bytes());
    assert!(json_lists(MAX_DEPTH).is_ok());
    let errors = json_lists(MAX_DEPTH + 1).unwrap_err();
    assert!(
        errors
            .to_string()
            .starts_with("1:129: nested more than 128 levels")
    );

    let million = 1_000_000;
    for text in [
        nested("[", "", "]", million),
        nested("{\"a\":", "1", "}", million),
        nested("a {", "", "}", million),
        format!("a = {}", nested("[", "", "]", million)),
        nested("a = {", "", "}", million),
        nested("a ", "{}", "", million),
        nested("a = [{", "", "}]", million),
    ] {
        assert!(refusal(&text).contains("nested more than") || text.starts_with('['));
        assert!(parse_json(text.as_bytes()).is_err());
    }
    // The brackets of templates and comments don't nest in the parser.
    let template = format!("a = \"${}\"", nested("{", "", "}", million));
    assert!(parse(template.as_bytes()).is_ok());
}

#[test]
fn size_and_encoding_are_checked() {
    let errors = parse(&vec![b' '; MAX_SIZE + 1]).unwrap_err();
    assert!(
        errors
            .to_string()
            .starts_with("1:1: the text has 16777217 bytes")
    );
    assert!(parse(&vec![b' '; MAX_SIZE]).is_ok());

    for read in [parse, parse_json] {
        let errors = read(b"a = 1\n\xc3\xa9 = \"\xff\"").unwrap_err();
        assert_eq!(
            errors.to_string(),
            "2:6: byte 12 (counted from 0) is not UTF-8: save the text as UTF-8"
        );
    }
}

#[test]
fn many_members_and_repeated_blocks_stay_quick() {
    use std::fmt::Write as _;
    let mut text = String::new();
    for i in 0..50_000 {
        writeln!(text, "k{i} = {i}\nb {{ i = {i} }}").unwrap();
    }
    let value = parse(text.as_bytes()).unwrap();
    let Data::Object(members) = &value.data else {
        panic!()
    };
    assert_eq!(members.len(), 50_001);
    assert!(matches!(&members[1].value.data, Data::List(blocks) if blocks.len() == 50_000));
    text.push_str("k49999 = 1");
    assert_eq!(
        refusal(&text),
        "100001:1: `k49999` is already set at 99999:1: only blocks can be repeated, remove one of the two"
    );
}

#[test]
fn no_message_holds_a_raw_control_character() {
    assert_eq!(
        refusal("\"a\tb\" 1"),
        "1:7: found `1` after the key `a\\tb`: write `= value` or `{ ... }`"
    );
    assert_eq!(printable("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
    assert!(matches!(
        printable("\u{e9} b"),
        std::borrow::Cow::Borrowed(_)
    ));
}
