//! What is read and refused as the HCL 1 library does it, and where we differ on purpose.

use super::*;

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
