//! The reconciler of a running server: it needs nobody to ask it.

use futures::future::join_all;
use intent_ledger::{
    downstream::{Outage, OutageMode},
    ledger::LedgerOptions,
    proto::v1::ListIntentsRequest,
};

use super::*;
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use crate::{on_both_stores, support::load::wait_until};

/// Endpoints, of which one hangs and one is down.
const ENDPOINTS: usize = 8;

/// Open intents at each.
const ROWS: usize = 20;

async fn server(kind: Kind, policy: &str, interval: Duration) -> TestServer {
    let store = crate::support::server::TestStore::new(kind).await;
    let opened = store.open().await;
    let options = LedgerOptions::default();
    TestServer::over(store, opened, Some(policy), options, |config| {
        config.reconcile_interval = interval;
    })
    .await
}

/// How many intents of a tool are in this state.
async fn count(server: &TestServer, tool: &str, state: IntentState) -> usize {
    let request = ListIntentsRequest {
        tool: tool.into(),
        states: vec![state.into()],
        page_size: 1000,
        ..ListIntentsRequest::default()
    };
    server.operator.clone().list_intents(request).await.unwrap().into_inner().intents.len()
}

on_both_stores! {
    /// A caller that dies is looked after without anybody's doing.
    async fn a_server_settles_what_nobody_settled(kind) {
        let downstream = Downstream::start().await;
        let short = "[tools.charge]\nidentity = [\"/order\"]\nscope = \"namespace\"\nlease = \"300ms\"\n";
        let status = downstream.over_http("charge", "visibility = \"200ms\"");
        let server = server(kind, &policy(&[short, &status]), Duration::from_millis(100)).await;
        let world = World { server, downstream };
        let (sent, lost) = (world.granted("o-1").await, world.granted("o-2").await);
        world.downstream.send(&sent, "").await.unwrap();
        wait_until("both are settled", async || {
            let states = [world.state(&sent).await.0, world.state(&lost).await.0];
            states == [IntentState::Completed, IntentState::Failed]
        })
        .await;
        world.stop().await;
    }

    /// One endpoint that hangs and one that is down hold up none of the others, and once they are
    /// back their intents are settled too.
    async fn a_hanging_endpoint_holds_up_none_of_the_others(kind) {
        let downstreams = join_all((0..ENDPOINTS).map(|_| Downstream::start())).await;
        let tool = |n: usize| format!("tool-{n}");
        let sections: Vec<String> = downstreams
            .iter()
            .enumerate()
            .map(|(n, downstream)| {
                let name = tool(n);
                let status = downstream.over_http(&name, VISIBILITY);
                format!("[tools.{name}]\nidentity = [\"/order\"]\nscope = \"namespace\"\n{status}")
            })
            .collect();
        let sections: Vec<&str> = sections.iter().map(String::as_str).collect();
        let server = server(kind, &policy(&sections), Duration::from_millis(100)).await;
        for (n, downstream) in downstreams.iter().enumerate() {
            let begun = (0..ROWS).map(async |row| {
                let mut request = charge(&format!("o-{row}"), 1, "a");
                request.identity.as_mut().unwrap().tool = tool(n);
                let granted = expect(&server.agent, request, Decision::Execute, Reason::New).await;
                downstream.send(&granted, "").await.expect("an answer");
            });
            join_all(begun).await;
        }
        let out = |mode| Outage { mode, span: None };
        downstreams[0].running.set_outage(out(OutageMode::Hang)).await;
        downstreams[1].running.set_outage(out(OutageMode::Refuse)).await;
        server.store.age(MINUTE).await;
        wait_until("all others are settled", async || {
            let counts = (2..ENDPOINTS).map(async |n| count(&server, &tool(n), IntentState::Completed).await);
            join_all(counts).await.iter().all(|settled| *settled == ROWS)
        })
        .await;
        for (n, downstream) in downstreams.iter().enumerate().take(2) {
            assert_eq!(count(&server, &tool(n), IntentState::Started).await, ROWS);
            downstream.running.end_outage().await;
        }
        server.store.age(MINUTE * 5).await;
        wait_until("those two as well", async || {
            let counts = (0..2).map(async |n| count(&server, &tool(n), IntentState::Completed).await);
            join_all(counts).await.iter().all(|settled| *settled == ROWS)
        })
        .await;
        for downstream in &downstreams {
            assert_eq!(downstream.running.sent_count(), ROWS);
        }
        server.stop().await;
    }

    /// However much an endpoint sends, callers are answered meanwhile, and the question ends.
    async fn an_endpoint_that_floods_its_asker_keeps_no_caller_waiting(kind) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let flood = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
                    while stream.write_all(&flood).await.is_ok() {}
                });
            }
        });
        let status = format!(
            "[tools.charge.downstream.status]\n\
             http = {{ url = \"http://{place}/{{downstream_key}}\", timeout = \"300ms\" }}\n\
             completed_when = \"status == 200\"\n{VISIBILITY}\n"
        );
        let server = TestServer::with_policy(kind, &policy(&[CHARGE, &status, "[tools.mail]\n"])).await;
        let granted = expect(&server.agent, charge("o-1", 1, "a"), Decision::Execute, Reason::New).await;
        server.store.age(MINUTE).await;
        let key = key_of(&granted);
        let asked = pass(&server.agent, ReconcileRequest { key, ..ReconcileRequest::default() });
        let calls = async {
            for n in 0..20 {
                let mut request = charge(&format!("m-{n}"), 1, "a");
                request.identity.as_mut().unwrap().tool = "mail".into();
                request.identity.as_mut().unwrap().idempotency_key = format!("m-{n}");
                expect(&server.agent, request, Decision::Execute, Reason::New).await;
            }
        };
        // Without threads of their own each call takes as long as the flood is read at a stretch.
        let longest = Duration::from_secs(8);
        let (asked, ()) = tokio::time::timeout(longest, async { tokio::join!(asked, calls) })
            .await
            .expect("nobody waits for the flood");
        let verdict = asked.looked[0].verdict();
        assert!([Verdict::Unmapped, Verdict::Unreachable].contains(&verdict), "{verdict:?}");
        server.stop().await;
    }

    /// A stop waits for the row that is being asked about, not for its endpoint.
    async fn a_stop_ends_a_pass_between_two_rows(kind) {
        let downstream = Downstream::start().await;
        let status = downstream.over_http("charge", VISIBILITY);
        let server = server(kind, &policy(&[CHARGE, &status]), Duration::from_millis(50)).await;
        let world = World { server, downstream };
        let granted = world.abandoned("o-1", "").await;
        let hang = Outage { mode: OutageMode::Hang, span: None };
        world.downstream.running.set_outage(hang).await;
        world.wait(MINUTE).await;
        wait_until("it is claimed", async || {
            let (now, entry) = {
                let store = world.server.store.open().await;
                let key = key_of(&granted).parse().unwrap();
                let id = intent_ledger::store::row_id(&key, intent_ledger::domain::identity::HASH_VERSION);
                store.entry(id).await.unwrap()
            };
            entry.is_some_and(|entry| entry.is_claimed(now))
        })
        .await;
        let downstream = world.downstream;
        let store = world.server.stop().await;
        drop(downstream);
        assert_eq!(store.count_intents().await, 1);
    }
}
