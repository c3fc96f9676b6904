//! What is promised for which tool: its class, what its key is made of, its leases and limits,
//! and what its downstream promises.
//!
//! `mod.rs` decides, from the text that `file.rs` parses. Nothing here reads a clock, a store or
//! the environment, so that all replicas with the same text decide alike.

mod approval;
mod mistake;
mod reader;
mod resolve;
mod section;
mod span;

pub mod explain;
pub mod file;
pub mod set;
pub mod status;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use self::resolve::{Layers, tools_of};
use self::status::{Expression, StatusEndpoint};
pub use self::{
    approval::{ApprovalCall, Need},
    file::PolicyFile,
    mistake::Mistake,
    set::{PolicySet, VersionedRecipe, lowered},
    span::show_span,
};
use crate::domain::tool::ToolPolicy;

/// One version of the policy: what holds for every tool in every namespace.
///
/// Everything is worked out when the text is loaded; asking for a tool is a few look-ups.
#[derive(Debug, Clone)]
pub struct Policy {
    version: u32,
    text: String,
    everywhere: Tools,
    namespaces: HashMap<String, Tools>,
    warnings: Vec<Mistake>,
}

/// What holds in one namespace, or in all that have no section of their own.
#[derive(Debug, Clone, Default)]
struct Tools {
    unlisted: Entry,
    listed: HashMap<String, Entry>,
}

/// What holds for one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Entry {
    policy: Arc<ToolPolicy>,
    status: Option<Arc<StatusEndpoint>>,
    approval_when: Option<Arc<Expression>>,
}

/// A text that is no policy, and why not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PolicyError {
    /// Every mistake of the text, in the order of its lines; at least one.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for PolicyError {
    /// One mistake a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.mistakes.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{mistake}")?;
        }
        Ok(())
    }
}

impl Policy {
    /// What holds where nobody gave a policy: version 0, no text, the defaults for every tool.
    pub fn builtin() -> Self {
        Self {
            version: 0,
            text: String::new(),
            everywhere: Tools::default(),
            namespaces: HashMap::new(),
            warnings: Vec::new(),
        }
    }

    /// The policy that a file's text describes.
    ///
    /// # Errors
    ///
    /// Every mistake of the text.
    pub fn from_text(text: &str) -> Result<Self, PolicyError> {
        let file = file::parse(text).map_err(|mistakes| PolicyError { mistakes })?;
        let names = file.namespaces.keys();
        Ok(Self {
            version: file.version(),
            text: text.to_owned(),
            everywhere: Tools::everywhere(&file),
            namespaces: names.map(|name| (name.clone(), Tools::of(&file, name))).collect(),
            warnings: file.warnings.clone(),
        })
    }

    /// The version the text gives itself; 0 for the built-in one.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The text as it was given; empty for the built-in one.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is no mistake of the text, and will surprise whoever wrote it, in the order of its lines.
    pub fn warnings(&self) -> &[Mistake] {
        &self.warnings
    }

    /// What holds for a tool in a namespace.
    pub fn tool(&self, namespace: &str, tool: &str) -> &Arc<ToolPolicy> {
        &self.entry(namespace, tool).policy
    }

    /// Where the downstream of a tool is asked in a namespace, if it can be; there exactly if its
    /// policy has a rule for the answers.
    pub fn status(&self, namespace: &str, tool: &str) -> Option<&Arc<StatusEndpoint>> {
        self.entry(namespace, tool).status.as_ref()
    }

    /// The shortest time for which any result is kept.
    pub fn retention_least(&self) -> Duration {
        let tools = std::iter::once(&self.everywhere).chain(self.namespaces.values());
        let entries = tools.flat_map(|it| std::iter::once(&it.unlisted).chain(it.listed.values()));
        entries.map(|entry| entry.policy.retention).min().unwrap_or_default()
    }

    /// Whether a call of a tool in a namespace needs a person.
    pub fn approval_need(&self, namespace: &str, call: &ApprovalCall<'_>) -> Need {
        let entry = self.entry(namespace, call.tool);
        match entry.policy.approval {
            Some(_) => approval::need(entry.approval_when.as_ref(), call),
            None => Need::NoGate,
        }
    }

    /// The expression by which a tool's calls need a person, if it has one.
    pub fn approval_when(&self, namespace: &str, tool: &str) -> Option<&str> {
        self.entry(namespace, tool).approval_when.as_ref().map(|when| when.source())
    }

    fn entry(&self, namespace: &str, tool: &str) -> &Entry {
        let own = self.namespaces.get(namespace);
        own.and_then(|own| own.listed.get(tool))
            .or_else(|| self.everywhere.listed.get(tool))
            .unwrap_or_else(|| &own.unwrap_or(&self.everywhere).unlisted)
    }

    /// The tools whose effect and settlement are one transaction, as they are named in the file.
    pub fn in_transactions(&self) -> Vec<String> {
        let tools = self.tools().filter(|(.., policy)| policy.downstream.same_transaction);
        tools
            .map(|(namespace, tool, _)| match namespace {
                Some(namespace) => format!("namespaces.{namespace}.tools.{tool}"),
                None => format!("tools.{tool}"),
            })
            .collect()
    }

    /// Every section of a tool, in the order of their names: what holds for it in all namespaces
    /// (`None`), and where one namespace differs, what holds there.
    pub fn tools(&self) -> impl Iterator<Item = (Option<&str>, &str, &ToolPolicy)> {
        let everywhere = std::iter::once((None, &self.everywhere));
        let own = self.namespaces.iter().map(|(name, tools)| (Some(name.as_str()), tools));
        let listed = everywhere.chain(own).flat_map(|(namespace, tools)| {
            tools.listed.iter().map(move |(tool, entry)| (namespace, tool.as_str(), &*entry.policy))
        });
        let mut all: Vec<_> = listed.collect();
        all.sort_by_key(|(namespace, tool, _)| (*namespace, *tool));
        all.into_iter()
    }
}

impl Tools {
    fn everywhere(file: &PolicyFile) -> Self {
        let entry = |tool| Entry::of(&Layers::of(file, None, tool));
        let listed =
            tools_of(file, None).flatten().map(|tool| (tool.to_owned(), entry(Some(tool))));
        Self { unlisted: entry(None), listed: listed.collect() }
    }

    /// Only the tools for which the namespace differs from the rest: many tenants that override
    /// little then take little memory.
    fn of(file: &PolicyFile, namespace: &str) -> Self {
        let mut listed = HashMap::new();
        for tool in tools_of(file, Some(namespace)).flatten() {
            let own = Entry::of(&Layers::of(file, Some(namespace), Some(tool)));
            if own != Entry::of(&Layers::of(file, None, Some(tool))) {
                listed.insert(tool.to_owned(), own);
            }
        }
        let unlisted = Entry::of(&Layers::of(file, Some(namespace), None));
        Self { unlisted, listed }
    }
}

impl Entry {
    fn of(layers: &Layers<'_>) -> Self {
        let (rule, endpoint) = layers.status().unzip();
        let mut policy = layers.policy(rule);
        let names = endpoint.iter().flat_map(StatusEndpoint::business_names);
        policy.downstream.asks_by = names.map(str::to_owned).collect();
        let approval_when = layers.approval_when();
        Self { policy: Arc::new(policy), status: endpoint.map(Arc::new), approval_when }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        status::{Face, GrpcFace},
        *,
    };
    use crate::domain::{
        canonical_json::Pointer,
        identity::{IdentityPointer, Normalize, Scope},
        look_alike::LookAlikeAction,
        tool::{ApprovalRule, Class, KeyFormat},
    };

    const EXAMPLE: &str = include_str!("../../examples/policy.toml");

    #[track_caller]
    fn policy(text: &str) -> Policy {
        Policy::from_text(text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn without_a_policy_the_defaults_hold() {
        let (builtin, empty) = (Policy::builtin(), policy(""));
        assert_eq!((builtin.version(), builtin.text()), (0, ""));
        assert_eq!(empty.version(), 1);
        for policy in [&builtin, &empty] {
            assert_eq!(**policy.tool("default", "any"), ToolPolicy::default());
            assert_eq!(policy.tools().count(), 0);
        }
    }

    #[test]
    fn the_contracts_defaults_are_those_that_are_built_in() {
        let (_, defaults) = EXAMPLE.split_once("[defaults]").expect("the example has defaults");
        let (defaults, _) = defaults.split_once("\n[").expect("tools follow the defaults");
        let written = policy(&format!("[defaults]{defaults}"));
        assert_eq!(**written.tool("default", "any"), ToolPolicy::default());
    }

    #[test]
    fn the_most_specific_layer_that_has_a_key_decides() {
        let layers = [
            ("[defaults]", "[defaults]\n"),
            ("[namespaces.acme.defaults]", "[namespaces.acme.defaults]\n"),
            ("[tools.a]", "[tools.a]\n"),
            ("[namespaces.acme.tools.a]", "[namespaces.acme.tools.a]\n"),
        ];
        // Each set of layers sets `lease` to its own number of seconds.
        for chosen in 0..1_u64 << layers.len() {
            let has = |layer: usize| chosen & (1 << layer) != 0;
            let sections = layers.iter().enumerate().filter(|(i, _)| has(*i));
            let text: String = sections
                .map(|(i, (_, header))| format!("{header}lease = \"{}s\"\n", i + 1))
                .collect();
            let policy = policy(&text);
            let expected = |layers: &[usize]| {
                let nearest = layers.iter().find(|layer| has(**layer));
                nearest.map_or(Duration::from_secs(60), |i| Duration::from_secs(*i as u64 + 1))
            };
            assert_eq!(policy.tool("acme", "a").lease, expected(&[3, 2, 1, 0]), "acme a\n{text}");
            assert_eq!(policy.tool("acme", "b").lease, expected(&[1, 0]), "acme b\n{text}");
            assert_eq!(policy.tool("other", "a").lease, expected(&[2, 0]), "other a\n{text}");
            assert_eq!(policy.tool("other", "b").lease, expected(&[0]), "other b\n{text}");
            assert_eq!(policy.tool("acme", "a").listed, has(2) || has(3), "{text}");
            assert_eq!(policy.tool("other", "a").listed, has(2), "{text}");
        }
    }

    #[test]
    fn the_shortest_retention_is_looked_for_everywhere() {
        let day = Duration::from_secs(24 * 60 * 60);
        let rows = [
            ("", 30),
            ("[defaults]\nretention = \"9d\"", 9),
            ("[tools.a]\nretention = \"3d\"", 3),
            ("[tools.a]\nretention = \"90d\"", 30),
            ("[namespaces.acme.tools.a]\nretention = \"2d\"", 2),
            ("[namespaces.acme.defaults]\nretention = \"4d\"", 4),
        ];
        for (text, days) in rows {
            assert_eq!(policy(text).retention_least(), days * day, "{text}");
        }
        assert_eq!(Policy::builtin().retention_least(), 30 * day);
    }

    #[test]
    fn an_override_replaces_single_keys() {
        let policy = policy(
            r#"
            [defaults]
            unlisted_tools = "refuse"
            [tools.refund]
            class = "idempotent"
            identity = ["/order", "/line"]
            free_text = ["/note"]
            check_with = "get_refund"
            [tools.refund.downstream]
            key_format = "uuid"
            deduplicates = true
            window = "1h"
            [namespaces.acme.tools.refund]
            class = "effectful"
            identity = ["/order"]
            downstream.new_key_after_failed = true
            [namespaces.beta.tools.refund.downstream]
            deduplicates = false
            [namespaces.beta.defaults]
            unlisted_tools = "allow"
            "#,
        );
        let base = policy.tool("default", "refund");
        let acme = policy.tool("acme", "refund");
        let beta = policy.tool("beta", "refund");
        assert_eq!((base.class, acme.class), (Class::Idempotent, Class::Effectful));
        assert_eq!((base.recipe.identity.len(), acme.recipe.identity.len()), (2, 1));
        assert_eq!(acme.recipe.free_text, base.recipe.free_text);
        assert_eq!(acme.check_with.as_deref(), Some("get_refund"));
        assert_eq!(acme.downstream.key_format, KeyFormat::Uuid);
        assert!(acme.downstream.new_key_after_failed && !base.downstream.new_key_after_failed);
        assert_eq!(acme.downstream.dedup_window, Some(Duration::from_secs(3600)));
        assert_eq!(beta.downstream.dedup_window, None);
        assert_eq!(beta.downstream.key_format, KeyFormat::Uuid);

        let refused = |namespace| policy.tool(namespace, "unknown").refuse_unlisted;
        assert!(refused("default") && refused("acme") && !refused("beta"));

        let sections: Vec<_> =
            policy.tools().map(|(namespace, tool, _)| (namespace, tool)).collect();
        assert_eq!(
            sections,
            [(None, "refund"), (Some("acme"), "refund"), (Some("beta"), "refund")]
        );
    }

    #[test]
    fn the_example_loads() {
        let policy = policy(EXAMPLE);
        assert_eq!((policy.version(), policy.text()), (1, EXAMPLE));

        let email = policy.tool("default", "send_email");
        let pointer = |text| Pointer::parse(text).expect("the test's pointers are right");
        let named = |text, normalize| IdentityPointer { pointer: pointer(text), normalize };
        assert_eq!(
            email.recipe.identity,
            [
                named("/order_id", vec![]),
                named("/template", vec![]),
                named("/to", vec![Normalize::Trim, Normalize::Lowercase]),
            ]
        );
        assert_eq!(email.recipe.free_text, [pointer("/subject"), pointer("/body")]);
        assert_eq!(email.downstream.dedup_window, Some(Duration::from_secs(24 * 60 * 60)));
        assert_eq!(email.check_with.as_deref(), Some("get_email_status"));
        let rule = email.downstream.status.expect("the example says how to ask");
        assert_eq!((rule.visibility.as_secs(), rule.confirmations), (120, 2));
        assert!(!rule.probe_on_begin);
        let endpoint = policy.status("default", "send_email").expect("and where");
        assert_eq!(endpoint.origin, "https://mail.internal:443");
        assert_eq!(endpoint.timeout, Duration::from_secs(2));
        let token = |name: &str| (name == "MAIL_STATUS_TOKEN").then(|| "t".to_owned());
        assert_eq!(endpoint.headers[0].value(token).as_deref(), Ok("Bearer t"));
        let endpoint = policy.status("acme", "refund").expect("a tenant inherits it");
        assert_eq!(endpoint.face, Face::Grpc(GrpcFace { target: endpoint.origin.clone() }));
        assert!(policy.status("default", "other").is_none());

        assert_eq!(policy.tool("default", "get_email_status").class, Class::ReadOnly);
        assert_eq!(policy.tool("default", "close_ticket").class, Class::Idempotent);
        let refund = policy.tool("acme", "refund");
        assert_eq!((refund.max_attempts, refund.lease), (1, Duration::from_secs(300)));
        assert_eq!((refund.recipe.scope, refund.retry_failed), (Scope::Namespace, false));
        assert!(policy.tool("acme", "other").refuse_unlisted);
        assert!(!policy.tool("default", "other").refuse_unlisted);
    }

    #[test]
    fn the_example_shows_the_gates() {
        let policy = policy(EXAMPLE);
        let email = policy.tool("default", "send_email");
        assert_eq!(email.limit_per_run, Some(5));
        let alike = email.look_alike.as_ref().expect("the example compares recipients");
        assert_eq!(alike.pointers(), [Pointer::parse("/to").expect("a pointer")]);
        assert_eq!((alike.window.as_secs(), alike.action), (600, LookAlikeAction::Warn));
        assert_eq!(policy.tool("default", "refund").approval, Some(ApprovalRule::default()));
        let need = |arguments_json| {
            let labels = std::collections::BTreeMap::new();
            let call = ApprovalCall { arguments_json, tool: "refund", run_id: "", labels: &labels };
            policy.approval_need("default", &call)
        };
        assert_eq!((need(r#"{"amount":100}"#), need(r#"{"amount":101}"#)), (Need::No, Need::Yes));
        assert!(need("{}").is_there());
        let halted = |namespace| policy.tool(namespace, "refund").halted;
        assert!(halted("acme") && !halted("default"));
    }

    #[test]
    fn a_tenant_overrides_single_keys_of_a_gate() {
        let policy = policy(
            r#"
            [tools.refund]
            limit_per_run = 5
            halted = true
            approval = { when = "args.amount > 100", expires = "10h", valid_for = "10m" }
            look_alike = { subject = ["/to"], window = "1m", action = "refuse" }
            [namespaces.acme.tools.refund]
            limit_per_run = 2
            halted = false
            approval.expires = "1h"
            look_alike.action = "warn"
            [namespaces.beta.tools.refund]
            approval.when = "false"
            "#,
        );
        let (base, acme) = (policy.tool("default", "refund"), policy.tool("acme", "refund"));
        assert_eq!((base.limit_per_run, acme.limit_per_run), (Some(5), Some(2)));
        assert!(base.halted && !acme.halted);
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let valid_for = Duration::from_secs(600);
        assert_eq!(base.approval, Some(ApprovalRule { expires: hours(10), valid_for }));
        assert_eq!(acme.approval, Some(ApprovalRule { expires: hours(1), valid_for }));
        let alike = acme.look_alike.as_ref().expect("it is inherited");
        assert_eq!((alike.window.as_secs(), alike.action), (60, LookAlikeAction::Warn));
        assert_eq!(alike.subject, base.look_alike.as_ref().expect("it is there").subject);
        let need = |namespace| {
            let labels = std::collections::BTreeMap::new();
            let arguments_json = r#"{"amount":101}"#;
            let call = ApprovalCall { arguments_json, tool: "refund", run_id: "", labels: &labels };
            policy.approval_need(namespace, &call)
        };
        assert_eq!(["default", "acme", "beta"].map(need), [Need::Yes, Need::Yes, Need::No]);
    }
}
