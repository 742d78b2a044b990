use proptest::prelude::*;
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
fn hcl_conformance_accepted() {
    let rows = [
        (
            "config { a = 1 b = 2 }",
            json!({"config": [{"a": 1, "b": 2}]}),
        ),
        ("a = 1 b = 2", json!({"a": 1, "b": 2})),
        ("a = 1, b = 2", json!({"a": 1, "b": 2})),
        ("u = [ { a = 1 b = 2 } ]", json!({"u": [{"a": 1, "b": 2}]})),
        (
            "u = [ { a = 1, b = 2 }, { a = 3 }, ]",
            json!({"u": [{"a": 1, "b": 2}, {"a": 3}]}),
        ),
        (
            "u = [ { a = 1, c { d = 1 } } ]",
            json!({"u": [{"a": 1, "c": [{"d": 1}]}]}),
        ),
        ("s { a = 1 }", json!({"s": [{"a": 1}]})),
        ("s = { a = 1 }", json!({"s": [{"a": 1}]})),
        (
            "connect { sidecar_service {} }",
            json!({"connect": [{"sidecar_service": [{}]}]}),
        ),
        (
            "s { a = 1 }\ns { b = 2 }",
            json!({"s": [{"a": 1}, {"b": 2}]}),
        ),
        (
            "s { a = 1 }\ns = { b = 2 }",
            json!({"s": [{"a": 1}, {"b": 2}]}),
        ),
        (
            "s { a = 1 }\ns = [{ b = 2 }]",
            json!({"s": [{"a": 1}, {"b": 2}]}),
        ),
        (
            "m { k { a = 1 } k { b = 2 } }",
            json!({"m": [{"k": [{"a": 1}, {"b": 2}]}]}),
        ),
        (
            "service \"web\" { port = 1 }",
            json!({"service": [{"web": [{"port": 1}]}]}),
        ),
        (
            "s \"x\" \"y\" { p = 1 }",
            json!({"s": [{"x": [{"y": [{"p": 1}]}]}]}),
        ),
        (
            "s \"x\" { a = 1 }\ns \"x\" { b = 2 }",
            json!({"s": [{"x": [{"a": 1}]}, {"x": [{"b": 2}]}]}),
        ),
        (
            "Kind = \"x\"\nkind = \"y\"",
            json!({"Kind": "x", "kind": "y"}),
        ),
        ("\"a b\" = 1", json!({"a b": 1})),
        ("m = { a.b = 1 }", json!({"m": [{"a.b": 1}]})),
        ("a-b = 1", json!({"a-b": 1})),
        ("é = 1", json!({"é": 1})),
        ("a = 0x1f", json!({"a": 31})),
        ("a = 017", json!({"a": 15})),
        ("a = -1", json!({"a": -1})),
        ("a = 1.5", json!({"a": 1.5})),
        ("a = .5", json!({"a": 0.5})),
        ("a = 1e3", json!({"a": 1000.0})),
        ("a = 0", json!({"a": 0})),
        ("a = true", json!({"a": true})),
        ("a = \"true\"", json!({"a": "true"})),
        ("a = [true,false]", json!({"a": [true, false]})),
        ("a = [[1,2],[3]]", json!({"a": [[1, 2], [3]]})),
        ("a = []", json!({"a": []})),
        ("a = [1,,2]", json!({"a": [1, 2]})),
        ("a = [,1]", json!({"a": [1]})),
        ("a = [1,]", json!({"a": [1]})),
        ("t = \"${FOO}\"", json!({"t": "${FOO}"})),
        ("t = \"$${FOO}\"", json!({"t": "$${FOO}"})),
        ("t = \"${f(\"x\")}\"", json!({"t": "${f(\"x\")}"})),
        ("t = \"${x\ny}\"", json!({"t": "${x\ny}"})),
        (r#"a = "x\ty\"\u00e9\n""#, json!({"a": "x\ty\"é\n"})),
        ("a = <<EOF\nx\ny\nEOF\n", json!({"a": "x\ny\n"})),
        ("a = <<-EOF\n  x\n    y\n  EOF\n", json!({"a": "x\n  y\n"})),
        ("a =\n1", json!({"a": 1})),
        ("a\t=\t1\r\nb = 2\r\n", json!({"a": 1, "b": 2})),
        (
            "# c\na = 1 // c\n/* c\n */ b = [1, # c\n 2 /* c */, // c\n]",
            json!({"a": 1, "b": [1, 2]}),
        ),
        ("", json!({})),
        ("  \n# only a comment", json!({})),
        (" \n {\"a\": 1}", json!({"a": 1})),
        (
            "{\"a\":{\"b\":{\"c\":1}}}",
            json!({"a": [{"b": [{"c": 1}]}]}),
        ),
        ("{\"a\":null}", json!({"a": null})),
    ];
    for (text, expected) in rows {
        assert_eq!(read(text), expected, "{text:?}");
    }
}

#[test]
fn hcl_conformance_refused() {
    let rows = [
        ("a \"b\" = 1", "1:7: found `=` after more than one key"),
        ("a = 1\na = 2", "2:1: `a` is already set at 1:1"),
        ("s { a = 1\n a = 2 }", "2:2: `a` is already set at 1:5"),
        ("s = 1\ns { a = 1 }", "2:1: `s` is already set at 1:1"),
        ("s { a = 1 }\ns = 1", "2:1: `s` is already set at 1:1"),
        ("-a = 1", "1:1: found `-` where a key is wanted"),
        ("1a = 1", "1:1: found `1` where a key is wanted"),
        ("a = +1", "1:5: found `+` where a value is wanted"),
        ("a = 1,, b = 2", "1:7: found `,` where a key is wanted"),
        (
            "m = { a : 1 }",
            "1:9: found `:` after the key `a`: write `=`",
        ),
        (
            "a = 'x'",
            "1:5: found `'` where a value is wanted: put double quotes",
        ),
        ("a = null", "1:5: HCL has no `null`"),
        (
            "\u{feff}a = 1",
            "1:1: the text starts with a byte order mark",
        ),
        (
            "a = 08",
            "1:5: `08` is not a number: a leading 0 makes it octal",
        ),
        (
            "a = 9223372036854775808",
            "1:5: the number `9223372036854775808` doesn't fit",
        ),
        ("a = 1e400", "1:5: the number `1e400` is beyond"),
        ("a = [ 1 2 ]", "1:9: found `2` after a list item: write `,`"),
        ("a = \"\\q\"", "1:6: not an escape of HCL"),
        ("a = \"x\ny\"", "1:7: a line break inside a string"),
        (
            "a = <<EOF\nx\n",
            "1:5: this heredoc is never closed: add a line that holds only `EOF`",
        ),
        (
            "a =",
            "1:4: found the end of the text where a value is wanted",
        ),
        ("# c\n{ a = 1 }", "2:1: found `{` where a key is wanted"),
        (
            "{\"a\":1, \"b\":{\"x\":1} \"c\":2, \"d\":3}",
            "1:21: found `\"` after a member: write `,`",
        ),
        (
            "{\"a\":1,}",
            "1:8: the comma before this has nothing after it",
        ),
        (
            "{\"a\":1} // x",
            "1:9: found a comment, which JSON doesn't have,",
        ),
        (
            "{\"a\":1} xyz",
            "1:9: found `x` after the end of the document",
        ),
        (
            "{\"a\":1, \"a\":2}",
            "1:9: the key `a` occurs twice in this object, first at 1:2",
        ),
    ];
    for (text, expected) in rows {
        let refusal = refusal(text);
        assert!(refusal.starts_with(expected), "{text:?}: {refusal}");
    }
}

#[test]
fn a_consul_service_definition_is_read() {
    let text = "service { name = \"web\" connect { sidecar_service { proxy { upstreams = [ { destination_name = \"db\" \
                local_bind_port = 5000 } ] config { protocol = \"http\" } } } } }";
    let proxy = json!({
        "upstreams": [{"destination_name": "db", "local_bind_port": 5000}],
        "config": {"protocol": "http"},
    });
    assert_eq!(
        parse(text.as_bytes()).unwrap().to_json(),
        json!({"service": {"name": "web", "connect": {"sidecar_service": {"proxy": proxy}}}})
    );
}

#[test]
fn hcl_details_accepted() {
    let rows = [
        ("a = 1 ,", json!({"a": 1})),
        ("s { a = 1 , }", json!({"s": [{"a": 1}]})),
        ("s {} , t {}", json!({"s": [{}], "t": [{}]})),
        ("a=\"x\"b=\"y\"", json!({"a": "x", "b": "y"})),
        ("a\"b\"{}", json!({"a": [{"b": [{}]}]})),
        ("a b {}", json!({"a": [{"b": [{}]}]})),
        ("\"\" = 1", json!({"": 1})),
        (
            "_a = 1\na.b.c = 2\n世 = 3",
            json!({"_a": 1, "a.b.c": 2, "世": 3}),
        ),
        ("s = []\ns { a = 1 }", json!({"s": [{"a": 1}]})),
        ("a = {}\na = {}", json!({"a": [{}, {}]})),
        ("a = [{}, 1, [{}]]", json!({"a": [{}, 1, [{}]]})),
        ("a = [,]\nb = [1,,]", json!({"a": [], "b": [1]})),
        (
            "a = -0x1f\nb = 09.5\nc = 1E3\nd = 1e+3\ne = 1e-1\nf = 00\ng = -0",
            json!({
                "a": -31, "b": 9.5, "c": 1000.0, "d": 1000.0, "e": 0.1, "f": 0, "g": 0
            }),
        ),
        ("a = -9223372036854775808", json!({"a": i64::MIN})),
        ("a = -0x8000000000000000", json!({"a": i64::MIN})),
        (
            r#"a = "\x41\101\U0001F600\a\b\f\r\v\\""#,
            json!({"a": "AA😀\u{7}\u{8}\u{c}\r\u{b}\\"}),
        ),
        (
            r#"a = "${f(\"x\")}${a{b}c}}{$""#,
            json!({"a": r#"${f(\"x\")}${a{b}c}}{$"#}),
        ),
        ("a = <<EOF\n  x\n  EOF\n", json!({"a": "  x\n  "})),
        ("a = <<EOF\nEOF\n", json!({"a": ""})),
        (
            "a = <<EOF\nx\nEOFX\n EOF X\nEOF\nb = 1",
            json!({"a": "x\nEOFX\n EOF X\n", "b": 1}),
        ),
        (
            "a = <<EOF\r\nx\r\nEOF\r\nb = 1",
            json!({"a": "x\n", "b": 1}),
        ),
        ("a = [<<EOF\nx\nEOF\n, 2]", json!({"a": ["x\n", 2]})),
        ("a = <<EOF\nx \\n ${b}\nEOF\n", json!({"a": "x \\n ${b}\n"})),
        (
            "a = <<-EOF\n    x\n      y\n  EOF\n",
            json!({"a": "  x\n    y\n"}),
        ),
        ("a = <<-EOF\n  x\n y\n  EOF\n", json!({"a": "  x\n y\n"})),
        ("a = <<-EOF\n  x\n\n  EOF\n", json!({"a": "  x\n\n"})),
        ("a = <<EOF\nx\nEOF", json!({"a": "x\n"})),
    ];
    for (text, expected) in rows {
        assert_eq!(read(text), expected, "{text:?}");
    }
}

#[test]
fn hcl_details_refused() {
    let rows = [
        ("a = 1b = 2", "1:5: `1b` is not a number"),
        ("a = 1.5.2", "1:5: `1.5.2` is not a number"),
        ("a = 1e", "1:5: `1e` is not a number"),
        ("a = 0x", "1:5: `0x` is not a number"),
        ("a = 0xZ", "1:5: `0xZ` is not a number"),
        ("a = 0x+1", "1:5: `0x` is not a number"),
        ("a = -.5", "1:5: `-.5` is not a number"),
        ("a = - 1", "1:5: `-` is not a number"),
        (
            "a = 0x8000000000000000",
            "1:5: the number `0x8000000000000000` doesn't fit",
        ),
        ("a = TRUE", "1:5: `TRUE` is not a value: put double quotes"),
        (", a = 1", "1:1: found `,` where a key is wanted"),
        ("s { , a = 1 }", "1:5: found `,` where a key is wanted"),
        ("a = []\na = []", "2:1: `a` is already set at 1:1"),
        ("a = [1]\na = [2]", "2:1: `a` is already set at 1:1"),
        ("a = [1]\na { b = 1 }", "2:1: `a` is already set at 1:1"),
        ("a { b = 1", "1:3: this `{` is never closed"),
        ("a = [1, 2", "1:5: this `[` is never closed"),
        ("a {\n}\n}", "3:1: found `}` where a key is wanted"),
        ("a", "1:2: found the end of the text after the key `a`"),
        ("a = \"b", "1:5: this string is never closed"),
        ("a = \"${b\"", "1:5: a `${` in this string is never closed"),
        (r#"a = "\u00e""#, "1:6: not an escape of HCL"),
        (r#"a = "\ud800""#, "1:6: this escape is not a character"),
        (r#"a = "\xe9""#, "1:6: a byte over 7F"),
        (r#"a = "\777""#, "1:6: a byte over 7F"),
        ("a = \"\0\"", "1:6: a null character"),
        ("\0", "1:1: found character U+0000 where a key is wanted"),
        (
            "a = \u{a0}1",
            "1:5: found character U+00A0 where a value is wanted",
        ),
        ("/* x", "1:1: this comment is never closed"),
        ("a = 1 / 2", "1:7: a single `/`"),
        ("a = <EOF", "1:5: found `<` where a value is wanted"),
        ("a = <<E-F\nx\nE-F\n", "1:5: a heredoc starts with"),
        ("a = <<EOF \nx\nEOF\n", "1:5: a heredoc starts with"),
        ("a = <<EOF", "1:5: a heredoc starts with"),
        ("a = 1;b = 2", "1:6: found `;` where a key is wanted"),
    ];
    for (text, expected) in rows {
        let refusal = refusal(text);
        assert!(refusal.starts_with(expected), "{text:?}: {refusal}");
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

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z${}\"\\\\]{0,6}",
        any::<String>().prop_map(|s| s.replace('\0', ""))
    ]
}

/// Trees without `null`, which HCL doesn't have.
fn any_tree() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>()
            .prop_filter("finite", |f| f.is_finite())
            .prop_map(Json::from),
        any_text().prop_map(Json::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
            prop::collection::btree_map(any_text(), inner, 0..6)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

fn hcl_string(text: &str) -> String {
    // A dollar sign is written as an escape, so that no template begins.
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '$' | '\n' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => quoted.push(c),
        }
    }
    quoted + "\""
}

fn hcl_value(value: &Json) -> String {
    match value {
        Json::String(text) => hcl_string(text),
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(hcl_value).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(_) => format!("{{ {} }}", hcl_items(value)),
        other => other.to_string(),
    }
}

fn hcl_items(object: &Json) -> String {
    let mut text = String::new();
    for (key, value) in object.as_object().unwrap() {
        // Objects alternate between the block and the attribute form.
        let equals = if value.is_object() && key.len() % 2 == 0 {
            ""
        } else {
            "="
        };
        text.push_str(&format!(
            "{} {equals} {}\n",
            hcl_string(key),
            hcl_value(value)
        ));
    }
    text
}

proptest! {
    #[test]
    fn printed_json_reads_back_equal(tree in any_tree()) {
        for text in [tree.to_string(), serde_json::to_string_pretty(&tree).unwrap()] {
            prop_assert_eq!(&parse_json(text.as_bytes()).unwrap().to_json(), &tree);
        }
    }

    #[test]
    fn printed_hcl_reads_back_equal(tree in any_tree()) {
        let tree = json!({"a": tree});
        prop_assert_eq!(parse(hcl_items(&tree).as_bytes()).unwrap().to_json(), tree);
    }

    #[test]
    fn json_agrees_with_serde_json_on_random_tokens(
        tokens in prop::collection::vec(
            prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"a\"", "\"b\\u0041\"", "1", "-0.5", "1e2", "01", "true", "null", " ", "x",
            ]),
            0..12,
        )
    ) {
        let text = tokens.concat();
        let ours = parse_json(text.as_bytes());
        match serde_json::from_str::<Json>(&text) {
            Err(_) => prop_assert!(ours.is_err(), "{}", text),
            Ok(expected) => match ours {
                Ok(value) => prop_assert_eq!(value.to_json(), expected),
                Err(errors) => {
                    prop_assert!(errors.to_string().contains("occurs twice"), "{}: {}", text, errors);
                }
            },
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
        let _ = parse_json(&bytes);
    }

    #[test]
    fn random_tokens_never_panic(
        tokens in prop::collection::vec(
            prop::sample::select(vec![
                "a", "=", "{", "}", "[", "]", ",", "\"", "\\", "$", "${", "<<A\n", "<<-A\n", "\n", "\nA\n", " A\r\n", "#", "//",
                "/*", "*/", "0", "x", "1", ".", "e", "-", "+", "true", "é", "\\u12", "\r", "\t",
            ]),
            0..40,
        )
    ) {
        let text = tokens.concat();
        let _ = parse(text.as_bytes());
        let _ = parse_json(text.as_bytes());
    }
}
