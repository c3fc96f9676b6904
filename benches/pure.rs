//! The pure parts by themselves: what a call costs before and after the store.
//!
//! `cargo bench --bench pure`; a word after `--` runs only what has it in its name.

use std::{collections::BTreeMap, hint::black_box};

use criterion::{Criterion, criterion_group, criterion_main};
use intent_ledger::domain::{
    canonical_json::Json,
    decision::{BeginCall, Candidate, Decision, Facts, decide},
    fingerprint::fingerprint,
    identity::{Call, KeyBasis, downstream_digest, identify},
    intent::{Intent, RecipeVersion, ResultBody},
    key_lint::lint,
    report::{Complete, complete},
    time::Timestamp,
    tool::ToolPolicy,
};

/// What most calls look like.
const SMALL: &str = r#"{"order":"o-17","amount":1200,"memo":"invoice 17"}"#;

const NOW: Timestamp = Timestamp::from_micros(1_770_000_000_000_000);

/// Forty items of an order, not in canonical form: spaces, exponents, escapes, an order of their own.
fn large() -> String {
    let items: Vec<String> = (0..40)
        .map(|number| {
            format!(
                r#"{{ "sku": "A-{number}", "price": {number}.50e0, "name": "caf\u00e9 {number}", "count": 1 }}"#
            )
        })
        .collect();
    format!(r#"{{ "order": "o-17", "items": [ {} ] }}"#, items.join(", "))
}

/// A call of the tool `charge` that brings its own key.
fn call<'a>(arguments: &'a Json, business_ids: &'a BTreeMap<String, String>) -> Call<'a> {
    Call {
        namespace: "default",
        tool: "charge",
        run_id: "run-1",
        step_id: "",
        idempotency_key: "0f8fad5b-d9cb-469f-a165-70867728950e",
        business_ids,
        arguments,
    }
}

fn canonical_json(criterion: &mut Criterion) {
    for (name, text) in [("small", SMALL.to_owned()), ("large", large())] {
        let value = Json::parse(&text).expect("JSON");
        criterion.bench_function(&format!("canonical_json/parse/{name}"), |bencher| {
            bencher.iter(|| Json::parse(black_box(&text)));
        });
        criterion.bench_function(&format!("canonical_json/write/{name}"), |bencher| {
            bencher.iter(|| black_box(&value).canonical());
        });
    }
}

fn identity(criterion: &mut Criterion) {
    let policy = ToolPolicy::default();
    let business_ids = BTreeMap::new();
    let arguments = Json::parse(SMALL).expect("JSON");
    let call = call(&arguments, &business_ids);
    let key = identify(&policy.recipe, &call).expect("an identity").key;
    criterion.bench_function("key", |bencher| {
        bencher.iter(|| identify(&policy.recipe, black_box(&call)));
    });
    criterion.bench_function("downstream_key", |bencher| {
        bencher.iter(|| downstream_digest(black_box(&key), None, policy.recipe.hash_version));
    });
    criterion.bench_function("fingerprint", |bencher| {
        bencher.iter(|| {
            let basis = KeyBasis::IdempotencyKey;
            fingerprint(&policy.recipe, &[], black_box(&call), &key, basis)
        });
    });
}

/// What every Begin pays for a look at its key.
fn key_lint(criterion: &mut Criterion) {
    let keys = [
        ("order", "o-17"),
        ("uuid", "0f8fad5b-d9cb-469f-a165-70867728950e"),
        ("hash", "9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"),
        ("time", "mail-2026-02-02T02:40:00Z"),
    ];
    for (name, key) in keys {
        criterion.bench_function(&format!("key_lint/{name}"), |bencher| {
            bencher.iter(|| lint([black_box(key)], NOW));
        });
    }
}

fn decision(criterion: &mut Criterion) {
    let policy = ToolPolicy::default();
    let candidate = candidate(&policy);
    let call = begin_call();
    let facts = Facts::at(NOW);
    criterion.bench_function("decision/new", |bencher| {
        bencher.iter(|| decide(None, black_box(&call), &candidate, &policy, &facts));
    });

    let started = started(&call, &candidate, &policy);
    let report = Complete {
        attempt_id: call.attempt_id,
        result: ResultBody::reported(
            Some(br#"{"id": "ch_1"}"#.to_vec()),
            "application/json".to_owned(),
            None,
            policy.max_result_bytes,
        ),
        downstream_ref: None,
    };
    criterion.bench_function("report/complete", |bencher| {
        bencher.iter(|| complete(black_box(&started), &report, NOW));
    });

    let completed = complete(&started, &report, NOW).expect("a settlement").intent;
    let again = BeginCall { attempt_id: uuid::Uuid::from_u128(2), ..call };
    criterion.bench_function("decision/replay", |bencher| {
        bencher.iter(|| decide(Some(black_box(&completed)), &again, &candidate, &policy, &facts));
    });
}

fn candidate(policy: &ToolPolicy) -> Candidate {
    let business_ids = BTreeMap::new();
    let arguments = Json::parse(SMALL).expect("JSON");
    let call = call(&arguments, &business_ids);
    let identified = identify(&policy.recipe, &call).expect("an identity");
    Candidate {
        recipe: RecipeVersion { policy: 0, hash: policy.recipe.hash_version },
        key: identified.key,
        downstream: downstream_digest(&identified.key, None, policy.recipe.hash_version),
        basis: identified.basis,
        print: fingerprint(&policy.recipe, &[], &call, &identified.key, identified.basis),
        kept: BTreeMap::new(),
    }
}

fn begin_call() -> BeginCall {
    BeginCall {
        namespace: "default".to_owned(),
        tool: "charge".to_owned(),
        run_id: "run-1".to_owned(),
        step_id: String::new(),
        attempt_id: uuid::Uuid::from_u128(1),
        caller: "bench".to_owned(),
        tool_call_id: String::new(),
        lease: None,
        labels: BTreeMap::new(),
        free_text: Vec::new(),
        arguments_json: SMALL.to_owned(),
    }
}

/// The row that a first Begin writes.
fn started(call: &BeginCall, candidate: &Candidate, policy: &ToolPolicy) -> Intent {
    match decide(None, call, candidate, policy, &Facts::at(NOW)) {
        Ok(Decision::Execute { write: Some(written), .. }) => *written.intent,
        other => panic!("a new call executes: {other:?}"),
    }
}

criterion_group!(pure, canonical_json, identity, key_lint, decision);
criterion_main!(pure);
