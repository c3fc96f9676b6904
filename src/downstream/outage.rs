//! Outages: a time in which nobody is served.

use std::{str::FromStr, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How a service that is out behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutageMode {
    /// Connections are cut, new ones refused, as when the process is gone.
    Refuse,
    /// Every call and question is answered 503 or UNAVAILABLE, as by a proxy before a dead service.
    Error,
    /// Connections are accepted and nothing is ever answered.
    Hang,
}

impl OutageMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Refuse, Self::Error, Self::Hang];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Error => "error",
            Self::Hang => "hang",
        }
    }
}

impl FromStr for OutageMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no outage mode {text:?}; there are: {names}")
        })
    }
}

/// A time in which nobody is served. Nothing has an effect in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// How it shows.
    pub mode: OutageMode,
    /// When it ends by itself; `None` for not before it is ended.
    pub span: Option<Duration>,
}

/// The outage that there is, and what the faces have made of it.
#[derive(Debug)]
pub(super) struct Outages {
    now: watch::Sender<Now>,
    stopping: CancellationToken,
}

/// All of it in one place: whether a face closes is decided in one step with the mode, so that who
/// waits for the end does not miss a face that is about to close.
#[derive(Debug, Clone, Copy)]
struct Now {
    /// Counts the outages and their ends, so that nobody ends or waits for another one's.
    number: u64,
    mode: Option<OutageMode>,
    /// Faces that accept connections.
    open: usize,
    /// Faces that refuse them. One that is neither is on its way.
    closed: usize,
}

/// There are two: HTTP and gRPC.
const FACES: usize = 2;

impl Outages {
    /// None, with both faces open.
    pub(super) fn new(stopping: CancellationToken) -> Self {
        let now = Now { number: 0, mode: None, open: FACES, closed: 0 };
        Self { now: watch::Sender::new(now), stopping }
    }

    /// Begins one, in place of one that there is; returns once it shows at both faces.
    pub(super) async fn begin(self: &Arc<Self>, outage: Outage) {
        let number = self.change(Some(outage.mode));
        if let Some(span) = outage.span {
            let outages = Arc::clone(self);
            tokio::spawn(async move {
                let sleep = tokio::time::sleep(span);
                if outages.stopping.run_until_cancelled(sleep).await.is_some() {
                    outages.now.send_if_modified(|now| {
                        let ours = now.number == number;
                        if ours {
                            (now.number, now.mode) = (number + 1, None);
                        }
                        ours
                    });
                }
            });
        }
        self.wait(|now| {
            let refusing = now.mode == Some(OutageMode::Refuse);
            let shown = if refusing { now.closed == FACES } else { now.open == FACES };
            shown || now.number != number
        })
        .await;
    }

    /// Ends the one that there is; returns once both faces accept connections.
    pub(super) async fn end(&self) {
        self.change(None);
        self.over().await;
    }

    /// Returns once there is none and both faces accept connections.
    pub(super) async fn over(&self) {
        self.wait(|now| now.mode.is_none() && now.open == FACES).await;
    }

    /// The mode of the one that there is.
    pub(super) fn mode(&self) -> Option<OutageMode> {
        self.now.borrow().mode
    }

    /// Returns once connections are to be refused, or are not to be.
    pub(super) async fn refusing(&self, refusing: bool) {
        self.wait(|now| (now.mode == Some(OutageMode::Refuse)) == refusing).await;
    }

    /// Returns once the mode is another one.
    pub(super) async fn no_longer(&self, mode: OutageMode) {
        self.wait(|now| now.mode != Some(mode)).await;
    }

    /// Whether a face that is open has to close; if so, it is on its way.
    pub(super) fn closing(&self) -> bool {
        self.now.send_if_modified(|now| {
            let closing = now.mode == Some(OutageMode::Refuse);
            now.open -= usize::from(closing);
            closing
        })
    }

    /// A face that was on its way refuses connections.
    pub(super) fn closed(&self) {
        self.now.send_modify(|now| now.closed += 1);
    }

    /// A face that refused connections accepts them.
    pub(super) fn opened(&self) {
        self.now.send_modify(|now| (now.open, now.closed) = (now.open + 1, now.closed - 1));
    }

    fn change(&self, mode: Option<OutageMode>) -> u64 {
        let mut number = 0;
        self.now.send_modify(|now| {
            (now.number, now.mode) = (now.number + 1, mode);
            number = now.number;
        });
        number
    }

    /// Returns once it is so, or the simulator stops.
    async fn wait(&self, so: impl FnMut(&Now) -> bool) {
        let mut now = self.now.subscribe();
        tokio::select! {
            _ = now.wait_for(so) => {}
            () = self.stopping.cancelled() => {}
        }
    }
}
