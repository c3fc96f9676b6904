//! The plans of what a pass asks the database.

use crate::world::World;

/// The statements, from the place that has them.
const SOURCE: &str = include_str!("../../src/store/postgres/agenda.rs");

fn statement(name: &str) -> String {
    let begin = format!("const {name}: &str = \"");
    let (_, rest) = SOURCE.split_once(&begin).expect("the statement has this name");
    let (text, _) = rest.split_once("\";").expect("it ends");
    text.to_owned()
}

/// Explains them as they run.
pub(crate) async fn show(world: &World) {
    let client = world.database().await;
    client.batch_execute("ANALYZE").await.expect("statistics");
    let asked = [
        ("gather", statement("GATHER").replace("$1", "64").replace("$2", "0")),
        ("due tools", statement("DUE_TOOLS").replace("$1", "NULL")),
        (
            "due",
            statement("DUE")
                .replace("$1", "'default'")
                .replace("$2", "'tool-0'")
                .replace("$3", "32"),
        ),
    ];
    for (name, sql) in asked {
        println!("\n{name}:");
        let explained = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {sql}");
        for row in client.query(&explained, &[]).await.expect("a plan") {
            println!("  {}", row.get::<_, String>(0));
        }
    }
}
