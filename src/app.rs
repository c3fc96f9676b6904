//! The composition root: chooses the store, starts and stops every task.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};
use tonic_health::server::HealthReporter;

use crate::{
    config::ServeConfig,
    grpc::{LedgerService, OperationsService, REQUEST_BYTES_MAX},
    ledger::{Ledger, LedgerOptions, OfferError},
    policy::Policy,
    proto::{
        FILE_DESCRIPTOR_SET,
        v1::{
            intent_ledger_service_server::IntentLedgerServiceServer,
            intent_operations_service_server::IntentOperationsServiceServer,
        },
    },
    reconciler::{Endpoints, Reconciler},
    store::{self, Statements, Store, StoreOptions, observed::Observed},
    telemetry::{FailedTo, chain, metrics},
};

/// How often the policy file is looked at for changes.
const POLICY_FILE_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes that one stream may have sent unread: some hundred Begins. The more it is, the fewer Sessions that are not read
/// for a moment can share a connection before h2 takes their many small frames for an attack.
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;

/// Bytes that all streams of a connection may have sent unread.
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// How often health follows the store.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// Calls that one connection may cancel before they were looked at. An orchestrator whose network
/// stalls gives up on everything under way at once; the library's default of 20 would end the
/// connection, and with it the calls that were still wanted.
const CANCELLED_CALLS_MAX: usize = 4096;

/// A server that accepts calls.
pub struct Running {
    /// The address of gRPC.
    pub grpc: SocketAddr,
    /// The address of HTTP.
    pub http: SocketAddr,
    ledger: Arc<Ledger>,
    policy: Option<PathBuf>,
    health: HealthReporter,
    draining: CancellationToken,
    grace: Duration,
    servers: Vec<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
}

/// Opens the store and starts to accept calls.
///
/// # Errors
///
/// Anything that keeps the server from serving, with what mends it.
pub async fn start(config: &ServeConfig) -> anyhow::Result<Running> {
    let options = StoreOptions {
        allow_unsafe_durability: config.allow_unsafe_durability,
        connections_max: config.connections_max,
        statements: if config.behind_pooler { Statements::Unnamed } else { Statements::Named },
        ..StoreOptions::new(&config.store)
    };
    if let Some(path) = &config.policy {
        // Before the store is touched: a bad file must change nothing, not even its schema.
        let text = read_policy(path).await?;
        let policy = Policy::from_text(&text).map_err(|error| bad_policy(path, &error))?;
        let within_transactions = policy.in_transactions();
        if store::is_embedded(&config.store) && !within_transactions.is_empty() {
            return Err(bad_policy(path, &OfferError::NotShared(within_transactions)));
        }
    }
    let store = store::open(&options).await.map_err(FailedTo)?;
    start_with(config, store, LedgerOptions::default()).await
}

/// Starts to accept calls over a store that is open.
///
/// # Errors
///
/// Anything that keeps the server from serving.
pub async fn start_with(
    config: &ServeConfig,
    store: Arc<dyn Store>,
    options: LedgerOptions,
) -> anyhow::Result<Running> {
    metrics::recorder();
    let store: Arc<dyn Store> = Arc::new(Observed(store));
    let options = LedgerOptions {
        queue_max: config.queue_max,
        batch_rows_max: config.batch_rows_max,
        writers: config.writers,
        ..options
    };
    let endpoints = Arc::new(Endpoints::new().context("failed to read the system's certificates")?);
    let ledger = Ledger::start(store, Arc::clone(&endpoints) as _, &options)
        .await
        .context("failed to start the ledger")?;
    let offered = match &config.policy {
        Some(path) => Some((path.clone(), offer_at_start(&ledger, path).await?)),
        None => None,
    };

    let grpc_listener = bind("listen", config.listen).await?;
    let http_listener = bind("http", config.http).await?;
    if config.allow_unauthenticated {
        tracing::warn!(
            "no credentials are asked for: whoever reaches the ports may settle anything"
        );
    } else {
        tracing::info!("without credentials only this machine is served");
    }
    let grpc = grpc_listener.local_addr()?;
    let http = http_listener.local_addr()?;
    let draining = CancellationToken::new();
    let reconciler = Reconciler::new(Arc::clone(&ledger), endpoints, draining.clone());

    let (health, health_service) = tonic_health::server::health_reporter();
    set_serving(&health, true).await;
    let routes = Routes::new(health_service)
        .add_service(
            IntentLedgerServiceServer::new(LedgerService::new(
                Arc::clone(&ledger),
                Arc::clone(&reconciler),
                usize::try_from(config.bytes_in_flight_max.as_u64()).unwrap_or(usize::MAX),
                draining.clone(),
            ))
            .max_decoding_message_size(REQUEST_BYTES_MAX),
        )
        .add_service(
            IntentOperationsServiceServer::new(OperationsService::new(Arc::clone(&ledger)))
                .max_decoding_message_size(REQUEST_BYTES_MAX),
        )
        .add_service(reflection()?.build_v1()?)
        .add_service(reflection()?.build_v1alpha()?);
    let serving = Server::builder()
        // What one stream may send unread, far below what a connection may: so a Session that is
        // not read for a moment is held up by flow control, before h2 counts its many small frames
        // as an attack and ends the connection (it allows for half the connection's window).
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_max_pending_accept_reset_streams(Some(CANCELLED_CALLS_MAX))
        .add_routes(routes)
        .serve_with_incoming_shutdown(
            TcpIncoming::from(grpc_listener).with_nodelay(Some(true)),
            draining.clone().cancelled_owned(),
        );
    let grpc_server = tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the gRPC server ended");
        }
    });

    let pages = pages(Arc::clone(&ledger), draining.clone());
    let http_stopping = draining.clone();
    let http_server = tokio::spawn(async move {
        let serving = axum::serve(http_listener, pages)
            .with_graceful_shutdown(http_stopping.cancelled_owned());
        if let Err(error) = serving.await {
            tracing::error!(%error, "the HTTP server ended");
        }
    });

    let mut tasks =
        vec![tokio::spawn(follow_store(Arc::clone(&ledger), health.clone(), draining.clone()))];
    if !config.reconcile_interval.is_zero() {
        tasks.push(tokio::spawn(reconciler.run(config.reconcile_interval)));
    }
    if !config.prune_interval.is_zero() {
        let pruning = Arc::clone(&ledger).keep_pruning(config.prune_interval, draining.clone());
        tasks.push(tokio::spawn(pruning));
    }
    if let Some((path, text)) = offered {
        tasks.push(tokio::spawn(follow_file(Arc::clone(&ledger), path, text, draining.clone())));
    }
    Ok(Running {
        grpc,
        http,
        ledger,
        policy: config.policy.clone(),
        health,
        draining,
        grace: config.shutdown_grace,
        servers: vec![grpc_server, http_server],
        tasks,
    })
}

impl Running {
    /// Offers the policy file again, as on SIGHUP.
    pub async fn reload_policy(&self) {
        if let Some(path) = &self.policy {
            offer_again(&self.ledger, path).await;
        }
    }

    /// Refuses new work, lets what is under way finish within the grace period, writes what is
    /// queued.
    pub async fn stop(self) {
        set_serving(&self.health, false).await;
        self.ledger.release_waiters();
        self.draining.cancel();
        for server in self.servers {
            let abort = server.abort_handle();
            if tokio::time::timeout(self.grace, server).await.is_err() {
                tracing::warn!("calls were still under way after the grace period");
                abort.abort();
            }
        }
        for task in self.tasks {
            let abort = task.abort_handle();
            // A downstream that hangs holds up no stop.
            if tokio::time::timeout(self.grace, task).await.is_err() {
                abort.abort();
            }
        }
        self.ledger.stop().await;
    }
}

async fn bind(setting: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen on {address} (--{setting})"))
}

/// Only what is served here: the contract also has a service for downstreams.
fn reflection() -> anyhow::Result<tonic_reflection::server::Builder<'static>> {
    Ok(tonic_reflection::server::Builder::configure()
        .with_service_name("intent_ledger.v1.IntentLedgerService")
        .with_service_name("intent_ledger.v1.IntentOperationsService")
        .with_service_name("grpc.health.v1.Health")
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET))
}

async fn set_serving(health: &HealthReporter, serving: bool) {
    use tonic_health::ServingStatus;
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in
        ["", "intent_ledger.v1.IntentLedgerService", "intent_ledger.v1.IntentOperationsService"]
    {
        health.set_service_status(service, status).await;
    }
}

/// Health says whether the store answers: a server that cannot record must get no calls.
async fn follow_store(ledger: Arc<Ledger>, health: HealthReporter, stopping: CancellationToken) {
    let mut was_ready = true;
    while stopping.run_until_cancelled(tokio::time::sleep(HEALTH_INTERVAL)).await.is_some() {
        let ready = ledger.is_ready().await;
        if ready != was_ready {
            tracing::warn!(ready, "the store's readiness changed");
            set_serving(&health, ready && !stopping.is_cancelled()).await;
            was_ready = ready;
        }
    }
}

/// A bad file keeps a server from starting. One that has been replaced since does not: an older
/// replica that restarts goes on with the newer policy. Says what was offered.
async fn offer_at_start(ledger: &Ledger, path: &Path) -> anyhow::Result<String> {
    let text = read_policy(path).await?;
    match ledger.offer_policy(&text).await {
        Ok(version) => tracing::info!(version, "policy active"),
        Err(error @ OfferError::Replaced { .. }) => {
            tracing::warn!(%error, "this server's policy file is behind");
        }
        Err(error) => return Err(bad_policy(path, &error)),
    }
    Ok(text)
}

async fn read_policy(path: &Path) -> anyhow::Result<String> {
    let text = tokio::fs::read_to_string(path).await;
    text.with_context(|| format!("failed to read the policy {}", path.display()))
}

fn bad_policy(path: &Path, error: &impl fmt::Display) -> anyhow::Error {
    anyhow!("failed to load the policy {}:\n{error}", path.display())
}

async fn offer_again(ledger: &Ledger, path: &PathBuf) {
    match tokio::fs::read_to_string(path).await {
        Ok(text) => {
            offer(ledger, &text).await;
        }
        Err(error) => tracing::error!(%error, "the policy file cannot be read; the old one stays"),
    }
}

/// Says whether the store was there to decide it.
async fn offer(ledger: &Ledger, text: &str) -> bool {
    match ledger.offer_policy(text).await {
        Ok(version) => tracing::info!(version, "policy active"),
        Err(OfferError::Store(error)) => {
            let error = chain(&error);
            tracing::error!(error, "the policy file could not be offered; the old one stays");
            return false;
        }
        Err(error) => tracing::error!(%error, "the policy file was refused; the old one stays"),
    }
    true
}

/// Offers the file again whenever its text is another one than the `known`, last offered.
async fn follow_file(
    ledger: Arc<Ledger>,
    path: PathBuf,
    mut known: String,
    stopping: CancellationToken,
) {
    while stopping.run_until_cancelled(tokio::time::sleep(POLICY_FILE_INTERVAL)).await.is_some() {
        if let Ok(text) = tokio::fs::read_to_string(&path).await
            && text != known
            && offer(&ledger, &text).await
        {
            known = text;
        }
    }
}

#[derive(Clone)]
struct Pages {
    ledger: Arc<Ledger>,
    draining: CancellationToken,
}

fn pages(ledger: Arc<Ledger>, draining: CancellationToken) -> Router {
    Router::new()
        .route("/metrics", get(|| async { metrics::recorder().render() }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(Pages { ledger, draining })
}

async fn ready(State(pages): State<Pages>) -> (StatusCode, &'static str) {
    if pages.draining.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else if pages.ledger.is_ready().await {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n")
    }
}
