//! Between callers and servers: requests and replies that are lost, late or doubled.

use std::{sync::Arc, time::Duration};

use intent_ledger::{
    clock::Deadline,
    ledger::{
        BeginAnswer, BeginRequest, CompleteRequest, ExtendAnswer, ExtendRequest, FailRequest,
        Ledger, LedgerError, SettleAnswer,
    },
};

use super::{run::World, server::Running};
use crate::dice::Dice;

/// How long a caller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A call of a ledger.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Begin(BeginRequest),
    Complete(CompleteRequest),
    Fail(FailRequest),
    Extend(ExtendRequest),
}

/// Its answer.
pub(crate) enum Reply {
    Begun(Box<BeginAnswer>),
    Settled(SettleAnswer),
    Extended(ExtendAnswer),
}

/// What becomes of a message, as far as its sender can tell.
pub(crate) enum Delivery {
    Answered(Result<Reply, LedgerError>),
    /// It may have arrived, or may still.
    NoAnswer,
    /// It certainly never left.
    NotSent,
}

impl Message {
    async fn put(self, ledger: &Ledger, deadline: Deadline) -> Result<Reply, LedgerError> {
        match self {
            Self::Begin(request) => {
                let begun = ledger.begin(request, deadline).await?;
                Ok(Reply::Begun(Box::new(begun)))
            }
            Self::Complete(request) => ledger.complete(request, deadline).await.map(Reply::Settled),
            Self::Fail(request) => ledger.fail(request, deadline).await.map(Reply::Settled),
            Self::Extend(request) => ledger.extend(request, deadline).await.map(Reply::Extended),
        }
    }
}

/// Puts a message to a server, which may crash over it.
async fn put(
    server: &Running,
    message: Message,
    deadline: Deadline,
) -> Option<Result<Reply, LedgerError>> {
    tokio::select! {
        biased;
        () = server.crashed.cancelled() => None,
        answer = tokio::time::timeout(PATIENCE, message.put(&server.ledger, deadline)) => answer.ok(),
    }
}

/// Sends a message, for better or worse.
pub(crate) async fn send(world: &Arc<World>, dice: &mut Dice, message: Message) -> Delivery {
    let Some(server) = world.any_server(dice) else { return Delivery::NotSent };
    if dice.percent(world.network_percent()) {
        let late = Duration::from_millis(dice.one_of(&[10, 3_000, 60_000, 3_600_000]));
        let fault = dice.below(4) as usize;
        let names = ["request lost", "request late", "reply lost", "request doubled"];
        world.trace.count(format!("network: {}", names[fault]));
        match fault {
            0 => {
                world.calendar.sleep(PATIENCE).await;
                return Delivery::NoAnswer;
            }
            1 => {
                // It arrives when its sender has long given up.
                deliver_late(world, dice, message, late);
                world.calendar.sleep(PATIENCE).await;
                return Delivery::NoAnswer;
            }
            2 => {
                put(&server, message, Deadline::default()).await;
                world.calendar.sleep(PATIENCE).await;
                return Delivery::NoAnswer;
            }
            // And once more, behind its sender's back.
            _ => deliver_late(world, dice, message.clone(), late),
        }
    }
    let hurried = world.network_percent() > 0 && dice.percent(5);
    let budget = hurried.then(|| dice.moment());
    match put(&server, message, Deadline::after(budget)).await {
        Some(answer) => {
            if world.network_percent() > 0 && dice.percent(3) {
                // The way back takes long.
                let slow = Duration::from_secs(dice.below(PATIENCE.as_secs()));
                world.calendar.sleep(slow).await;
            }
            Delivery::Answered(answer)
        }
        None => Delivery::NoAnswer,
    }
}

fn deliver_late(world: &Arc<World>, dice: &mut Dice, message: Message, late: Duration) {
    let world = Arc::clone(world);
    let mut dice = Dice::new(dice.below(u64::MAX), 3);
    let calendar = Arc::clone(&world.calendar);
    calendar.spawn(async move {
        world.calendar.sleep(late).await;
        if let Some(server) = world.any_server(&mut dice) {
            put(&server, message, Deadline::default()).await;
        }
    });
}
