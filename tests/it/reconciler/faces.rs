//! Over which wire the downstream is asked, with what secrets, and where it never is.

use intent_ledger::{
    domain::identity::{HASH_VERSION, Key},
    proto::v1::{Identity, IntentView, LookupRequest},
    store::{RowKey, row_id},
};

use super::*;
use crate::{on_both_stores, support::calls::attempt};

on_both_stores! {
    async fn a_downstream_can_be_asked_over_grpc(kind) {
        let downstream = Downstream::start().await;
        let status = downstream.over_grpc("charge", VISIBILITY);
        let server = TestServer::with_policy(kind, &policy(&[CHARGE, &status])).await;
        let world = World { server, downstream };
        let cases = [
            ("", Verdict::Completed),
            ("twice", Verdict::Duplicated),
            ("late_effect=1h", Verdict::Running),
            ("refused", Verdict::Absent),
            ("status_unmapped", Verdict::Unmapped),
            ("status_other_key", Verdict::Unmapped),
            ("status_html", Verdict::Unmapped),
            ("status_redirect", Verdict::Unmapped),
            ("status_error", Verdict::Unreachable),
        ];
        for (n, (fault, verdict)) in cases.into_iter().enumerate() {
            let granted = world.abandoned(&format!("o-{n}"), fault).await;
            world.wait(MINUTE).await;
            assert_eq!(world.verdict(&granted).await, verdict, "{fault}");
        }
        let request = calls::charge("o-0", 1200, "a");
        let replay = expect(world.agent(), request, Decision::Replay, Reason::Completed).await;
        let result = replay.intent.unwrap().result.unwrap();
        assert!(String::from_utf8(result).unwrap().contains("eff-1"));
        world.stop().await;
    }

    /// A URL that asks by a business id makes the ledger keep that one value until it is settled.
    async fn a_business_id_is_kept_until_it_is_settled(kind) {
        let tool = "[tools.charge]\nscope = \"namespace\"\n";
        let world = World::asking_by(kind, tool, "{business.order}").await;
        let request = |ids: &[(&str, &str)]| BeginRequest {
            identity: Some(Identity {
                tool: "charge".into(),
                business_ids: ids.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
                ..Identity::default()
            }),
            attempt_id: attempt(),
            ..BeginRequest::default()
        };
        let nameless = calls::refused(world.agent(), request(&[("invoice", "7")]), "BUSINESS_ID_REQUIRED").await;
        assert!(nameless.message().contains("order"), "{nameless:?}");
        let granted = expect(world.agent(), request(&[("order", "no 8812/b"), ("team", "x")]), Decision::Execute, Reason::New).await;
        let store = world.server.store.open().await;
        let key: Key = key_of(&granted).parse().unwrap();
        let row = RowKey { namespace: "default".into(), id: row_id(&key, HASH_VERSION) };
        let kept = || async {
            let found = store.find(std::slice::from_ref(&row)).await.unwrap();
            found.rows[0].as_ref().unwrap().intent.kept.clone()
        };
        assert_eq!(kept().await, [("order".to_owned(), "no 8812/b".to_owned())].into());
        world.wait(MINUTE).await;
        // The simulator knows no such key: an answer all the same, to a URL that is whole.
        assert_eq!(world.verdict(&granted).await, Verdict::Absent);
        assert_eq!(world.downstream.running.questions("no 8812/b"), 1);
        calls::complete(world.agent(), calls::completion(&granted, b"1")).await.unwrap();
        assert_eq!(kept().await, [].into());
        world.stop().await;
    }

    /// A call that no URL can be made of is nobody's outage: its own asking ends with a person, and the others
    /// at the endpoint are asked.
    async fn a_question_that_cannot_be_sent_keeps_no_other_from_being_asked(kind) {
        let world = World::asking_by(kind, CHARGE, "{downstream_key}?{business.order}").await;
        let mut long = Vec::new();
        // More than open a circuit.
        for n in 0..12 {
            long.push(world.granted(&format!("{n}{}", "x".repeat(70_000))).await);
        }
        world.wait(MINUTE).await;
        assert_eq!(world.pass().await.verdicts(), [Verdict::Unmapped; 12]);
        let good = world.abandoned("o-1", "").await;
        world.wait(MINUTE * 60 * 24).await;
        assert_eq!(world.verdict(&good).await, Verdict::Completed);
        assert_eq!(world.pass().await.verdicts(), [Verdict::Unmapped; 12]);
        assert_eq!(world.state(&long[0]).await, (IntentState::Unknown, true));
        world.stop().await;
    }

    /// What the key is made of goes before what is merely sent along: the question must be about the effect.
    async fn the_identity_pointer_is_asked_by_and_not_what_is_sent_along(kind) {
        let world = World::asking_by(kind, CHARGE, "{business.order}").await;
        let mut request = calls::charge("o-17", 1200, "a");
        let ids = &mut request.identity.as_mut().unwrap().business_ids;
        ids.insert("order".into(), "o-99".into());
        let granted = expect(world.agent(), request, Decision::Execute, Reason::New).await;
        world.wait(MINUTE).await;
        world.verdict(&granted).await;
        assert_eq!(world.downstream.running.questions("o-99"), 0);
        assert_eq!(world.downstream.running.questions("o-17"), 1);
        world.stop().await;
    }

    /// Case 33: what a request says is never where the ledger goes.
    async fn a_url_in_the_arguments_is_ignored(kind) {
        let world = World::new(kind).await;
        let elsewhere = Downstream::start().await;
        let url = format!("http://{}/v1/effects/by-key/x", elsewhere.running.http);
        let arguments = format!(r#"{{"order":"{url}","amount":1,"status_url":"{url}","memo":"{url}"}}"#);
        let granted = expect(world.agent(), calls::charge_json(&arguments), Decision::Execute, Reason::New).await;
        calls::extend(world.agent(), &granted, 60, &url).await.unwrap();
        world.wait(MINUTE * 5).await;
        world.verdict(&granted).await;
        assert_eq!(elsewhere.running.questions("x"), 0);
        assert_eq!(world.downstream.running.questions(&granted.downstream_key), 1);
        world.stop().await;
    }

    /// A secret that this server does not have is this server's fault, not the row's.
    async fn a_missing_secret_counts_nothing(kind) {
        let downstream = Downstream::start().await;
        let status = downstream.over_http("charge", VISIBILITY).replace(
            "{downstream_key}\"",
            "{downstream_key}\", headers = { authorization = \"Bearer ${INTENT_LEDGER_TEST_NO_SUCH_SECRET}\" }",
        );
        let server = TestServer::with_policy(kind, &policy(&[CHARGE, &status])).await;
        let world = World { server, downstream };
        let granted = world.abandoned("o-17", "").await;
        world.wait(MINUTE * 5).await;
        let pass = world.pass().await;
        assert_eq!(pass.verdicts(), [Verdict::Unreachable]);
        assert!(pass.looked[0].note.contains("INTENT_LEDGER_TEST_NO_SUCH_SECRET"), "{:?}", pass.looked);
        assert_eq!(world.downstream.running.questions(&granted.downstream_key), 0);
        let request = LookupRequest { view: IntentView::Full.into(), ..calls::by_key(&key_of(&granted)) };
        assert_eq!(calls::lookup(world.agent(), request).await.unwrap().events, []);
        world.stop().await;
    }
}

impl World {
    /// The downstream is asked by `place`, which ends the URL.
    async fn asking_by(kind: Kind, tool: &str, place: &str) -> Self {
        let downstream = Downstream::start().await;
        let status = downstream.over_http("charge", VISIBILITY).replace("{downstream_key}", place);
        let server = TestServer::with_policy(kind, &policy(&[tool, &status])).await;
        Self { server, downstream }
    }
}
