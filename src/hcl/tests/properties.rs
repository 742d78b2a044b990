use proptest::prelude::*;

use super::*;

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
        // The spaces keep numbers from growing to a length at which serde_json rounds them less exactly than we do.
        let text = tokens.join(" ");
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
