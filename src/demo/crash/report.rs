//! The words of the second story.

use std::{
    io::{self, Write},
    time::Instant,
};

use super::{
    super::report::{columns, heading},
    Answer, Killed, LEASE, Outcome, Telling, VISIBILITY,
    agent::Begun,
};
use crate::clock::monotonic;

/// What is to come.
pub(super) fn introduction(out: &mut dyn Write, telling: Telling) -> io::Result<()> {
    heading(out, telling, "An agent that dies between the send and the report")?;
    writeln!(
        out,
        "\
Two agents, a mail each, are killed (kill -9): one when its mail has left, one
just before. Neither reports, but the ledger can ask the provider by the mail's
key: found settles it; not found does if said twice, {visibility} s after the {lease} s of lease.",
        lease = LEASE.as_secs(),
        visibility = VISIBILITY.as_secs(),
    )
}

/// One mail's story, told line by line.
pub(super) struct Story<'a> {
    out: &'a mut dyn Write,
    began: Instant,
}

impl<'a> Story<'a> {
    pub(super) fn begin(
        out: &'a mut dyn Write,
        telling: Telling,
        killed: Killed,
    ) -> io::Result<Self> {
        let words = match killed {
            Killed::AfterSend => "1. Killed after the send",
            Killed::BeforeSend => "2. Killed before the send",
        };
        heading(out, telling, words)?;
        Ok(Self { out, began: monotonic() })
    }

    /// Something that happened now.
    pub(super) fn line(&mut self, what: &str, how: &str) -> io::Result<()> {
        let at = format!("{:.2} s", monotonic().duration_since(self.began).as_secs_f32());
        writeln!(self.out, "  {at:>7}  {what:<44}  {how}")?;
        self.out.flush()
    }

    /// The ledger's answer to an agent.
    pub(super) fn answer(
        &mut self,
        what: &str,
        asked_by: &'static str,
        begun: &Begun,
    ) -> io::Result<Answer> {
        let Begun { decision, reason, receipt, .. } = begun;
        let shown = format!("{decision} {reason} {receipt}");
        self.line(what, shown.trim_end())?;
        Ok(Answer { asked_by, decision: decision.clone(), reason: reason.clone() })
    }
}

/// The mails, counted.
pub(super) fn table(out: &mut dyn Write, telling: Telling, outcome: &Outcome) -> io::Result<()> {
    heading(out, telling, "3. The mails, counted")?;
    let row = |name: &str, intended: &str, sent: &str, by: &str| {
        format!("  {name:<30} {intended:>8}  {sent:>4}  {by}")
    };
    columns(out, telling, &row("mail", "intended", "sent", "last settled by"))?;
    for action in &outcome.actions {
        let name = format!("order {}, {}", action.order, action.template);
        let [intended, sent] = [action.intended, action.sent].map(|n| n.to_string());
        writeln!(out, "{}", row(&name, &intended, &sent, &action.settled_by))?;
    }
    if outcome.exactly_once {
        writeln!(out, "\nOne mail for each that was meant; nobody had to look into it.")
    } else {
        writeln!(out, "\nThis is NOT one mail for each that was meant. Please report it.")
    }
}
