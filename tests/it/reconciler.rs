//! The reconciler, asked for one pass at a time, over a real downstream: cases 30 to 35.

mod background;
mod faces;
mod on_begin;
mod people;
mod verdicts;

use std::time::Duration;

use intent_ledger::proto::v1::{
    BeginRequest, BeginResponse, Decision, Intent, IntentState, Reason, ReconcileRequest,
    ReconcileResponse, ReconcileTotals, Verdict,
};

use crate::support::{
    calls::{self, Agent, charge, expect, key_of},
    downstream::{Downstream, policy},
    server::{Kind, TestServer},
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// What the policies of these tests have in common: a lease of a minute, two to be visible.
const CHARGE: &str = r#"
[tools.charge]
identity = ["/order"]
scope = "namespace"
free_text = ["/memo"]
"#;

const VISIBILITY: &str = "visibility = \"2m\"";

/// A ledger and a downstream that it may ask.
struct World {
    server: TestServer,
    downstream: Downstream,
}

/// One pass: what it told of each intent, and the totals.
struct Pass {
    looked: Vec<ReconcileResponse>,
    totals: ReconcileTotals,
}

impl World {
    async fn new(kind: Kind) -> Self {
        Self::with(kind, "").await
    }

    /// `more` goes into the status table.
    async fn with(kind: Kind, more: &str) -> Self {
        let downstream = Downstream::start().await;
        let status = downstream.over_http("charge", &format!("{VISIBILITY}\n{more}"));
        let server = TestServer::with_policy(kind, &policy(&[CHARGE, &status])).await;
        Self { server, downstream }
    }

    /// Its downstream has no longer than `timeout` to answer.
    async fn hurried(kind: Kind, timeout: &str) -> Self {
        let downstream = Downstream::start().await;
        let status = downstream.over_http("charge", VISIBILITY);
        let status = status.replace("\" }\n", &format!("\", timeout = \"{timeout}\" }}\n"));
        let server = TestServer::with_policy(kind, &policy(&[CHARGE, &status])).await;
        Self { server, downstream }
    }

    fn agent(&self) -> &Agent {
        &self.server.agent
    }

    /// A Begin that is granted.
    async fn granted(&self, order: &str) -> BeginResponse {
        expect(self.agent(), charge(order, 1200, "a"), Decision::Execute, Reason::New).await
    }

    /// A Begin that is granted, whose caller then acts and is never heard of again.
    async fn abandoned(&self, order: &str, faults: &str) -> BeginResponse {
        let granted = self.granted(order).await;
        self.downstream.send(&granted, faults).await;
        granted
    }

    /// Time goes by.
    async fn wait(&self, span: Duration) {
        self.server.store.age(span).await;
    }

    async fn pass(&self) -> Pass {
        self.pass_with(ReconcileRequest::default()).await
    }

    async fn pass_with(&self, request: ReconcileRequest) -> Pass {
        pass(self.agent(), request).await
    }

    /// What a look at this one intent says.
    async fn verdict(&self, granted: &BeginResponse) -> Verdict {
        let request = ReconcileRequest { key: key_of(granted), ..ReconcileRequest::default() };
        let pass = self.pass_with(request).await;
        assert_eq!(pass.looked.len(), 1, "{:?}", pass.looked);
        pass.looked[0].verdict()
    }

    async fn look(&self, granted: &BeginResponse) -> Intent {
        calls::look(self.agent(), &key_of(granted)).await
    }

    async fn state(&self, granted: &BeginResponse) -> (IntentState, bool) {
        let intent = self.look(granted).await;
        (intent.state(), intent.needs_attention)
    }

    async fn again(&self, request: BeginRequest) -> (Decision, Reason) {
        let answer = calls::begin(self.agent(), request).await;
        (answer.decision(), answer.reason())
    }

    async fn stop(self) {
        self.server.stop().await;
    }
}

impl Pass {
    fn verdicts(&self) -> Vec<Verdict> {
        self.looked.iter().map(ReconcileResponse::verdict).collect()
    }
}

async fn pass(agent: &Agent, request: ReconcileRequest) -> Pass {
    let mut stream = agent.clone().reconcile(request).await.unwrap().into_inner();
    let mut looked = Vec::new();
    loop {
        let told = stream.message().await.unwrap().expect("the totals come last");
        match told.totals {
            Some(totals) => {
                assert!(stream.message().await.unwrap().is_none(), "nothing comes after them");
                assert_eq!(totals.looked_at_count, looked.len() as i64);
                return Pass { looked, totals };
            }
            None => looked.push(told),
        }
    }
}
