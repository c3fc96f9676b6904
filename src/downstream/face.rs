//! A face: a port, the connections to it, and what cuts them.

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{outage::Outages, port::Port};

/// How long after a failed accept or listen (no file descriptors left, say) it is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// The connection that a request came on. Every request carries it as an extension.
#[derive(Debug, Clone)]
pub(super) struct Line {
    cut: CancellationToken,
    spared: Arc<AtomicBool>,
}

impl Line {
    /// Closes the connection without an answer; never returns.
    pub(super) async fn cut(&self) -> ! {
        self.cut.cancel();
        std::future::pending().await
    }

    /// Lets the answer under way out before an outage cuts the connection: it is the answer to whoever
    /// ordered the outage.
    pub(super) fn spare(&self) {
        self.spared.store(true, Ordering::Relaxed);
    }
}

/// Serves a port until it is stopped; in an outage that refuses connections nobody listens.
pub(super) async fn serve(
    port: Port,
    mut listener: TcpListener,
    router: Router,
    outages: Arc<Outages>,
    stopping: CancellationToken,
) {
    loop {
        // Cut when the face closes, whichever way.
        let lines = CancellationToken::new();
        let _cut = lines.clone().drop_guard();
        while !outages.closing() {
            tokio::select! {
                never = accept(&listener, &router, &lines) => match never {},
                () = outages.refusing(true) => {}
                () = stopping.cancelled() => return,
            }
        }
        drop(listener);
        lines.cancel();
        outages.closed();
        tokio::select! {
            reopened = reopen(&port, &outages) => listener = reopened,
            () = stopping.cancelled() => return,
        }
        outages.opened();
    }
}

async fn reopen(port: &Port, outages: &Outages) -> TcpListener {
    outages.refusing(false).await;
    loop {
        match port.listen() {
            Ok(listener) => return listener,
            Err(error) => pause("failed to listen again", &error).await,
        }
    }
}

async fn accept(
    listener: &TcpListener,
    router: &Router,
    lines: &CancellationToken,
) -> std::convert::Infallible {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                stream.set_nodelay(true).ok();
                let line = Line { cut: lines.child_token(), spared: Arc::default() };
                tokio::spawn(connection(stream, router.clone(), line));
            }
            Err(error) => pause("failed to accept a connection", &error).await,
        }
    }
}

async fn pause(what: &str, error: &io::Error) {
    tracing::warn!(%error, "{what}");
    tokio::time::sleep(PAUSE).await;
}

/// Serves HTTP/1 and HTTP/2 on a connection until its end or until it is cut.
async fn connection(stream: TcpStream, router: Router, line: Line) {
    let service = TowerToHyperService::new(router.layer(Extension(line.clone())));
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // In this order: what arrives after a cut is not served.
        biased;
        () = line.cut.cancelled() => {}
        _ = connection.as_mut() => return,
    }
    if line.spared.load(Ordering::Relaxed) {
        connection.as_mut().graceful_shutdown();
        // A client that goes away meanwhile is as good an end.
        connection.await.ok();
    }
}
