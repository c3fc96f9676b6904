//! `serve`: the server, until it is told to stop.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    app,
    config::{self, ConfigError, ServeFlags},
    telemetry::{self, chain},
};

pub(super) fn run(flags: ServeFlags) -> anyhow::Result<u8> {
    let config = config::load(flags).context("failed to configure the server")?;
    telemetry::tracing::init(&config.log, config.log_format)
        .map_err(|error| ConfigError::Invalid { setting: "log", problem: chain(&error) })
        .context("failed to configure the server")?;
    let threads = config.threads.unwrap_or_else(threads);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        // Before the server starts: a signal that comes meanwhile is not lost.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let running = app::start(&config).await?;
        println!("ready grpc={} http={}", running.grpc, running.http);
        tracing::info!("no credentials: every namespace is open to callers on this machine");
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => running.reload_policy().await,
            }
        }
        tracing::info!("stopping");
        running.stop().await;
        Ok(0)
    })
}

/// Half of the cores: the other half is for the database and the callers on the same machine, and
/// each hand-over from one thread to another costs a lone caller more than the work itself.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}
