//! The statements.

use std::sync::LazyLock;

use crate::store::columns::{COLUMNS, Part, names};

/// A new row; nothing where there is one.
pub(super) static INSERT: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let values = vec!["?"; names.len()];
    format!(
        "INSERT INTO intents ({}) VALUES ({}) ON CONFLICT (id) DO NOTHING",
        names.join(", "),
        values.join(", ")
    )
});

/// A row in place of the one with this id and version.
pub(super) static REPLACE: LazyLock<String> = LazyLock::new(|| {
    let changing = COLUMNS.iter().filter(|column| column.part != Part::Identity);
    let assignments: Vec<String> =
        changing.zip(3..).map(|(column, number)| format!("{} = ?{number}", column.name)).collect();
    format!("UPDATE intents SET {} WHERE id = ?1 AND version = ?2", assignments.join(", "))
});

/// The columns of the rows that meet a condition.
pub(super) fn select(condition: &str) -> String {
    format!("SELECT {} FROM intents WHERE {condition}", names())
}
