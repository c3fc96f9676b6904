//! The same as what is printed, for programs.

use std::{fs, path::Path};

use serde_json::{Map, Value, json};

use crate::{bars::Bar, options::Options, results::Results};

/// Writes each bar's value under its name, and the medians of all lines under `lines`.
pub(crate) fn write(path: &Path, options: &Options, results: &Results, bars: &[Bar]) {
    let mut document = Map::new();
    document.insert("rounds".to_owned(), json!(options.rounds()));
    document.insert("seconds".to_owned(), json!(options.timing().length.as_secs_f64()));
    for bar in bars {
        document.insert(bar.name.to_owned(), json!(bar.value));
    }
    let lines: Vec<Value> = results
        .medians()
        .map(|(line, measured)| {
            let figures = serde_json::to_value(measured).expect("numbers");
            let mut entry = Map::new();
            entry.insert("name".to_owned(), json!(line.name));
            entry.insert("in_flight".to_owned(), json!(line.in_flight));
            entry.extend(figures.as_object().expect("a struct").clone());
            Value::Object(entry)
        })
        .collect();
    document.insert("lines".to_owned(), Value::Array(lines));
    let text = serde_json::to_string_pretty(&document).expect("a document");
    fs::write(path, text + "\n")
        .unwrap_or_else(|error| panic!("failed to write {}: {error}", path.display()));
}
