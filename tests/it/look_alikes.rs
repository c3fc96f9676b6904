//! Look-alikes: another key, the same subject a moment ago.

use std::time::Duration;

use intent_ledger::proto::v1::{BeginRequest, Decision, IntentState, ListIntentsRequest, Reason};

use crate::{
    on_both_stores,
    support::{
        calls::{
            BeginResponseExt as _, approval, approve, begin, completed, denial, deny, expect,
            key_of, keyed, look, refused, step,
        },
        server::{TestServer, TestStore},
    },
};

fn policy(action: &str) -> String {
    format!(
        "[tools.mail]\n[tools.mail.look_alike]\n\
         subject = [{{ pointer = \"/to\", normalize = [\"trim\", \"lowercase\"] }}]\n\
         window = \"10m\"\naction = \"{action}\"\n"
    )
}

fn mail(key: &str, to: &str) -> BeginRequest {
    keyed("mail", key, &format!("{{\"to\":\"{to}\",\"text\":\"{key}\"}}"))
}

on_both_stores! {
    async fn a_look_alike_is_told_and_merged_with_nothing(kind) {
        let server = TestServer::with_policy(kind, &policy("warn")).await;
        let agent = &server.agent;
        let first = expect(agent, mail("k1", "ann@x.org"), Decision::Execute, Reason::New).await;
        assert!(first.warnings.is_empty() && first.similar.is_empty());
        let second = expect(agent, mail("k2", " Ann@X.org "), Decision::Execute, Reason::New).await;
        assert_eq!(second.warnings, ["look_alike"]);
        assert_eq!(second.similar.len(), 1);
        let similar = &second.similar[0];
        assert_eq!((similar.key.as_str(), similar.state()), (key_of(&first).as_str(), IntentState::Started));
        assert_eq!(similar.subject_pointers, ["/to"]);
        assert_eq!(similar.create_time, first.recorded().create_time);
        assert_ne!(key_of(&first), key_of(&second));
        // Another recipient, another tool, a repeat of the first: no look-alike.
        for other in [mail("k3", "bob@x.org"), keyed("post", "k4", r#"{"to":"ann@x.org"}"#)] {
            let answer = expect(agent, other, Decision::Execute, Reason::New).await;
            assert!(answer.warnings.is_empty() && answer.similar.is_empty());
        }
        let repeat = expect(agent, mail("k1", "ann@x.org"), Decision::Hold, Reason::InFlight).await;
        assert!(repeat.similar.is_empty());
        // The window is over.
        server.store.age(Duration::from_secs(601)).await;
        let later = expect(agent, mail("k5", "ann@x.org"), Decision::Execute, Reason::New).await;
        assert!(later.similar.is_empty());
        server.stop().await;
    }

    async fn a_call_without_a_subject_is_not_compared_and_says_so(kind) {
        let server = TestServer::with_policy(kind, &policy("refuse")).await;
        for key in ["k1", "k2"] {
            let request = keyed("mail", key, r#"{"text":"a"}"#);
            let answer = expect(&server.agent, request, Decision::Execute, Reason::New).await;
            assert_eq!(answer.warnings, ["look_alike_unchecked"]);
        }
        server.stop().await;
    }

    async fn a_look_alike_is_refused_where_the_policy_says_so(kind) {
        let server = TestServer::with_policy(kind, &policy("refuse")).await;
        let agent = &server.agent;
        let first = completed(agent, mail("k1", "ann@x.org"), b"sent").await;
        let refused = expect(agent, mail("k2", "ann@x.org"), Decision::Refuse, Reason::LookAlikeLimit).await;
        assert_eq!(refused.intent, None);
        assert_eq!(refused.similar[0].key, first.key);
        assert_eq!(refused.similar[0].state(), IntentState::Completed);
        assert!(refused.model_message.contains("almost the same"), "{}", refused.model_message);
        expect(agent, mail("k1", "ann@x.org"), Decision::Replay, Reason::Completed).await;
        assert_eq!(server.store.count_intents().await, 1);
        // What was refused is no look-alike of what comes after it.
        server.store.age(Duration::from_secs(599)).await;
        expect(agent, mail("k2", "ann@x.org"), Decision::Refuse, Reason::LookAlikeLimit).await;
        server.store.age(Duration::from_secs(2)).await;
        expect(agent, mail("k2", "ann@x.org"), Decision::Execute, Reason::New).await;
        server.stop().await;
    }

    async fn a_person_decides_about_a_look_alike(kind) {
        let server = TestServer::with_policy(kind, &policy("await_approval")).await;
        let agent = &server.agent;
        let first = expect(agent, mail("k1", "ann@x.org"), Decision::Execute, Reason::New).await;
        let second =
            expect(agent, mail("k2", "ann@x.org"), Decision::AwaitApproval, Reason::ApprovalRequired).await;
        assert_eq!(second.similar[0].key, key_of(&first));
        let third =
            expect(agent, mail("k3", "ann@x.org"), Decision::AwaitApproval, Reason::ApprovalRequired).await;
        assert_eq!(third.similar.len(), 2, "a proposal is one too");
        // Whoever decides sees which one it looks like.
        let shown = look(agent, &key_of(&second)).await;
        assert_eq!(shown.events[0].note, format!("looks like {}", key_of(&first)));
        assert_eq!(shown.arguments_json, r#"{"to":"ann@x.org","text":"k2"}"#);
        approve(&server.operator, approval(&shown, "ada")).await.unwrap();
        expect(agent, mail("k2", "ann@x.org"), Decision::Execute, Reason::Approved).await;
        let shown = look(agent, &key_of(&third)).await;
        deny(&server.operator, denial(&shown, "ada")).await.unwrap();
        expect(agent, mail("k3", "ann@x.org"), Decision::Refuse, Reason::Denied).await;
        // A weak key would be evaded by the next rewording.
        refused(agent, step("mail", "r", "s", r#"{"to":"ann@x.org"}"#), "WEAK_KEY").await;
        server.stop().await;
    }

    /// Of two at once, on two servers, one is the other's look-alike.
    async fn two_at_once_do_not_both_pass(kind) {
        for action in ["refuse", "await_approval"] {
            let store = TestStore::new(kind).await;
            let a = TestServer::on(store.clone(), Some(&policy(action))).await;
            let b = TestServer::on(store.clone(), Some(&policy(action))).await;
            for round in 0..15 {
                let to = format!("{round}@x.org");
                let (one, two) = tokio::join!(
                    begin(&a.agent, mail(&format!("{round}-a"), &to)),
                    begin(&b.agent, mail(&format!("{round}-b"), &to)),
                );
                let executed = [&one, &two].map(|it| usize::from(it.decision() == Decision::Execute));
                assert_eq!(executed.iter().sum::<usize>(), 1, "{action}: {one:?} {two:?}");
                let other = if executed[0] == 1 { &two } else { &one };
                assert_eq!(other.similar.len(), 1);
            }
            let all = a.operator.clone().list_intents(ListIntentsRequest::default()).await.unwrap();
            let rows = if action == "refuse" { 15 } else { 30 };
            assert_eq!(all.into_inner().intents.len(), rows);
            a.stop().await;
            b.stop().await;
        }
    }
}
