//! `downstream`: a service to test against, until it is told to stop.

use std::{fmt::Write as _, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    downstream::{self, FaultKind, FaultRate, Faults, Options},
    ids,
    telemetry::{self, tracing::LogFormat},
};

/// What the service does.
#[derive(Debug, Args)]
#[command(after_help = lesson())]
pub(super) struct DownstreamFlags {
    /// The HTTP address; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7080")]
    http: SocketAddr,

    /// The gRPC address, for EffectStatusService; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7081")]
    grpc: SocketAddr,

    /// For so long, a key that comes again gets the first answer instead of a second effect, such as
    /// 24h [default: never]
    #[arg(long, value_name = "WINDOW", value_parser = humantime::parse_duration)]
    deduplicates: Option<Duration>,

    /// Let a fault happen to a part of the calls, such as effect_then_timeout=0.1 or slow=0.2:2s; as
    /// often as needed
    #[arg(long = "fault", value_name = "NAME=RATE[:SPAN]")]
    faults: Vec<FaultRate>,

    /// Repeat the chances of an earlier run; it said its seed when it started [default: a random one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Append each effect to a file before it is answered, one JSON line each; what is in it already
    /// has happened
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Say each effect on standard error
    #[arg(long)]
    verbose: bool,
}

/// What `--help` ends with.
fn lesson() -> String {
    let mut faults = String::new();
    for kind in FaultKind::ALL {
        let span = kind.default_span();
        let span = span.map(|span| format!(" [{}]", humantime::format_duration(span)));
        let (name, meaning) = (kind.name(), kind.meaning());
        writeln!(faults, "  {name:20} {meaning}{}", span.unwrap_or_default())
            .expect("a string takes what is written");
    }
    format!(
        "\
Try it:
  $ intent-ledger downstream --deduplicates 24h
  $ curl -d '{{\"to\":\"ada\"}}' -H 'Idempotency-Key: k1' -H 'X-Action: mail-1' \\
        127.0.0.1:7080/v1/effects
  {{\"id\":\"eff-1\",\"state\":\"done\",\"idempotency_key\":\"k1\",\"action\":\"mail-1\"}}
  $ curl 127.0.0.1:7080/v1/effects/by-key/k1     what became of it, as the ledger asks
  $ curl 127.0.0.1:7080/v1/effects               the sent log: what really happened

Calls that go wrong by chance, one that goes wrong as you want it, a lie about one key, an outage:
  $ intent-ledger downstream --fault effect_then_timeout=0.1 --fault slow=0.2:500ms --seed 7
  $ curl -d '{{}}' -H 'Idempotency-Key: k2' -H 'X-Fault: effect_then_timeout, late_visibility=5s' \\
        -m 1 127.0.0.1:7080/v1/effects
  $ curl -X PUT -d '{{\"rates\":{{\"slow\":\"0.5:2s\"}},\"keys\":{{\"k1\":\"status_html\"}}}}' \\
        127.0.0.1:7080/v1/faults
  $ curl -X DELETE 127.0.0.1:7080/v1/faults
  $ curl -X PUT -d '{{\"for\":\"5s\",\"mode\":\"refuse\"}}' 127.0.0.1:7080/v1/outage
                                               or mode error (503), or hang

Faults, as NAME[=SPAN] in X-Fault and NAME=RATE[:SPAN] in --fault; in brackets the SPAN if none is
given. Those named status_… stay with the key of the call that asked for them:
{faults}
Exit status: 0 when it is told to stop, 1 if it cannot start, 64 bad usage."
    )
}

pub(super) fn run(flags: DownstreamFlags) -> anyhow::Result<u8> {
    let filter = if flags.verbose { "warn,intent_ledger::downstream=info" } else { "warn" };
    telemetry::tracing::init(filter, LogFormat::Text).context("failed to set up the log")?;
    let seed = flags.seed.unwrap_or_else(|| ids::random().as_u64_pair().0);
    let options = Options {
        http: flags.http,
        grpc: flags.grpc,
        deduplicates: flags.deduplicates,
        faults: flags.faults.into_iter().fold(Faults::none(), Faults::with_rate),
        seed,
        log: flags.log,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before it starts: a signal that comes meanwhile is not lost.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let running = downstream::start(options).await.context("failed to start")?;
        // Standard output has the one line that programs wait for.
        eprintln!("seed {seed}: --seed {seed} repeats these chances");
        println!("ready http={} grpc={}", running.http, running.grpc);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        running.stop().await;
        Ok(0)
    })
}
