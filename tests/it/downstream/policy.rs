//! The policy of `docs/downstream.md` reads what the simulator says.

use intent_ledger::{
    domain::verdict::Answer,
    policy::{
        Policy,
        status::{Face, HttpAnswer, Object, Question, Standing, judge_objects},
    },
    proto::status_v1::EffectState,
};

use super::Downstream;

/// More than any result here.
const RESULT_BYTES_MAX: u64 = 4096;

/// The policy that the page shows.
fn documented() -> Policy {
    let page = include_str!("../../../docs/downstream.md");
    let toml = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    Policy::from_text(toml.expect("a policy on the page")).unwrap()
}

fn question() -> Question {
    Question {
        downstream_key: "k1".into(),
        downstream_ref: None,
        key: "00".into(),
        business: Default::default(),
        tool: "send_email".into(),
        namespace: "default".into(),
    }
}

/// What the policy makes of the HTTP face's answer.
async fn over_http(downstream: &Downstream, policy: &Policy) -> Answer {
    let endpoint = policy.status("default", "send_email").expect("an endpoint");
    let Face::Http(face) = &endpoint.face else { panic!("{endpoint:?}") };
    let url = face.url(&question()).unwrap();
    let address = downstream.running.http.to_string();
    let url = url.replace("127.0.0.1:7080", &address);
    assert!(url.contains(&address), "{url}");
    let answer = downstream.http.client.get(url).send().await.unwrap();
    let status = answer.status().as_u16();
    let text = |value: &reqwest::header::HeaderValue| value.to_str().unwrap().to_owned();
    let headers: Vec<(String, String)> =
        answer.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let body = answer.bytes().await.unwrap();
    let answer = HttpAnswer { status, headers: &headers, body: &body, cut: false };
    face.judge(&answer, &question(), RESULT_BYTES_MAX)
}

/// What the ledger makes of the gRPC face's answer.
async fn over_grpc(downstream: &Downstream) -> Option<Answer> {
    let seen = downstream.ask_grpc("k1", "").await.ok()?;
    let standing = match seen.state {
        EffectState::Unspecified => Standing::Unspecified,
        EffectState::Executed => Standing::Executed,
        EffectState::NotExecuted => Standing::NotExecuted,
        EffectState::Running => Standing::Running,
    };
    let objects = seen.effects.into_iter().map(|(key, reference, result)| Object {
        downstream_key: key,
        downstream_ref: reference,
        result: result.into_bytes(),
        content_type: String::new(),
    });
    Some(judge_objects(standing, objects.collect(), &question(), RESULT_BYTES_MAX))
}

/// An answer in a word, with its references.
fn word(answer: &Answer) -> String {
    match answer {
        Answer::Executed { downstream_ref, .. } => {
            format!("executed {}", downstream_ref.as_deref().unwrap_or("-"))
        }
        Answer::Several { downstream_refs, .. } => format!("several {}", downstream_refs.join(" ")),
        Answer::Absent => "absent".into(),
        Answer::Running => "running".into(),
        Answer::Unmapped { .. } => "unmapped".into(),
        Answer::Unreachable { .. } => "unreachable".into(),
        Answer::Taken { .. } => unreachable!("a status endpoint knows no other keys"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_of_the_documentation_reads_every_fault_as_the_contract_says() {
    let policy = documented();
    for (faults, http, grpc) in [
        ("", "executed eff-1", Some("executed eff-1")),
        ("effect_then_error", "executed eff-1", Some("executed eff-1")),
        ("twice", "several eff-1 eff-2", Some("several eff-1 eff-2")),
        ("late_effect=1h", "running", Some("running")),
        ("late_visibility=1h", "absent", Some("absent")),
        ("refused", "absent", Some("absent")),
        ("error_without_effect", "absent", Some("absent")),
        ("status_unmapped", "unmapped", Some("unmapped")),
        ("status_html", "unmapped", None),
        ("status_other_key", "unmapped", Some("unmapped")),
        ("status_shared_ref", "executed eff-shared", Some("executed eff-shared")),
        ("status_redirect", "unmapped", None),
        ("status_lies_absent", "absent", Some("absent")),
        ("refused,status_lies_done", "executed eff-0", Some("executed eff-0")),
        ("status_error", "unreachable", None),
    ] {
        let downstream = Downstream::plain().await;
        downstream.http.post("k1", faults).await.unwrap();
        let answer = over_http(&downstream, &policy).await;
        assert_eq!(word(&answer), http, "{faults}: {answer:?}");
        let answer = over_grpc(&downstream).await;
        assert_eq!(answer.as_ref().map(word).as_deref(), grpc, "{faults}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_faces_give_a_replay_what_the_call_was_answered() {
    let policy = documented();
    let downstream = Downstream::plain().await;
    let url = format!("{}/v1/effects", downstream.http.base);
    let request = downstream.http.client.post(url).header("idempotency-key", "k1");
    let answered = request.send().await.unwrap().bytes().await.unwrap();
    let seen = [over_http(&downstream, &policy).await, over_grpc(&downstream).await.unwrap()];
    for answer in seen {
        let Answer::Executed { result, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(result.bytes.as_deref(), Some(&answered[..]));
    }
}

#[test]
fn over_grpc_the_table_is_as_short_as_the_page_says() {
    let table = "grpc.target = \"http://127.0.0.1:7081\"\nvisibility = \"5s\"\n";
    let policy = Policy::from_text(&format!("[tools.t.downstream.status]\n{table}")).unwrap();
    let endpoint = policy.status("default", "t").expect("an endpoint");
    assert!(matches!(endpoint.face, Face::Grpc(_)), "{endpoint:?}");
}
