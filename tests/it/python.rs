//! A client in another language, with stubs made from the public contract alone.
//!
//! `tests/python/test_client.py` has the tests; case 40 is among them.

use std::{io::Write, path::Path, process::Command};

use crate::{
    on_both_stores,
    support::{calls::CHARGE_POLICY, process::ServerProcess, server::TestStore},
};

/// A tool that needs a person.
const REFUND: &str = r#"
[tools.refund]
identity = ["/order"]
free_text = ["/memo"]
approval = { when = "args.amount > 100" }
"#;

on_both_stores! {
    async fn a_python_client_begins_completes_replays_and_holds(kind) {
        let Ok(python) = std::env::var("INTENT_LEDGER_TEST_PYTHON") else {
            panic!(
                "INTENT_LEDGER_TEST_PYTHON is not set: run ./test.sh (or ./test.sh python), which \
                 makes a Python with grpcio"
            );
        };
        let store = TestStore::new(kind).await;
        let policy = format!("{CHARGE_POLICY}{REFUND}");
        let mut server = ServerProcess::start(&store.address, Some(&policy), &[]).await;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut tests = Command::new(python);
        tests
            .arg(root.join("tests/python/test_client.py"))
            .args([root.join("proto").as_os_str(), server.grpc.as_ref(), server.http.as_ref()])
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let output =
            tokio::task::spawn_blocking(move || tests.output()).await.unwrap().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        // Its last line is what ./test.sh adds up.
        let counts = told.lines().last().unwrap_or_default();
        if let Ok(path) = std::env::var("INTENT_LEDGER_TEST_COUNTS") {
            let mut file = std::fs::File::options().append(true).create(true).open(path).unwrap();
            writeln!(file, "{counts}").unwrap();
        }
        assert!(output.status.success(), "{complaints}\n{told}");
        assert!(counts.ends_with(" passed, 0 failed") && !counts.starts_with('0'), "{told}");
        server.terminate().await;
    }
}
