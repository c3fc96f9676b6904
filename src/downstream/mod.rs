//! A downstream to test against: a service that has effects, with faults that can be set.
//!
//! It has an HTTP face that takes calls and status questions, a gRPC face that answers the status
//! service, and a sent log that is the truth. `docs/downstream.md` tells it to users.
//!
//! - `http`, `grpc`: the faces; `face`, `port`: their connections and what cuts them
//! - `calls`: what a call comes to; `status`: what a question is answered
//! - `book`, `sent_log`: what has happened
//! - `fault`, `faults`, `chance`, `outage`: what goes wrong

mod book;
mod calls;
mod chance;
mod face;
mod fault;
mod faults;
mod grpc;
mod http;
mod outage;
mod port;
mod sent_log;
mod status;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use thiserror::Error;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::{book::Book, chance::Chance, outage::Outages, port::Port, sent_log::SentLog};
pub use self::{
    fault::{Fault, FaultError, FaultKind, FaultRate},
    faults::Faults,
    outage::{Outage, OutageMode},
    sent_log::SentEffect,
};
use crate::{
    clock::{Clock, SystemClock},
    domain::time::Timestamp,
};

/// What a downstream is told at its start.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address of HTTP; port 0 takes a free one.
    pub http: SocketAddr,
    /// The address of gRPC; port 0 takes a free one.
    pub grpc: SocketAddr,
    /// For how long a key that comes again gets the first answer instead of a second effect; `None` for
    /// never.
    pub deduplicates: Option<Duration>,
    /// The faults.
    pub faults: Faults,
    /// What chance is drawn from. The same seed and keys meet the same faults.
    pub seed: u64,
    /// A file to which every effect is appended before it is answered; what it holds already has
    /// happened.
    pub log: Option<PathBuf>,
}

impl Default for Options {
    /// Free ports of this machine, no faults, no de-duplication, no file.
    fn default() -> Self {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            http: free,
            grpc: free,
            deduplicates: None,
            faults: Faults::none(),
            seed: 0,
            log: None,
        }
    }
}

/// Why a downstream did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address cannot be had.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The sent log cannot be read or written.
    #[error("open the sent log {}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The description of the gRPC services is none.
    #[error("describe the gRPC services")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A downstream that accepts calls, until it is stopped or dropped.
pub struct Running {
    /// The address of HTTP.
    pub http: SocketAddr,
    /// The address of gRPC.
    pub grpc: SocketAddr,
    simulator: Arc<Simulator>,
    faces: Vec<JoinHandle<()>>,
}

/// Starts a downstream, on the runtime of the caller.
///
/// # Errors
///
/// An address or the log cannot be had.
pub async fn start(options: Options) -> Result<Running, StartError> {
    let book = match options.log {
        None => Book::default(),
        Some(path) => SentLog::open(&path)
            .and_then(|(log, before)| Book::open(log, before))
            .map_err(|source| StartError::Log { path, source })?,
    };
    let stopping = CancellationToken::new();
    let simulator = Arc::new(Simulator {
        book: Mutex::new(book),
        faults: Mutex::new(options.faults),
        chance: Chance::new(options.seed),
        deduplicates: options.deduplicates,
        outages: Arc::new(Outages::new(stopping.clone())),
        changes: watch::Sender::default(),
        stopping,
    });
    let listen =
        |address| Port::take(address).map_err(|source| StartError::Listen { address, source });
    let (http, http_listener) = listen(options.http)?;
    let (grpc, grpc_listener) = listen(options.grpc)?;
    let addresses = (http.address(), grpc.address());
    let faces = [
        (http, http_listener, http::router(Arc::clone(&simulator))),
        (grpc, grpc_listener, grpc::router(Arc::clone(&simulator)).await?),
    ];
    let faces = faces.map(|(port, listener, router)| {
        let (outages, stopping) = (Arc::clone(&simulator.outages), simulator.stopping.clone());
        tokio::spawn(face::serve(port, listener, router, outages, stopping))
    });
    Ok(Running { http: addresses.0, grpc: addresses.1, simulator, faces: faces.into() })
}

impl Running {
    /// What happened, in that order.
    pub fn sent(&self) -> Vec<SentEffect> {
        self.simulator.book().sent()
    }

    /// How many effects happened.
    pub fn sent_count(&self) -> usize {
        self.simulator.book().sent_count()
    }

    /// How many requests for an effect came, whatever became of them.
    pub fn requests(&self) -> u64 {
        self.simulator.book().requests()
    }

    /// How many status questions about a key came and were not lost in an outage.
    pub fn questions(&self, key: &str) -> u64 {
        self.simulator.book().questions(key)
    }

    /// Returns once this is so; it is looked at after every effect, request and question.
    pub async fn until(&self, mut condition: impl FnMut(&Self) -> bool) {
        let mut changes = self.simulator.changes.subscribe();
        while !condition(self) {
            changes.changed().await.expect("the simulator, which sends them, is ours");
        }
    }

    /// Sets faults in place of those that were set; what calls asked for themselves stays.
    pub fn set_faults(&self, faults: Faults) {
        *self.simulator.faults() = faults;
    }

    /// Sets no faults, and forgets what calls have asked the status to do.
    pub fn clear_faults(&self) {
        self.simulator.clear_faults();
    }

    /// Begins an outage, in place of one that there is; returns once it shows.
    pub async fn set_outage(&self, outage: Outage) {
        self.simulator.outages.begin(outage).await;
    }

    /// Ends the outage; returns once connections are accepted.
    pub async fn end_outage(&self) {
        self.simulator.outages.end().await;
    }

    /// Returns once there is no outage and connections are accepted.
    pub async fn outage_over(&self) {
        self.simulator.outages.over().await;
    }

    /// Cuts all connections and gives the ports back. What happened has happened; effects under way do not
    /// happen any more.
    pub async fn stop(mut self) {
        self.simulator.stopping.cancel();
        for face in std::mem::take(&mut self.faces) {
            face.await.ok();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.simulator.stopping.cancel();
    }
}

/// What both faces share.
#[derive(Debug)]
struct Simulator {
    book: Mutex<Book>,
    faults: Mutex<Faults>,
    chance: Chance,
    deduplicates: Option<Duration>,
    outages: Arc<Outages>,
    /// Told after every change that somebody may wait for.
    changes: watch::Sender<()>,
    stopping: CancellationToken,
}

impl Simulator {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear_faults(&self) {
        *self.faults() = Faults::none();
        self.book().forget_status_faults();
    }

    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn changed(&self) {
        self.changes.send_replace(());
    }
}
