//! The vectors in `proto/vectors/` hold for this code too. `check.py` beside them computes them a
//! second time without it.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::canonical_json::{Json, Pointer};
use super::fingerprint::fingerprint;
use super::identity::{
    Call, HASH_VERSION, Identified, IdentityPointer, Normalize, Recipe, Scope, downstream_digest,
    downstream_uuid, identify,
};

/// What a vector expects, or the reason why its call is refused.
type Computed = Result<Value, &'static str>;

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn pointer(value: &Value) -> Pointer {
    Pointer::parse(value.as_str().expect("a string")).expect("a pointer")
}

/// A long text is given as a list of [piece, times].
fn written_out(value: &Value) -> String {
    let pieces = list(value).iter().map(|piece| {
        let times = piece[1].as_u64().expect("how many times") as usize;
        piece[0].as_str().expect("a piece").repeat(times)
    });
    value.as_str().map_or_else(|| pieces.collect(), str::to_owned)
}

fn recipe(vector: &Value) -> Recipe {
    let recipe = &vector["recipe"];
    let identity = list(&recipe["identity"]).iter().map(|place| IdentityPointer {
        pointer: pointer(&place["pointer"]),
        normalize: list(&place["normalize"])
            .iter()
            .map(|step| match step.as_str() {
                Some("trim") => Normalize::Trim,
                Some("lowercase") => Normalize::Lowercase,
                Some("collapse_whitespace") => Normalize::CollapseWhitespace,
                _ => panic!("{step} is no step of normalize"),
            })
            .collect(),
    });
    Recipe {
        hash_version: recipe["hash_version"].as_u64().map_or(HASH_VERSION, |v| v as u32),
        identity: identity.collect(),
        scope: if text(recipe, "scope") == "namespace" { Scope::Namespace } else { Scope::Run },
        free_text: list(&recipe["free_text"]).iter().map(pointer).collect(),
    }
}

/// Hands the vector's call and its identity to `compute`.
fn with_call(
    vector: &Value,
    compute: impl FnOnce(&Recipe, &Call<'_>, &Identified) -> Value,
) -> Computed {
    let call = &vector["call"];
    let arguments = call["arguments_json"].as_str().unwrap_or("{}");
    let arguments = Json::parse(arguments).map_err(|error| error.reason())?;
    let ids = call["business_ids"].as_object().into_iter().flatten();
    let business_ids: BTreeMap<String, String> = ids
        .map(|(name, value)| (name.clone(), value.as_str().expect("a string").to_owned()))
        .collect();
    let call = Call {
        namespace: text(call, "namespace"),
        tool: text(call, "tool"),
        run_id: text(call, "run_id"),
        step_id: text(call, "step_id"),
        idempotency_key: text(call, "idempotency_key"),
        business_ids: &business_ids,
        arguments: &arguments,
    };
    let recipe = recipe(vector);
    let identified = identify(&recipe, &call).map_err(|error| error.reason())?;
    Ok(compute(&recipe, &call, &identified))
}

fn canonical_json_vector(vector: &Value) -> Computed {
    let value = Json::parse(&written_out(&vector["text"])).map_err(|error| error.reason())?;
    Ok(json!({ "canonical": value.canonical() }))
}

fn key_vector(vector: &Value) -> Computed {
    with_call(vector, |recipe, _, identified| {
        let downstream = |attempt| downstream_digest(&identified.key, attempt, recipe.hash_version);
        json!({
            "basis": identified.basis.as_str(),
            "overridden": identified.overridden,
            "key": identified.key.to_string(),
            "downstream_key": const_hex::encode(downstream(None)),
            "downstream_key_of_attempt_2": const_hex::encode(downstream(Some(2))),
            "downstream_uuid": downstream_uuid(downstream(None)).to_string(),
        })
    })
}

fn fingerprint_vector(vector: &Value) -> Computed {
    with_call(vector, |recipe, call, identified| {
        let declared: Vec<_> = list(&vector["declared_free_text"]).iter().map(pointer).collect();
        let printed = fingerprint(recipe, &declared, call, &identified.key, identified.basis);
        json!({
            "basis": identified.basis.as_str(),
            "fingerprint": printed.fingerprint.to_string(),
        })
    })
}

/// Every vector computes to what it expects, and two share their hash exactly if they say so.
fn check(file: &str, compute: fn(&Value) -> Computed, hash_field: &str) {
    let vectors: Vec<Value> = serde_json::from_str(file).expect("a list of vectors");
    let mut names = HashSet::new();
    let mut hash_of = HashMap::new();
    for vector in &vectors {
        let name = text(vector, "name");
        assert!(names.insert(name), "{name} stands twice");
        let computed = match compute(vector) {
            Ok(computed) => computed,
            Err(reason) => {
                assert_eq!(vector["error"], reason, "{name}");
                continue;
            }
        };
        for (field, value) in computed.as_object().expect("fields") {
            let expected = match field.as_str() {
                "canonical" => Value::String(written_out(&vector[field])),
                _ => vector[field].clone(),
            };
            assert_eq!(*value, expected, "{name}: {field}");
        }
        let hash = text(&computed, hash_field).to_owned();
        if let Some(hashed) = vector["hashed"].as_str() {
            assert_eq!(hash, const_hex::encode(Sha256::digest(hashed)), "{name}: hashed");
        }
        let twin = hash_of.values().any(|other| *other == hash);
        assert_eq!(twin, vector["same_as"].is_string(), "{name}: same_as");
        if twin {
            assert_eq!(hash_of.get(text(vector, "same_as")), Some(&hash), "{name}: same_as");
        }
        hash_of.insert(name, hash);
    }
}

#[test]
fn canonical_json_vectors_hold() {
    check(
        include_str!("../../proto/vectors/canonical_json.json"),
        canonical_json_vector,
        "canonical",
    );
}

#[test]
fn key_vectors_hold() {
    check(include_str!("../../proto/vectors/keys.json"), key_vector, "key");
}

#[test]
fn fingerprint_vectors_hold() {
    check(include_str!("../../proto/vectors/fingerprints.json"), fingerprint_vector, "fingerprint");
}
