//! Tables for each basis and each refusal, then what no two differing calls may share.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

/// A call that owns what it is made of.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    namespace: String,
    tool: String,
    run_id: String,
    step_id: String,
    idempotency_key: String,
    business_ids: BTreeMap<String, String>,
    arguments: Json,
}

impl Sample {
    fn identify(&self, recipe: &Recipe) -> Result<Identified, IdentityError> {
        identify(
            recipe,
            &Call {
                namespace: &self.namespace,
                tool: &self.tool,
                run_id: &self.run_id,
                step_id: &self.step_id,
                idempotency_key: &self.idempotency_key,
                business_ids: &self.business_ids,
                arguments: &self.arguments,
            },
        )
    }

    fn key(&self, recipe: &Recipe) -> Key {
        self.identify(recipe).expect("a key").key
    }
}

/// Run r1 and step s4 of the tool `charge`, as in the cases.
fn charge(arguments: &str) -> Sample {
    Sample {
        namespace: "acme".to_owned(),
        tool: "charge".to_owned(),
        run_id: "r1".to_owned(),
        step_id: "s4".to_owned(),
        idempotency_key: String::new(),
        business_ids: BTreeMap::new(),
        arguments: Json::parse(arguments).expect("arguments"),
    }
}

fn with_key(key: &str) -> Sample {
    Sample { idempotency_key: key.to_owned(), ..charge("{}") }
}

fn with_ids(ids: &[(&str, &str)]) -> Sample {
    let ids = ids.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Sample { business_ids: ids.collect(), ..charge("{}") }
}

fn by_pointers(pointers: &[&str], normalize: &[Normalize]) -> Recipe {
    let identity = pointers.iter().map(|pointer| IdentityPointer {
        pointer: Pointer::parse(pointer).expect("a pointer"),
        normalize: normalize.to_vec(),
    });
    Recipe { identity: identity.collect(), ..Recipe::default() }
}

fn hash_of(text: &str) -> Key {
    Key(Sha256::digest(text).into())
}

#[test]
fn each_basis_hashes_its_own_array() {
    let plain = Recipe::default();
    let ever = |recipe: &Recipe| Recipe { scope: Scope::Namespace, ..recipe.clone() };
    let policy = by_pointers(&["/order", "/to/0"], &[]);
    let arguments = r#"{"to":["a@x"],"order":8812,"amount":10.0}"#;
    for (sample, recipe, basis, text) in [
        (
            with_key("k\"1"),
            plain.clone(),
            KeyBasis::IdempotencyKey,
            r#"["intent-ledger/1","acme","IDEMPOTENCY_KEY","k\"1"]"#,
        ),
        (
            with_ids(&[("order", "8812"), ("b", "caf\u{e9}")]),
            plain.clone(),
            KeyBasis::BusinessIds,
            r#"["intent-ledger/1","acme","BUSINESS_IDS","charge","r1",{"b":"café","order":"8812"}]"#,
        ),
        (
            with_ids(&[("order", "8812")]),
            ever(&plain),
            KeyBasis::BusinessIds,
            r#"["intent-ledger/1","acme","BUSINESS_IDS","charge",null,{"order":"8812"}]"#,
        ),
        (
            charge(arguments),
            policy.clone(),
            KeyBasis::Policy,
            r#"["intent-ledger/1","acme","POLICY","charge","r1",{"/order":"8812","/to/0":"a@x"}]"#,
        ),
        (
            charge(arguments),
            ever(&policy),
            KeyBasis::Policy,
            r#"["intent-ledger/1","acme","POLICY","charge",null,{"/order":"8812","/to/0":"a@x"}]"#,
        ),
        (
            charge(r#"{"order":8812.0}"#),
            ever(&plain),
            KeyBasis::StepArguments,
            r#"["intent-ledger/1","acme","STEP_ARGUMENTS","charge","r1","s4",{"order":8812}]"#,
        ),
    ] {
        let expected = Identified { key: hash_of(text), basis, overridden: false };
        assert_eq!(sample.identify(&recipe), Ok(expected), "{text}");
    }
}

#[test]
fn the_policy_wins_then_the_key_then_business_ids_then_the_step() {
    let policy = by_pointers(&["/order"], &[]);
    let bare = charge(r#"{"order":1}"#);
    let keyed = Sample { idempotency_key: "k1".to_owned(), ..bare.clone() };
    let ids = Sample { business_ids: with_ids(&[("order", "1")]).business_ids, ..bare.clone() };
    let basis = |sample: &Sample, recipe: &Recipe| {
        let identified = sample.identify(recipe).expect("a key");
        (identified.basis, identified.overridden)
    };
    assert_eq!(basis(&bare, &policy), (KeyBasis::Policy, false));
    assert_eq!(basis(&keyed, &policy), (KeyBasis::Policy, true));
    assert_eq!(basis(&ids, &policy), (KeyBasis::Policy, true));
    assert_eq!(keyed.key(&policy), bare.key(&policy));
    assert_eq!(basis(&keyed, &Recipe::default()), (KeyBasis::IdempotencyKey, false));
    assert_eq!(basis(&ids, &Recipe::default()), (KeyBasis::BusinessIds, false));
    assert_eq!(basis(&bare, &Recipe::default()), (KeyBasis::StepArguments, false));
}

#[test]
fn a_call_without_a_clear_identity_is_refused() {
    let plain = Recipe::default();
    let policy = by_pointers(&["/order"], &[]);
    let no_run = |sample: Sample| Sample { run_id: String::new(), ..sample };
    let no_step = |sample: Sample| Sample { step_id: String::new(), ..sample };
    let ever = |recipe: &Recipe| Recipe { scope: Scope::Namespace, ..recipe.clone() };
    let both = Sample { idempotency_key: "k".to_owned(), ..with_ids(&[("a", "b")]) };
    let both_bad = Sample { idempotency_key: " ".to_owned(), ..both.clone() };
    for (sample, recipe, reason, field) in [
        (both.clone(), &plain, "IDENTITY_AMBIGUOUS", "identity"),
        (both, &policy, "IDENTITY_AMBIGUOUS", "identity"),
        (both_bad, &policy, "IDENTITY_AMBIGUOUS", "identity"),
        (no_run(charge("{}")), &plain, "IDENTITY_REQUIRED", "identity"),
        (no_step(charge("{}")), &plain, "IDENTITY_REQUIRED", "identity"),
        (no_run(charge("{}")), &ever(&plain), "IDENTITY_REQUIRED", "identity"),
        (no_run(with_ids(&[("a", "b")])), &plain, "RUN_REQUIRED", "identity.run_id"),
        (no_run(charge(r#"{"order":1}"#)), &policy, "RUN_REQUIRED", "identity.run_id"),
        (charge("{}"), &policy, "IDENTITY_POINTER_EMPTY", "arguments_json/order"),
        (charge(r#"{"order":null}"#), &policy, "IDENTITY_POINTER_EMPTY", "arguments_json/order"),
        (charge(r#"{"order":[1]}"#), &policy, "IDENTITY_NOT_SCALAR", "arguments_json/order"),
        (charge(r#"{"order":{}}"#), &policy, "IDENTITY_NOT_SCALAR", "arguments_json/order"),
        (charge(r#"{"order":""}"#), &policy, "IDENTITY_POINTER_EMPTY", "arguments_json/order"),
        (
            charge(r#"{"order":" \u3000\n"}"#),
            &policy,
            "IDENTITY_POINTER_EMPTY",
            "arguments_json/order",
        ),
        (with_key(" k"), &policy, "IDEMPOTENCY_KEY_INVALID", "identity.idempotency_key"),
        (with_ids(&[("a", " ")]), &policy, "BUSINESS_IDS_INVALID", "identity.business_ids[\"a\"]"),
    ] {
        let error = sample.identify(recipe).expect_err(reason);
        assert_eq!((error.reason(), error.field().as_str()), (reason, field), "{error}");
    }
    assert!(no_run(with_ids(&[("a", "b")])).identify(&ever(&plain)).is_ok());
    assert!(no_run(charge(r#"{"order":1}"#)).identify(&ever(&policy)).is_ok());
    assert!(no_run(no_step(with_key("k"))).identify(&plain).is_ok());
}

/// Case 21.
#[test]
fn an_idempotency_key_is_a_short_clean_text_byte_by_byte() {
    let plain = Recipe::default();
    let too_long = TextFault::TooLong { bytes: 256, bytes_max: 255 };
    for (key, why) in [
        (" ", TextFault::Blank),
        ("\u{2003}", TextFault::Blank),
        ("k\0", TextFault::ControlCharacter),
        ("\0", TextFault::ControlCharacter),
        ("a\nb", TextFault::ControlCharacter),
        ("a\u{7f}", TextFault::ControlCharacter),
        ("a\u{9f}b", TextFault::ControlCharacter),
        (" k1", TextFault::OuterBlank),
        ("k1 ", TextFault::OuterBlank),
        ("k1\u{a0}", TextFault::OuterBlank),
        (&"x".repeat(256), too_long),
        (&"é".repeat(128), too_long),
    ] {
        let error = IdentityError::BadIdempotencyKey { why };
        assert_eq!(with_key(key).identify(&plain), Err(error), "{key:?}");
    }
    for key in ["k", "a b", "\u{200b}", &"x".repeat(255), "\u{1f600}"] {
        assert!(with_key(key).identify(&plain).is_ok(), "{key:?}");
    }
    assert_ne!(with_key("k1").key(&plain), with_key("K1").key(&plain));
    assert_ne!(with_key("caf\u{e9}").key(&plain), with_key("cafe\u{301}").key(&plain));
    // The tool is not hashed: the same key with another tool must meet this row and mismatch.
    let mail = Sample { tool: "mail".to_owned(), run_id: "r2".to_owned(), ..with_key("k1") };
    assert_eq!(mail.key(&plain), with_key("k1").key(&plain));
}

#[test]
fn business_ids_are_few_short_clean_texts() {
    let plain = Recipe::default();
    let long = |bytes: usize| "x".repeat(bytes);
    for (name, value, reason) in [
        ("", "v", "BUSINESS_IDS_INVALID"),
        (" ", "v", "BUSINESS_IDS_INVALID"),
        ("a\0", "v", "BUSINESS_IDS_INVALID"),
        (&long(256), "v", "BUSINESS_IDS_INVALID"),
        ("a", "", "BUSINESS_IDS_INVALID"),
        ("a", "\u{3000}", "BUSINESS_IDS_INVALID"),
        ("a", "1\n2", "BUSINESS_IDS_INVALID"),
        ("a", &long(1025), "BUSINESS_IDS_INVALID"),
    ] {
        let error = with_ids(&[(name, value)]).identify(&plain).expect_err(reason);
        assert_eq!(error.reason(), reason, "{name:?} {value:?}");
        assert!(error.to_string().len() < 300 && error.field().len() < 300);
    }
    assert!(with_ids(&[(&long(255), &long(1024))]).identify(&plain).is_ok());

    let many = |count: usize| Sample {
        business_ids: (0..count).map(|n| (format!("id{n}"), "v".to_owned())).collect(),
        ..charge("{}")
    };
    assert!(many(32).identify(&plain).is_ok());
    let count = 33;
    assert_eq!(many(33).identify(&plain), Err(IdentityError::TooManyBusinessIds { count }));

    let doubled = with_ids(&[("e\u{301}", "1"), ("\u{e9}", "2")]);
    let name = "\u{e9}".to_owned();
    assert_eq!(doubled.identify(&plain), Err(IdentityError::DoubledBusinessId { name }));
    assert_eq!(
        with_ids(&[("e\u{301}", "cafe\u{301}")]).key(&plain),
        with_ids(&[("\u{e9}", "caf\u{e9}")]).key(&plain)
    );
}

/// Cases 24 and 25.
#[test]
fn identity_values_are_compared_as_text() {
    let policy = by_pointers(&["/order"], &[]);
    let key = |order: &str| charge(&format!("{{\"order\":{order}}}")).key(&policy);
    for (one, other) in [
        ("8812", r#""8812""#),
        ("8812.0", "8.812e3"),
        ("10", r#""10""#),
        ("-0", r#""0""#),
        ("1e21", r#""1e+21""#),
        ("true", r#""true""#),
        ("\"caf\u{e9}\"", "\"cafe\u{301}\""),
    ] {
        assert_eq!(key(one), key(other), "{one} {other}");
    }
    for (one, other) in [
        ("9007199254740992", "9007199254740993"),
        ("10", r#""10.0""#),
        (r#""o-17""#, r#""O-17""#),
        (r#""o-17""#, r#""o-17 ""#),
        ("true", "false"),
        ("0", "false"),
    ] {
        assert_ne!(key(one), key(other), "{one} {other}");
    }
}

#[test]
fn normalize_steps_run_in_their_order_and_end_in_nfc() {
    use Normalize::{CollapseWhitespace, Lowercase, Trim};
    for (steps, text, expected) in [
        (&[][..], " A  b ", " A  b "),
        (&[Trim], "\u{a0}\u{2003} A  b\t", "A  b"),
        (&[Lowercase], "Ada@EXAMPLE.org", "ada@example.org"),
        (&[Lowercase], "ΟΔΟΣ ΣΑΣ", "οδος σας"),
        (&[Lowercase], "Straße", "straße"),
        (&[CollapseWhitespace], "\u{3000}A \n\u{85} b ", " A b "),
        (&[Trim, Lowercase, CollapseWhitespace], " A\u{200b}  B ", "a\u{200b} b"),
        (&[CollapseWhitespace, Trim], "\t a \t", "a"),
        // Lower-cased, U+0130 is i and U+0307, which must follow the dot below it.
        (&[Lowercase], "\u{130}\u{323}", "\u{1ecb}\u{307}"),
        (&[Lowercase], "I\u{307}\u{323}", "\u{1ecb}\u{307}"),
    ] {
        let sample =
            charge(&format!("{{\"to\":\"{}\"}}", text.replace('\n', "\\n").replace('\t', "\\t")));
        let expected = format!(
            "[\"intent-ledger/1\",\"acme\",\"POLICY\",\"charge\",\"r1\",{{\"/to\":\"{expected}\"}}]"
        );
        assert_eq!(sample.key(&by_pointers(&["/to"], steps)), hash_of(&expected), "{text:?}");
    }
}

/// Case 22.
#[test]
fn parts_cannot_run_into_one_another() {
    let recipe = Recipe::default();
    let sample = |[namespace, tool, run_id, step_id]: [&str; 4]| Sample {
        namespace: namespace.to_owned(),
        tool: tool.to_owned(),
        run_id: run_id.to_owned(),
        step_id: step_id.to_owned(),
        ..charge("{}")
    };
    for joint in ["|", ":", "/", "\"", "\",\"", ",", "\\", " x ", "\u{1f}", "null", ""] {
        let (ab, bc) = (&format!("a{joint}b"), &format!("b{joint}c"));
        for (one, other) in [
            ([ab, "c", "r", "s"], ["a", bc, "r", "s"]),
            (["n", ab, "c", "s"], ["n", "a", bc, "s"]),
            (["n", "t", ab, "c"], ["n", "t", "a", bc]),
        ] {
            assert_ne!(sample(one).key(&recipe), sample(other).key(&recipe), "{joint:?}");
        }
    }
    let ids = with_ids(&[("a", "1"), ("b", "2")]);
    assert_ne!(ids.key(&recipe), with_ids(&[("a", "1\",\"b\":\"2")]).key(&recipe));
    assert_ne!(ids.key(&recipe), with_ids(&[("b", "1"), ("a", "2")]).key(&recipe));
    // One text in two roles.
    let key = with_key("1");
    let ids = with_ids(&[("1", "1")]);
    assert_ne!(key.key(&recipe), ids.key(&recipe));
}

/// Case 26.
#[test]
fn the_hash_version_is_part_of_the_key() {
    let next = Recipe { hash_version: 2, ..Recipe::default() };
    let text = r#"["intent-ledger/2","acme","IDEMPOTENCY_KEY","k1"]"#;
    assert_eq!(with_key("k1").key(&next), hash_of(text));
    assert_ne!(with_key("k1").key(&next), with_key("k1").key(&Recipe::default()));
}

#[test]
fn a_key_has_one_spelling() {
    let key = with_key("k1").key(&Recipe::default());
    let text = key.to_string();
    assert_eq!(text.parse(), Ok(key));
    assert_eq!(Key::from_bytes(*key.as_bytes()), key);
    for bad in [text.to_uppercase(), text[1..].to_owned(), format!("{text}0"), format!(" {text}")] {
        assert_eq!(bad.parse::<Key>(), Err(HexError), "{bad}");
    }
    assert_eq!("é".repeat(32).parse::<Key>(), Err(HexError));
}

#[test]
fn the_downstream_key_holds_for_all_attempts_or_for_one() {
    let key = Key([7; 32]);
    let hex = "07".repeat(32);
    let all = downstream_digest(&key, None, 1);
    assert_eq!(all, hash_of(&format!("[\"intent-ledger/1/downstream\",\"{hex}\"]")).0);
    let second = downstream_digest(&key, Some(2), 1);
    assert_eq!(second, hash_of(&format!("[\"intent-ledger/1/downstream\",\"{hex}\",2]")).0);

    let uuid = downstream_uuid([0xff; 32]);
    assert_eq!(uuid.to_string(), "ffffffff-ffff-8fff-bfff-ffffffffffff");
    assert_eq!(downstream_uuid(all).get_version_num(), 8);
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let name = "[ab|,\"]{1,2}";
    let names = vec(name, 5);
    let ids = btree_map("[ab]", "[ab|]{1,2}", 0..3);
    (names, ids, 0..2, any::<bool>()).prop_map(|(names, business_ids, amount, keyed)| Sample {
        namespace: names[0].clone(),
        tool: names[1].clone(),
        run_id: names[2].clone(),
        step_id: names[3].clone(),
        idempotency_key: if keyed && business_ids.is_empty() {
            names[4].clone()
        } else {
            String::new()
        },
        business_ids,
        arguments: Json::parse(&format!("{{\"amount\":{amount}}}")).expect("arguments"),
    })
}

proptest! {
    #[test]
    fn calls_meet_exactly_if_what_names_them_is_the_same(a in any_sample(), b in any_sample()) {
        // b with some of a's parts, so that near misses are common.
        let near = Sample { namespace: a.namespace.clone(), tool: a.tool.clone(), ..b.clone() };
        for other in [&b, &near] {
            let same = a.namespace == other.namespace
                && a.idempotency_key == other.idempotency_key
                && a.business_ids == other.business_ids
                && (!a.idempotency_key.is_empty()
                    || (a.tool == other.tool
                        && a.run_id == other.run_id
                        && (!a.business_ids.is_empty()
                            || (a.step_id == other.step_id && a.arguments == other.arguments))));
            let recipe = Recipe::default();
            prop_assert_eq!(same, a.key(&recipe) == other.key(&recipe));
        }
    }

    #[test]
    fn normalizing_twice_changes_nothing_more(text: String, steps in vec(0..3usize, 0..4)) {
        let steps: Vec<_> = steps
            .into_iter()
            .map(|step| [Normalize::Trim, Normalize::Lowercase, Normalize::CollapseWhitespace][step])
            .collect();
        let place = IdentityPointer { pointer: Pointer::default(), normalize: steps };
        if let Ok(once) = identity_text(&place, &Json::String(nfc(&text).into_owned())) {
            prop_assert_eq!(identity_text(&place, &Json::String(once.clone())), Ok(once));
        }
    }
}
