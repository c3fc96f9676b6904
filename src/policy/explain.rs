//! What a policy makes of one sample call, for people who write policies.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use uuid::Uuid;

use super::{
    ApprovalCall, Need, Policy,
    file::name_problem,
    status::{Face, MissingValue, Question, StatusEndpoint},
};
use crate::domain::{
    canonical_json::{Json, JsonError},
    decision::{BeginCall, Candidate, Decision, Facts, decide, decide_unrecorded},
    fingerprint::{Fingerprint, fingerprint},
    identity::{Call, IdentityError, Key, KeyBasis, downstream_digest, identify, named_ids},
    intent::RecipeVersion,
    time::Timestamp,
    tool::{Class, ToolPolicy},
};

/// A sample call. An empty text is an absent one.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// The tenant.
    pub namespace: &'a str,
    /// The tool that is called.
    pub tool: &'a str,
    /// The run of the agent.
    pub run_id: &'a str,
    /// The step of the run.
    pub step_id: &'a str,
    /// The caller's own key.
    pub idempotency_key: &'a str,
    /// What the action is about, by name.
    pub business_ids: &'a BTreeMap<String, String>,
    /// The caller's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The arguments as JSON text; empty means `{}`.
    pub arguments_json: &'a str,
}

/// What a policy makes of a sample call that nobody has made before.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// What holds for the tool.
    pub rule: Arc<ToolPolicy>,
    /// Whether it needs a person.
    pub need: Need,
    /// The expression by which it does, if the tool has one.
    pub approval_when: Option<String>,
    /// What the first Begin of it would be answered.
    pub decision: Decision,
    /// What the call is known by; `None` for a tool that is not recorded.
    pub identity: Option<ExplainedIdentity>,
    /// The key to send downstream; `None` unless the answer is to execute and recorded.
    pub downstream_key: Option<String>,
    /// The lease that is granted; `None` likewise.
    pub lease: Option<Duration>,
    /// How the downstream would be asked what became of it; `None` where it cannot be asked.
    pub asked: Option<Asked>,
    /// The warnings that the answer would carry.
    pub warnings: Vec<&'static str>,
}

/// How the downstream would be asked what became of a call.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Where.
    pub endpoint: Arc<StatusEndpoint>,
    /// The URL of a question over HTTP, or why it cannot be asked; `None` over gRPC.
    pub url: Option<Result<String, MissingValue>>,
}

/// What a call is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExplainedIdentity {
    /// Which intent it is.
    pub key: Key,
    /// What the key was made from.
    pub basis: KeyBasis,
    /// The hash of the arguments that no repeat may change.
    pub fingerprint: Fingerprint,
}

/// Why a sample is not a call that the ledger would take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// The name of the namespace or of the tool is not one.
    #[error("the name of the {whose} {problem}")]
    Name {
        /// Whose name it is: `namespace` or `tool`.
        whose: &'static str,
        /// What is wrong with it; reads after the name.
        problem: String,
    },
    /// The arguments are not JSON as the ledger reads it.
    #[error("the arguments cannot be read")]
    Arguments(#[from] JsonError),
    /// The arguments are JSON, but not an object.
    #[error("the arguments are not a JSON object")]
    NotAnObject,
    /// The call has no key.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// What `policy` makes of a sample call that nobody has made before.
///
/// # Errors
///
/// Where the sample itself is not a call that the ledger would take, such as one without a run for
/// a tool whose identity holds within one.
pub fn explain(policy: &Policy, sample: &Sample<'_>) -> Result<Explanation, ExplainError> {
    for (whose, name) in [("namespace", sample.namespace), ("tool", sample.tool)] {
        if let Some(problem) = name_problem(name) {
            return Err(ExplainError::Name { whose, problem });
        }
    }
    let text = if sample.arguments_json.is_empty() { "{}" } else { sample.arguments_json };
    let arguments = Json::parse(text)?;
    if !matches!(arguments, Json::Object(_)) {
        return Err(ExplainError::NotAnObject);
    }

    let rule = Arc::clone(policy.tool(sample.namespace, sample.tool));
    let asked_about = ApprovalCall {
        arguments_json: text,
        tool: sample.tool,
        run_id: sample.run_id,
        labels: sample.labels,
    };
    let need = policy.approval_need(sample.namespace, &asked_about);
    let approval_when = policy.approval_when(sample.namespace, sample.tool).map(str::to_owned);
    let unrecorded = |decision| Explanation {
        rule: Arc::clone(&rule),
        need: Need::NoGate,
        approval_when: None,
        decision,
        identity: None,
        downstream_key: None,
        lease: None,
        asked: None,
        warnings: vec![],
    };
    let facts = Facts { approval_required: need.is_there(), ..Facts::at(Timestamp::default()) };
    if rule.class != Class::Effectful {
        return Ok(unrecorded(decide_unrecorded(&rule, &facts)));
    }
    let candidate = match candidate(policy, &rule, sample, &arguments) {
        // The policy is asked before the key.
        Err(_) if rule.refuses_tool() => return Ok(unrecorded(decide_unrecorded(&rule, &facts))),
        identified => identified?,
    };
    let (candidate, mut warnings) = candidate;
    let decision = decide(None, &begin_call(sample, text), &candidate, &rule, &facts)
        .expect("a row that is not there yet has no transition to refuse");
    let (mut downstream_key, mut lease) = (None, None);
    if let Decision::Execute { write: Some(written), lease_clamped, .. } = &decision {
        downstream_key = Some(written.intent.downstream_key());
        lease = written.intent.current().map(|attempt| attempt.lease_expires_at.since(facts.now));
        warnings.extend(lease_clamped.then_some("lease_clamped"));
    }
    let Candidate { key, basis, ref print, ref kept, .. } = candidate;
    let identity = Some(ExplainedIdentity { key, basis, fingerprint: print.fingerprint });
    let asked = downstream_key.as_deref().and_then(|own| asked(policy, sample, &key, own, kept));
    Ok(Explanation {
        rule,
        need,
        approval_when,
        decision,
        identity,
        downstream_key,
        lease,
        asked,
        warnings,
    })
}

fn asked(
    policy: &Policy,
    sample: &Sample<'_>,
    key: &Key,
    downstream_key: &str,
    kept: &BTreeMap<String, String>,
) -> Option<Asked> {
    let endpoint = Arc::clone(policy.status(sample.namespace, sample.tool)?);
    let question = Question {
        downstream_key: downstream_key.to_owned(),
        downstream_ref: None,
        key: key.to_string(),
        business: kept.clone(),
        tool: sample.tool.to_owned(),
        namespace: sample.namespace.to_owned(),
    };
    let url = match &endpoint.face {
        Face::Http(http) => Some(http.url(&question)),
        Face::Grpc(_) => None,
    };
    Some(Asked { endpoint, url })
}

fn candidate(
    policy: &Policy,
    rule: &ToolPolicy,
    sample: &Sample<'_>,
    arguments: &Json,
) -> Result<(Candidate, Vec<&'static str>), IdentityError> {
    let &Sample { namespace, tool, run_id, step_id, idempotency_key, business_ids, .. } = sample;
    let call = Call { namespace, tool, run_id, step_id, idempotency_key, business_ids, arguments };
    let identified = identify(&rule.recipe, &call)?;
    let (key, basis) = (identified.key, identified.basis);
    let mut warnings = Vec::new();
    warnings.extend(identified.overridden.then_some("identity_overridden"));
    warnings.extend((basis == KeyBasis::StepArguments).then_some("weak_key"));
    let recipe = RecipeVersion { policy: policy.version(), hash: rule.recipe.hash_version };
    let print = fingerprint(&rule.recipe, &[], &call, &key, basis);
    let downstream = downstream_digest(&key, None, recipe.hash);
    let kept = named_ids(&rule.downstream.asks_by, &rule.recipe, &call);
    Ok((Candidate { recipe, key, downstream, basis, print, kept }, warnings))
}

fn begin_call(sample: &Sample<'_>, arguments_json: &str) -> BeginCall {
    BeginCall {
        free_text: Vec::new(),
        namespace: sample.namespace.to_owned(),
        tool: sample.tool.to_owned(),
        run_id: sample.run_id.to_owned(),
        step_id: sample.step_id.to_owned(),
        attempt_id: Uuid::nil(),
        caller: String::new(),
        tool_call_id: String::new(),
        lease: None,
        labels: sample.labels.clone(),
        arguments_json: arguments_json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::decision::RefuseReason;

    const EXAMPLE: &str = include_str!("../../examples/policy.toml");
    const NO_IDS: &BTreeMap<String, String> = &BTreeMap::new();

    const EMAIL: Sample<'static> = Sample {
        namespace: "default",
        tool: "send_email",
        run_id: "run-1",
        step_id: "",
        idempotency_key: "",
        business_ids: NO_IDS,
        labels: NO_IDS,
        arguments_json: r#"{"order_id":8812,"template":"paid","to":" A@B.example","body":"Dear"}"#,
    };

    /// One that needs no person.
    const REFUND: Sample<'static> = Sample {
        tool: "refund",
        run_id: "",
        arguments_json: r#"{"order_id":8812,"amount":100}"#,
        ..EMAIL
    };

    fn example() -> Policy {
        Policy::from_text(EXAMPLE).expect("the example loads")
    }

    #[track_caller]
    fn explained(sample: &Sample<'_>) -> Explanation {
        explain(&example(), sample).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_recorded_call_has_key_fingerprint_and_lease() {
        let first = explained(&EMAIL);
        let identity = first.identity.expect("the tool is recorded");
        assert!(matches!(first.decision, Decision::Execute { .. }));
        assert_eq!(identity.basis, KeyBasis::Policy);
        assert_eq!(first.downstream_key.as_ref().map(String::len), Some(64));
        assert_eq!(first.lease, Some(Duration::from_secs(60)));
        assert!(first.warnings.is_empty() && first.rule.listed);

        // Reworded, and the recipient spelled otherwise: the same intent.
        let arguments_json =
            r#"{"body":"Hi","to":"a@b.example","template":"paid","order_id":"8812","subject":"x"}"#;
        let again = explained(&Sample { arguments_json, ..EMAIL });
        assert_eq!(again.identity, Some(identity));
        assert_eq!(again.downstream_key, first.downstream_key);

        let other = explained(&Sample { run_id: "run-2", ..EMAIL });
        assert_ne!(other.identity.map(|i| i.key), Some(identity.key));
    }

    #[test]
    fn warnings_and_the_form_of_the_downstream_key_are_shown() {
        let overridden = explained(&Sample { idempotency_key: "mine", ..EMAIL });
        assert_eq!(overridden.warnings, ["identity_overridden"]);

        let weak = Sample { tool: "other", step_id: "step-1", ..EMAIL };
        let weak = explained(&weak);
        assert_eq!(weak.warnings, ["weak_key"]);
        assert!(!weak.rule.listed);

        let refund = explained(&REFUND);
        assert_eq!(refund.downstream_key.as_ref().map(String::len), Some(36));
        assert_eq!(refund.lease, Some(Duration::from_secs(120)));
    }

    #[test]
    fn how_the_downstream_would_be_asked_is_shown() {
        let email = explained(&EMAIL);
        let (asked, key) = (email.asked.expect("it can be asked"), email.downstream_key);
        let key = key.expect("it is executed");
        let url = format!("https://mail.internal/v1/by-key/{key}");
        assert_eq!(asked.url, Some(Ok(url)));
        assert_eq!(asked.endpoint.origin, "https://mail.internal:443");

        let refund = REFUND;
        let asked = explained(&refund).asked.expect("it can be asked");
        assert_eq!((asked.url, &*asked.endpoint.origin), (None, "http://payments.internal:9090"));

        let text = "[tools.a.downstream.status]\ncompleted_when = \"true\"\nkey_at = \"body.key\"\n\
                    http.url = \"http://m?o={business.order}\"";
        let policy = Policy::from_text(text).expect("the text is a policy");
        let url = |business_ids: &BTreeMap<String, String>| {
            let sample = Sample { tool: "a", step_id: "s", business_ids, ..EMAIL };
            let explanation = explain(&policy, &sample).expect("the sample is a call");
            explanation.asked.expect("it can be asked").url.expect("it is asked over HTTP")
        };
        let ids = BTreeMap::from([("order".to_owned(), "o 17".to_owned())]);
        assert_eq!(url(&ids).as_deref(), Ok("http://m/?o=o%2017"));
        // A call that nobody could ask about is no call.
        let nameless = Sample { tool: "a", step_id: "s", ..EMAIL };
        let explanation = explain(&policy, &nameless).expect("the sample is a call");
        let required = Decision::BusinessIdRequired { name: "order".to_owned() };
        assert_eq!((explanation.decision, explanation.asked.is_none()), (required, true));
    }

    #[test]
    fn whether_a_person_is_needed_is_shown_and_why() {
        let refund = explained(&REFUND);
        assert_eq!(refund.need, Need::No);
        assert_eq!(refund.approval_when.as_deref(), Some("args.amount > 100"));
        let large = Sample { arguments_json: r#"{"order_id":8812,"amount":101}"#, ..REFUND };
        let large = explained(&large);
        assert_eq!((large.need, large.downstream_key), (Need::Yes, None));
        assert!(matches!(large.decision, Decision::AwaitApproval { .. }));
        let unclear = explained(&Sample { arguments_json: r#"{"order_id":8812}"#, ..REFUND });
        assert!(matches!(unclear.need, Need::Unclear(_)), "{:?}", unclear.need);
        assert!(matches!(unclear.decision, Decision::AwaitApproval { .. }));
        assert_eq!(explained(&EMAIL).need, Need::NoGate);
        let halted = explained(&Sample { namespace: "acme", ..REFUND });
        assert_eq!(halted.decision, Decision::Refuse { reason: RefuseReason::ToolHalted });
    }

    #[test]
    fn calls_that_are_not_recorded_have_no_key() {
        for tool in ["get_email_status", "close_ticket"] {
            let explanation = explained(&Sample { tool, run_id: "", ..EMAIL });
            assert_eq!(explanation.decision, Decision::NotRecorded, "{tool}");
            assert_eq!(explanation.identity, None, "{tool}");
        }
    }

    #[test]
    fn an_unlisted_tool_is_refused_where_the_policy_says_so() {
        let unlisted = Sample { namespace: "acme", tool: "other", step_id: "s", ..EMAIL };
        let refused = Decision::Refuse { reason: RefuseReason::ToolNotListed };
        assert_eq!(explained(&unlisted).decision, refused);

        let text = "[defaults]\nclass = \"read_only\"\nunlisted_tools = \"refuse\"";
        let policy = Policy::from_text(text).expect("the text is a policy");
        let explanation = explain(&policy, &unlisted).expect("the sample is a call");
        assert_eq!(explanation.decision, refused);
    }

    #[test]
    fn what_is_no_call_is_an_error() {
        let error = |sample: Sample<'_>| explain(&example(), &sample).expect_err("it is no call");
        assert!(matches!(error(Sample { tool: "", ..EMAIL }), ExplainError::Name { .. }));
        assert!(matches!(error(Sample { namespace: "a\n", ..EMAIL }), ExplainError::Name { .. }));
        let arguments = |arguments_json| error(Sample { arguments_json, ..EMAIL });
        assert!(matches!(arguments("{"), ExplainError::Arguments(_)));
        assert_eq!(arguments("[]"), ExplainError::NotAnObject);
        assert!(matches!(
            arguments(""),
            ExplainError::Identity(IdentityError::PointerMissing { .. })
        ));
        let no_run = error(Sample { run_id: "", ..EMAIL });
        assert_eq!(no_run, ExplainError::Identity(IdentityError::RunMissing));
    }
}
