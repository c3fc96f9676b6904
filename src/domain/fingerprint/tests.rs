//! What binds, what does not, and what a mismatch can name.

use proptest::collection::btree_map;
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::domain::identity::{IdentityPointer, Scope};

fn pointers(texts: &[&str]) -> Vec<Pointer> {
    texts.iter().map(|text| Pointer::parse(text).expect("a pointer")).collect()
}

/// The tool of the cases: identity `/order`, free text `/memo`.
fn charge() -> Recipe {
    let place = |pointer| IdentityPointer { pointer, normalize: Vec::new() };
    Recipe {
        identity: pointers(&["/order"]).into_iter().map(place).collect(),
        free_text: pointers(&["/memo"]),
        scope: Scope::Run,
        ..Recipe::default()
    }
}

fn of(recipe: &Recipe, extra: &[&str], basis: KeyBasis, arguments: &str) -> Fingerprinted {
    let call = Call {
        namespace: "acme",
        tool: "charge",
        run_id: "r1",
        step_id: "",
        idempotency_key: "",
        business_ids: &BTreeMap::new(),
        arguments: &Json::parse(arguments).expect("arguments"),
    };
    fingerprint(recipe, &pointers(extra), &call, &Key::from_bytes([1; 32]), basis)
}

fn charged(arguments: &str) -> Fingerprinted {
    of(&charge(), &[], KeyBasis::Policy, arguments)
}

fn hash_of(text: &str) -> Fingerprint {
    Fingerprint(Sha256::digest(text).into())
}

fn names(differing: &[Pointer]) -> Vec<String> {
    differing.iter().map(Pointer::to_string).collect()
}

#[test]
fn identity_and_free_text_do_not_bind() {
    let arguments = r#"{"order":"o-17","amount":1200,"memo":"invoice 17","to":{"cc":"x"}}"#;
    for (recipe, extra, basis, binding) in [
        (charge(), &[][..], KeyBasis::Policy, r#"{"amount":1200,"to":{"cc":"x"}}"#),
        (charge(), &["/to/cc"], KeyBasis::Policy, r#"{"amount":1200,"to":{}}"#),
        (
            charge(),
            &[],
            KeyBasis::IdempotencyKey,
            r#"{"amount":1200,"order":"o-17","to":{"cc":"x"}}"#,
        ),
        (
            Recipe::default(),
            &[],
            KeyBasis::StepArguments,
            r#"{"amount":1200,"memo":"invoice 17","order":"o-17","to":{"cc":"x"}}"#,
        ),
        (
            Recipe::default(),
            &["/memo", "/nothing", "/to"],
            KeyBasis::BusinessIds,
            r#"{"amount":1200,"order":"o-17"}"#,
        ),
    ] {
        let expected = format!("[\"intent-ledger/1/fingerprint\",\"charge\",{binding}]");
        let fingerprinted = of(&recipe, extra, basis, arguments);
        assert_eq!(fingerprinted.fingerprint, hash_of(&expected), "{binding}");
    }
}

/// Cases 4, 8, 23, 24 and 25.
#[test]
fn binding_arguments_keep_their_type_and_their_exact_value() {
    let base = r#""order":"o-17","memo":"m""#;
    let print = |more: &str| charged(&format!("{{{base},{more}}}")).fingerprint;
    for (one, other) in [
        (r#""n":10"#, r#""n":1e1"#),
        (r#""n":-0.0"#, r#""n":0"#),
        (r#""n":1,"coupon":null"#, r#""n":1"#),
        ("\"n\":\"caf\u{e9}\"", "\"n\":\"cafe\u{301}\""),
        (r#""n":{"x":1,"y":2}"#, r#""n":{"y":2,"x":1}"#),
    ] {
        assert_eq!(print(one), print(other), "{one} {other}");
    }
    for (one, other) in [
        (r#""n":1200"#, r#""n":1250"#),
        (r#""n":10"#, r#""n":"10""#),
        (r#""n":9007199254740992"#, r#""n":9007199254740993"#),
        (r#""n":0.1"#, r#""n":0.10000000000000001"#),
        (r#""n":1,"coupon":"""#, r#""n":1"#),
        (r#""n":["debit","credit"]"#, r#""n":["credit","debit"]"#),
        (r#""n":[1]"#, r#""n":[1,null]"#),
        (r#""n":{}"#, r#""n":[]"#),
    ] {
        assert_ne!(print(one), print(other), "{one} {other}");
    }
}

/// Case 8.
#[test]
fn another_tool_is_another_fingerprint() {
    let arguments = Json::parse("{}").expect("arguments");
    let print = |tool| {
        let call = Call {
            namespace: "acme",
            tool,
            run_id: "",
            step_id: "",
            idempotency_key: "k1",
            business_ids: &BTreeMap::new(),
            arguments: &arguments,
        };
        let key = Key::from_bytes([1; 32]);
        fingerprint(&Recipe::default(), &[], &call, &key, KeyBasis::IdempotencyKey).fingerprint
    };
    assert_ne!(print("charge"), print("mail"));
}

/// Case 4.
#[test]
fn a_mismatch_names_the_members_that_differ_and_not_their_values() {
    let first = charged(r#"{"order":"o-17","amount":1200,"memo":"invoice 17"}"#).digests;
    for (arguments, expected, free_text) in [
        (r#"{"order":"o-17","amount":1200,"memo":"invoice 17"}"#, &[][..], false),
        (r#"{"order":"o-17","amount":1200,"memo":"payment"}"#, &[], true),
        (r#"{"order":"o-17","amount":1200}"#, &[], true),
        (r#"{"order":"o-17","amount":1250,"memo":"invoice 17"}"#, &["/amount"], false),
        (r#"{"order":"o-17","memo":"invoice 17","a/b":1}"#, &["/a~1b", "/amount"], false),
        (r#"{"amount":1250,"memo":1}"#, &["/amount"], true),
    ] {
        let other = charged(arguments).digests;
        assert_eq!(names(&first.differing(&other)), expected, "{arguments}");
        assert_eq!(names(&other.differing(&first)), expected, "{arguments}");
        assert_eq!(first.free_text_differs(&other), free_text, "{arguments}");
    }
    let bytes = first.as_bytes().to_vec();
    assert_eq!(bytes.len(), 8 + 1 + "amount".len() + 4);
}

#[test]
fn digests_are_salted_with_the_key() {
    let arguments = Json::parse(r#"{"amount":1}"#).expect("arguments");
    let digests = |key: u8| {
        let call = Call {
            namespace: "acme",
            tool: "charge",
            run_id: "",
            step_id: "",
            idempotency_key: "k",
            business_ids: &BTreeMap::new(),
            arguments: &arguments,
        };
        let key = Key::from_bytes([key; 32]);
        fingerprint(&Recipe::default(), &[], &call, &key, KeyBasis::IdempotencyKey).digests
    };
    assert_eq!(names(&digests(1).differing(&digests(2))), ["/amount"]);
    assert!(digests(1).free_text_differs(&digests(2)));
}

#[test]
fn only_so_many_members_are_remembered_and_the_rest_is_not_guessed_at() {
    let members = |from: usize, to: usize| {
        let members: Vec<_> = (from..to).map(|n| format!("\"m{n:03}\":{n}")).collect();
        of(&Recipe::default(), &[], KeyBasis::StepArguments, &format!("{{{}}}", members.join(",")))
    };
    let (all, some) = (members(0, 70).digests, members(1, 70).digests);
    // m064 is remembered only where m000 is missing, and does not differ.
    assert_eq!(names(&all.differing(&some)), ["/m000"]);
    assert_eq!(names(&members(0, 64).digests.differing(&members(0, 63).digests)), ["/m063"]);
    assert_eq!(names(&members(0, 70).digests.differing(&members(0, 69).digests)), [""; 0]);
    assert_ne!(members(0, 70).fingerprint, members(0, 69).fingerprint);
    assert_eq!(all.as_bytes().len(), 8 + 64 * 9);

    let long = format!(r#"{{"{}":1,"{}":1}}"#, "x".repeat(255), "x".repeat(256));
    let long = of(&Recipe::default(), &[], KeyBasis::StepArguments, &long).digests;
    assert_eq!(long.as_bytes().len(), 8 + 1 + 255 + 4);
    assert_eq!(ArgumentDigests::from_bytes(long.as_bytes().to_vec()), Ok(long));
}

#[test]
fn arguments_that_are_no_object_have_a_fingerprint_and_no_members() {
    let one = of(&Recipe::default(), &[], KeyBasis::StepArguments, "[1]");
    let other = of(&Recipe::default(), &[], KeyBasis::StepArguments, "[2]");
    assert_ne!(one.fingerprint, other.fingerprint);
    assert_eq!(one.digests.differing(&other.digests), []);
}

#[test]
fn bytes_that_encode_did_not_write_are_refused() {
    let good = charged(r#"{"a":1,"b":2}"#).digests.as_bytes().to_vec();
    let member = |name: &[u8]| [&[name.len() as u8], name, &[0; 4]].concat();
    assert!(ArgumentDigests::from_bytes(good.clone()).is_ok());
    let many: Vec<u8> = (0..65u8).flat_map(|n| member(&[n])).collect();
    for bad in [
        &[][..],
        &good[..7],
        &good[..good.len() - 1],
        &[&good[..], &[3]].concat(),
        &[&[0; 8][..], &member(b"b"), &member(b"a")].concat(),
        &[&[0; 8][..], &member(b"a"), &member(b"a")].concat(),
        &[&[0; 8][..], &member(b"\xff")].concat(),
        &[&[0; 8][..], &many].concat(),
    ] {
        assert_eq!(ArgumentDigests::from_bytes(bad.to_vec()), Err(DigestsError), "{bad:?}");
    }
}

#[test]
fn a_fingerprint_has_one_spelling() {
    let print = charged("{}").fingerprint;
    assert_eq!(print.to_string().parse(), Ok(print));
    assert_eq!(print.to_string().to_uppercase().parse::<Fingerprint>(), Err(HexError));
    assert_eq!(Fingerprint::from_bytes(*print.as_bytes()), print);
}

proptest! {
    #[test]
    fn what_differs_is_named_exactly(
        a in btree_map("[a-d\u{e9}/~]{0,2}", 0..3u8, 0..6),
        b in btree_map("[a-d\u{e9}/~]{0,2}", 0..3u8, 0..6),
    ) {
        let [one, other] = [&a, &b].map(|members| {
            let members = members.iter();
            let members: Vec<_> = members.map(|(name, n)| format!("\"{name}\":{n}")).collect();
            let text = format!("{{{}}}", members.join(","));
            of(&Recipe::default(), &[], KeyBasis::BusinessIds, &text)
        });
        let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
        let expected: Vec<_> = keys
            .into_iter()
            .filter(|name| a.get(*name) != b.get(*name))
            .map(|name| Pointer::member(name))
            .collect();
        prop_assert_eq!(one.digests.differing(&other.digests), expected);
        prop_assert_eq!(a == b, one.fingerprint == other.fingerprint);
        prop_assert_eq!(ArgumentDigests::from_bytes(one.digests.as_bytes().to_vec()), Ok(one.digests));
    }

    #[test]
    fn no_bytes_make_decode_panic(bytes: Vec<u8>) {
        if let Ok(digests) = ArgumentDigests::from_bytes(bytes.clone()) {
            prop_assert_eq!(digests.as_bytes(), bytes);
        }
    }
}
