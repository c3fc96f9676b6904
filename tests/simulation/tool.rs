//! The tools of a run: what their downstreams truly keep, and the policy that says so.

use std::{fmt::Write as _, time::Duration};

use super::mutation::Mutation;
use crate::dice::Dice;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// A tool, and what is true of its downstream.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// Whether it can be asked what became of a call.
    pub(crate) asks: bool,
    /// How long it takes a repeat for the first call; `None` where it never does.
    pub(crate) window: Option<Duration>,
    /// How long after the lease's end an effect may come to light.
    pub(crate) visibility: Duration,
    pub(crate) lease: Duration,
    confirmations: u64,
    probe_on_begin: bool,
    give_up_after: Duration,
    max_attempts: u64,
    new_key_after_failed: bool,
    uuid_key: bool,
    /// Whether the policy counts its effects, with room for all of them.
    pub(crate) limited: bool,
}

impl Tool {
    pub(crate) fn draw(index: usize, dice: &mut Dice) -> Self {
        let (asks, deduplicates) = dice.one_of(&[
            (true, false),
            (true, false),
            (true, true),
            (false, true),
            (false, false),
        ]);
        let lease = dice.one_of(&[30, MINUTE, 5 * MINUTE, 30 * MINUTE]);
        let window = dice.one_of(&[2 * lease, 2 * HOUR, 24 * HOUR, 72 * HOUR]).max(2 * lease);
        let visibility = dice.one_of(&[2, 2 * MINUTE, 10 * MINUTE, HOUR]);
        let after_failed = dice.percent(30);
        Self {
            name: format!("tool-{index}"),
            asks,
            window: deduplicates.then(|| Duration::from_secs(window)),
            visibility: Duration::from_secs(if asks { visibility } else { 0 }),
            lease: Duration::from_secs(lease),
            confirmations: dice.one_of(&[1, 2, 3]),
            probe_on_begin: dice.percent(60),
            give_up_after: Duration::from_secs(dice.one_of(&[HOUR, 6 * HOUR, 24 * HOUR])),
            max_attempts: dice.one_of(&[1, 3, 10, 10]),
            new_key_after_failed: deduplicates && after_failed,
            uuid_key: dice.percent(30),
            limited: index % 2 == 1,
        }
    }

    /// The kind of its downstream, for people.
    pub(crate) fn kind(&self) -> &'static str {
        match (self.asks, self.window.is_some()) {
            (true, true) => "asked and deduplicating",
            (true, false) => "asked",
            (false, true) => "deduplicating",
            (false, false) => "neither",
        }
    }

    /// The tool's sections of a policy. A later `version` may ask for more patience, never for less.
    fn sections(&self, version: u32, mutation: Option<Mutation>) -> String {
        let Self { name, lease, max_attempts, .. } = self;
        let mut text = String::new();
        let give_up_after = self.give_up_after.as_secs();
        let (uuid, new_key) = (self.uuid_key, self.new_key_after_failed);
        let limit = if self.limited { "limit_per_run = 10000\n" } else { "" };
        let format = if uuid { "uuid" } else { "hex" };
        writeln!(
            text,
            "[tools.{name}]\nidentity = [\"/order\"]\nlease = \"{}s\"\nlease_max = \"2h\"\n\
             max_attempts = {max_attempts}\n{limit}give_up_after = \"{give_up_after}s\"\n\
             [tools.{name}.downstream]\nkey_format = \"{format}\"\n\
             new_key_after_failed = {new_key}",
            lease.as_secs()
        )
        .unwrap();
        if let Some(window) = self.window {
            let too_long = mutation == Some(Mutation::TrustsWindowTooLong);
            let window = if too_long { window * 100 } else { window };
            writeln!(text, "deduplicates = true\nwindow = \"{}s\"", window.as_secs()).unwrap();
        }
        if self.asks {
            let (visibility, confirmations) = if mutation == Some(Mutation::TrustsAbsenceEarly) {
                (Duration::from_millis(1), 1)
            } else {
                (self.visibility * version, self.confirmations)
            };
            writeln!(
                text,
                "[tools.{name}.downstream.status]\n{RULES}\
                 http = {{ url = \"http://{name}.internal/v1/{{downstream_key}}\", timeout = \"2s\" }}\n\
                 visibility = \"{}ms\"\nconfirmations = {confirmations}\nprobe_on_begin = {}",
                visibility.as_millis(),
                self.probe_on_begin != (version > 1),
            )
            .unwrap();
        }
        text
    }
}

/// How the downstreams' answers are read. Short, because each start of a server parses them anew.
const RULES: &str = "
completed_when = \"status == 200 && body.state == 'done'\"
running_when = \"body.state == 'queued'\"
not_executed_when = \"status == 404 && body.error == 'not_found'\"
key_at = \"body.idempotency_key\"
";

/// The text of the policy file.
pub(crate) fn policy(tools: &[Tool], version: u32, mutation: Option<Mutation>) -> String {
    let sections = tools.iter().map(|tool| tool.sections(version, mutation));
    let sections: String = sections.collect();
    format!(
        "version = {version}\n[defaults]\nscope = \"namespace\"\nretention = \"400d\"\n{sections}"
    )
}
