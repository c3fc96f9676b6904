//! A list of intents as a table.

use std::time::SystemTime;

use super::{
    json,
    output::{Paint, plain},
};
use crate::proto::v1;

/// Longer names are cut; the key, which is what one goes on with, never is.
const NAME_CHARS_MAX: usize = 28;

/// The column whose words are coloured.
const STATE_COLUMN: usize = 1;

const HEADINGS: [&str; 7] = ["CREATED", "STATE", "TOOL", "RUN", "ATTEMPT", "FLAGS", "KEY"];

/// One line an intent below a line of headings.
pub(super) fn intents(intents: &[v1::Intent], paint: Paint) -> String {
    let rows: Vec<[String; 7]> =
        std::iter::once(HEADINGS.map(str::to_owned)).chain(intents.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEADINGS.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut table = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == HEADINGS.len() {
                table += cell;
                table += "\n";
                break;
            }
            // Padded before it is coloured: escapes have no width.
            let padded = format!("{cell:width$}  ", width = widths[column]);
            table += &if column == STATE_COLUMN { paint.word(&padded) } else { padded };
        }
    }
    table
}

/// Rows below a line of headings; numbers and words alike begin in one column.
pub(super) fn aligned<const N: usize>(
    headings: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let rows: Vec<[String; N]> = std::iter::once(headings.map(str::to_owned)).chain(rows).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let line: String = cells.map(|(cell, width)| format!("{cell:width$}  ")).collect();
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn row(intent: &v1::Intent) -> [String; 7] {
    let created = intent.create_time.and_then(|time| SystemTime::try_from(time).ok());
    let created = created.map(|time| humantime::format_rfc3339_seconds(time).to_string());
    let flags = match (intent.needs_attention, intent.conflict) {
        (true, true) => "attention,conflict",
        (true, false) => "attention",
        (false, true) => "conflict",
        (false, false) => "-",
    };
    [
        created.unwrap_or_default(),
        json::state(intent.state).unwrap_or_default(),
        name(&intent.tool),
        name(&intent.run_id),
        intent.attempt.to_string(),
        flags.to_owned(),
        plain(&intent.key),
    ]
}

fn name(text: &str) -> String {
    let text = plain(text);
    if text.is_empty() {
        return "-".to_owned();
    }
    if text.chars().count() <= NAME_CHARS_MAX {
        return text;
    }
    text.chars().take(NAME_CHARS_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_long_names_are_cut() {
        let intent = v1::Intent {
            key: "ab".to_owned(),
            tool: "a\u{1b}[2J".to_owned(),
            run_id: "r".repeat(40),
            state: v1::IntentState::Unknown.into(),
            needs_attention: true,
            ..v1::Intent::default()
        };
        let table = intents(&[intent], Paint::never());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].find("KEY"), lines[1].replace('…', ".").find("ab"), "{table}");
        assert!(lines[1].contains(r"UNKNOWN  a\u{1b}[2J"), "{table}");
        assert!(lines[1].contains("attention"), "{table}");
    }
}
