//! The words of the story: plain text in 80 columns, a progress line for those who wait.

use std::{
    io::{self, Write},
    pin::pin,
    time::Duration,
};

use super::{
    APPROVED, CLIENT_TIMEOUT, Outcome, PAID, Ran, SLOW_ANSWER, Telling,
    agent::{HTTP_TRIES, Layer, ORCHESTRATOR_TRIES},
    guarded::Line,
    provider::SentMail,
};

/// No line is longer.
const WIDTH: usize = 80;

/// The first words, the model's other words, the resumed run.
const ROUNDS: usize = APPROVED.subjects.len();

/// How often the progress line is written anew.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

const CRASH: &str = "  -- the process dies before its checkpoint; a new one starts over --";
const LATER: &str = "  -- later, another mail about that order; the answer comes in time --";

/// What is to come.
pub(super) fn introduction(out: &mut dyn Write, telling: Telling) -> io::Result<()> {
    heading(out, telling, "One e-mail, and four layers that try again")?;
    writeln!(
        out,
        "\
An agent is to tell Ada, once, that the refund of order {order} is approved. The
mail provider sends the mail at once but answers after {slow} s. The agent's HTTP
client waits {timeout} s; then it cannot know whether the mail was sent. Every layer
of the agent means well and tries again:

  HTTP client    sends a request up to {HTTP_TRIES} times
  orchestrator   runs a failed tool call up to {ORCHESTRATOR_TRIES} times
  model          reads the error and calls the tool again, in other words
  resumed run    the process dies before its checkpoint; a new one starts over

Servers, requests and time-outs are real, on this machine. The model is a
script, and the crash forgets what the process had in memory.",
        order = APPROVED.order,
        slow = SLOW_ANSWER.as_secs_f32(),
        timeout = CLIENT_TIMEOUT.as_secs_f32(),
    )
}

/// What the provider sent without the ledger.
pub(super) fn without(out: &mut dyn Write, telling: Telling, ran: &Ran) -> io::Result<()> {
    heading(out, telling, "1. Without the ledger")?;
    sent_log(out, telling, &ran.sent)?;
    writeln!(
        out,
        "
That is {HTTP_TRIES} by the HTTP client x {ORCHESTRATOR_TRIES} by the orchestrator x {ROUNDS} rounds (first
words, other words, resumed run): {}.
Comparing arguments would not have helped: the model changed them.",
        HTTP_TRIES * ORCHESTRATOR_TRIES * ROUNDS,
    )?;
    last_word(out, ran)
}

/// What the ledger answered, and what the provider sent.
pub(super) fn with(
    out: &mut dyn Write,
    telling: Telling,
    ran: &Ran,
    lines: &[Line],
) -> io::Result<()> {
    heading(out, telling, "2. With the ledger")?;
    writeln!(
        out,
        "\
The same agent; only, its tool asks the ledger before it sends, and names the
mail by what it is about: order {}, {}. The ledger answers

  EXECUTE   do it, now; nobody else may
  HOLD      do not: it may have happened; find out first
  REPLAY    it has happened; here is the first result

The mail carries a key that the ledger made. This provider does not deduplicate
on it, but can be asked by it.
",
        APPROVED.order, APPROVED.template,
    )?;
    columns(
        out,
        telling,
        &format!("  {:<14} {:<32} {}", "asked by", "wants to send", "the ledger answers"),
    )?;
    for line in lines {
        match line {
            Line::Asked(asked) => {
                let answer = if asked.answer_lost {
                    "(lost on its way)".to_owned()
                } else {
                    format!("{} {}", asked.decision, asked.reason)
                };
                writeln!(out, "  {:<14} {:<32} {answer}", asked.asked_by, asked.subject)?;
            }
            Line::Note(note) => aside(out, note)?,
            Line::Crash => writeln!(out, "{CRASH}")?,
            Line::Later => writeln!(out, "{LATER}")?,
        }
    }
    writeln!(out)?;
    sent_log(out, telling, &ran.sent)?;
    writeln!(out)?;
    last_word(out, ran)
}

/// The effects, counted.
pub(super) fn table(out: &mut dyn Write, telling: Telling, outcome: &Outcome) -> io::Result<()> {
    heading(out, telling, "3. The effects, counted")?;
    let row = |name: &str, intended: &str, without: &str, with: &str| {
        format!("  {name:<30} {intended:>8}  {without:>12}  {with:>9}")
    };
    columns(out, telling, &row("mail", "intended", "sent without", "sent with"))?;
    for action in &outcome.actions {
        let name = format!("order {}, {}", action.order, action.template);
        let [intended, without, with] =
            [action.intended, action.sent_without, action.sent_with].map(|n| n.to_string());
        writeln!(out, "{}", row(&name, &intended, &without, &with))?;
    }
    let layers: Vec<String> = outcome
        .sent_without_by_layer
        .iter()
        .map(|count| format!("{} {}", count.layer, count.sent))
        .collect();
    writeln!(out, "\nSent without, by who caused it:\n  {}.\n", layers.join(", "))?;
    if outcome.exactly_once {
        writeln!(
            out,
            "\
With the ledger, exactly one mail for each that was meant; the second mail about
the same order was not held back.

Next: `intent-ledger serve`, and a Begin before every effect of your own agent."
        )
    } else {
        writeln!(out, "This is NOT one mail for each that was meant. Please report it.")
    }
}

/// Does `work`; on a terminal, a line on standard error says how far it is.
pub(super) async fn with_progress<T>(
    telling: Telling,
    what: &str,
    sent: impl Fn() -> usize,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                if telling.progress {
                    eprint!("\r\x1b[K");
                }
                return done;
            }
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                if telling.progress {
                    eprint!("\r\x1b[K{what}: {} sent …", sent());
                }
            }
        }
    }
}

fn last_word(out: &mut dyn Write, ran: &Ran) -> io::Result<()> {
    writeln!(
        out,
        "The agent's last word on it: \"{}\"\nAda got {} of it.",
        ran.last_word,
        match ran.count(&APPROVED) {
            1 => "one".to_owned(),
            count => count.to_string(),
        },
    )
}

/// The provider's log, with what the HTTP client repeated on one line.
fn sent_log(out: &mut dyn Write, telling: Telling, sent: &[SentMail]) -> io::Result<()> {
    writeln!(out, "The mail provider's sent log:\n")?;
    columns(
        out,
        telling,
        &format!("  {:<5}  {:<6}  {:<30}  {}", "mails", "at", "subject", "caused by"),
    )?;
    let is_repeat = |mail: &SentMail| mail.layer == Layer::HttpClient.name();
    let mut number = 1;
    for group in sent.chunk_by(|_, next| is_repeat(next)) {
        let [first, repeats @ ..] = group else { continue };
        if first.layer == Layer::ResumedRun.name() {
            writeln!(out, "{CRASH}")?;
        }
        if first.template == PAID.template {
            writeln!(out, "{LATER}")?;
        }
        let numbers = match repeats.len() {
            0 => number.to_string(),
            more => format!("{number}-{}", number + more),
        };
        let by = match repeats.len() {
            0 => first.layer.clone(),
            more => format!("{} + HTTP client x {more}", first.layer),
        };
        let at = format!("{:.2} s", first.at.as_secs_f32());
        writeln!(out, "  {numbers:>5}  {at:<6}  {:<30}  {by}", first.subject)?;
        number += group.len();
    }
    Ok(())
}

/// A remark under a row, wrapped.
fn aside(out: &mut dyn Write, note: &str) -> io::Result<()> {
    const FIRST: &str = "      > ";
    const REST: &str = "        ";
    let mut line = FIRST.to_owned();
    for word in note.split(' ') {
        if line.len() > REST.len() && line.len() + word.len() > WIDTH {
            writeln!(out, "{}", line.trim_end())?;
            line = REST.to_owned();
        }
        line.push_str(word);
        line.push(' ');
    }
    writeln!(out, "{}", line.trim_end())
}

/// A heading, with room around it.
pub(super) fn heading(out: &mut dyn Write, telling: Telling, words: &str) -> io::Result<()> {
    if telling.styled {
        writeln!(out, "\n\x1b[1m{words}\x1b[0m\n")
    } else {
        writeln!(out, "\n{words}\n{}\n", "-".repeat(words.len()))
    }
}

/// The heads of a table's columns.
pub(super) fn columns(out: &mut dyn Write, telling: Telling, words: &str) -> io::Result<()> {
    if telling.styled { writeln!(out, "\x1b[2m{words}\x1b[0m") } else { writeln!(out, "{words}") }
}
