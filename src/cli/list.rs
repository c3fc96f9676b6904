//! `list`: which intents are there?

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};

use super::{
    answer::Page,
    client::{CallError, ClientFlags},
    output::plain,
};
use crate::proto::v1;

const EXAMPLE: &str = "\
The newest come first. With --json each page is one object; with --all there may be several.

Examples:
  $ intent-ledger list --tool send_email --state UNKNOWN --state STARTED
  $ intent-ledger list --attention
  $ intent-ledger list --all --json | jq -r '.intents[].key'";

/// The words of `--state`.
const STATES: [&str; 7] =
    ["AWAITING_APPROVAL", "APPROVED", "STARTED", "UNKNOWN", "COMPLETED", "FAILED", "DENIED"];

/// Flags of `list`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ListFlags {
    /// Only this tool
    #[arg(long, value_name = "TOOL", default_value = "", hide_default_value = true)]
    tool: String,

    /// Only this run
    #[arg(long, value_name = "RUN", default_value = "", hide_default_value = true)]
    run: String,

    /// Only this state; as often as needed
    #[arg(long, value_name = "STATE", ignore_case = true,
          value_parser = PossibleValuesParser::new(STATES).map(|word| state(&word)))]
    state: Vec<v1::IntentState>,

    /// Only those that a person must move on
    #[arg(long)]
    attention: bool,

    /// Only those with reports that contradict each other
    #[arg(long)]
    conflict: bool,

    /// At most so many on a page
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(i32).range(1..=1000))]
    page_size: i32,

    /// The page that an earlier one named as its next
    #[arg(long, value_name = "TOKEN", default_value = "", hide_default_value = true)]
    page_token: String,

    /// All pages
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    client: ClientFlags,
}

fn state(word: &str) -> v1::IntentState {
    v1::IntentState::from_str_name(&format!("INTENT_STATE_{}", word.to_ascii_uppercase()))
        .expect("the parser lets only names of states pass")
}

pub(super) fn run(flags: &ListFlags) -> anyhow::Result<u8> {
    let client = &flags.client;
    let mut request = v1::ListIntentsRequest {
        namespace: client.namespace.clone(),
        tool: flags.tool.clone(),
        run_id: flags.run.clone(),
        states: flags.state.iter().map(|state| i32::from(*state)).collect(),
        needs_attention: flags.attention.then_some(true),
        conflict: flags.conflict.then_some(true),
        page_size: flags.page_size,
        page_token: flags.page_token.clone(),
        view: v1::IntentView::Basic.into(),
    };
    client.run(async |server| {
        let mut all = Vec::new();
        loop {
            let page = server.operations.list_intents(client.request(request.clone())).await;
            let mut page = page.map_err(CallError::from)?.into_inner();
            let next = page.next_page_token.clone();
            let goes_on = flags.all && !next.is_empty();
            if client.json {
                client.print(&Page(page))?;
            } else {
                // One table, whose columns fit every page.
                all.append(&mut page.intents);
            }
            if !goes_on {
                if !client.json {
                    show(flags, all, &next)?;
                }
                return Ok(());
            }
            request.page_token = next;
        }
    })
}

fn show(flags: &ListFlags, intents: Vec<v1::Intent>, next: &str) -> anyhow::Result<()> {
    if intents.is_empty() && next.is_empty() {
        eprintln!("no intents");
        return Ok(());
    }
    flags.client.print(&Page(v1::ListIntentsResponse { intents, ..Default::default() }))?;
    if !next.is_empty() {
        eprintln!("there are more: add --all, or --page-token {}", plain(next));
    }
    Ok(())
}
