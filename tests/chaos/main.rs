//! Chaos, with real processes: callers, servers, reconciling jobs, downstreams and Postgres are killed
//! with kill -9 at random while effects go wrong at a rate of 30 %, and each intended action happens
//! exactly once, says the downstreams' log.
//!
//! Thirty seconds by `cargo test --test chaos`, minutes by `just chaos`. No run is like another; the seed
//! repeats the faults and the draws, not the moments.
//!
//! - `plan`: how long, how much, which faults, the policy
//! - `process`, `callers`: what is killed and started again; `caller`: the other side of that
//! - `hands`: what kills
//! - `truth`: what has to be so in the end
//!
//! The binary has no harness, because it is two programs: this test and, where a variable says so, one
//! of its callers.

mod caller;
mod callers;
#[path = "../support/cluster.rs"]
#[expect(dead_code, reason = "here a cluster is only killed; other tests do more with it")]
mod cluster;
#[path = "../support/dice.rs"]
#[expect(dead_code, reason = "not everything is drawn here that can be")]
mod dice;
mod hands;
mod plan;
mod process;
mod truth;

use std::{collections::BTreeMap, env, path::Path, process::ExitCode, thread, time::Duration};

use intent_ledger::{
    clock::monotonic,
    store::{self, StoreOptions},
    tls,
};

use self::{
    caller::Orders,
    callers::Callers,
    cluster::{PgCluster, free_port},
    dice::Dice,
    hands::Bell,
    plan::{Plan, TAIL, TOOLS},
    process::Service,
    truth::Truth,
};

const NAME: &str = "each_intended_action_happens_exactly_once_whatever_is_killed";

/// As many as carry the actions, most of which wait, and few enough for two cores to start over and over.
const CALLERS: usize = 8;

const SERVERS: usize = 2;

fn main() -> ExitCode {
    if let Ok(orders) = env::var(caller::ORDERS) {
        caller::run(&orders);
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return ExitCode::SUCCESS;
    }
    if !is_wanted(&arguments) {
        println!("\ntest result: ok. 0 passed; 0 failed; 1 filtered out\n");
        return ExitCode::SUCCESS;
    }
    let plan = Plan::from_environment();
    println!("\nrunning 1 test: {plan:?}");
    match run(plan) {
        Ok(figures) => {
            println!("{figures}test {NAME} ... ok\n\ntest result: ok. 1 passed; 0 failed\n");
            ExitCode::SUCCESS
        }
        Err(faults) => {
            println!(
                "{faults}test {NAME} ... FAILED\nINTENT_LEDGER_TEST_SEED={} repeats its faults\n\n\
                 test result: FAILED. 0 passed; 1 failed\n",
                plan.seed
            );
            ExitCode::FAILURE
        }
    }
}

/// Whether arguments as the test harness takes them ask for our only test.
fn is_wanted(arguments: &[String]) -> bool {
    let (mut filters, mut wanted) = (Vec::new(), true);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--skip" => wanted &= arguments.next().is_none_or(|part| !NAME.contains(part)),
            "--ignored" => wanted = false,
            "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => {
                arguments.next();
            }
            flag if flag.starts_with('-') => {}
            filter => filters.push(filter),
        }
    }
    wanted && (filters.is_empty() || filters.iter().any(|filter| NAME.contains(filter)))
}

/// What is not killed by one hand is killed by another.
struct World {
    cluster: PgCluster,
    downstreams: Vec<Service>,
    servers: Vec<Service>,
    callers: Callers,
    /// The servers' addresses, which they keep.
    urls: Vec<String>,
    effects: BTreeMap<String, String>,
}

impl World {
    fn start(plan: Plan, home: &Path, runtime: &tokio::runtime::Runtime) -> Self {
        let cluster = PgCluster::start();
        let store = cluster.url();
        runtime.block_on(store::migrate(&StoreOptions::new(&store))).expect("a schema");

        let ports = TOOLS.each_ref().map(|_| free_port());
        let downstreams = TOOLS.iter().zip(ports).map(|(tool, port)| {
            let address = format!("127.0.0.1:{port}");
            let log = sent_log(home, tool.name);
            let own = ["downstream", "--http", &address, "--grpc", "127.0.0.1:0", "--log", &log];
            let mut arguments: Vec<String> = own.map(str::to_owned).into();
            arguments.extend(plan.downstream_flags(tool));
            Service::start(home, tool.name, arguments)
        });
        let downstreams = downstreams.collect();

        let policy = home.join("policy.toml");
        std::fs::write(&policy, plan::policy(ports)).expect("the policy can be written");
        let policy = policy.display().to_string();
        let addresses: Vec<String> =
            (0..SERVERS).map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let servers = addresses.iter().enumerate().map(|(n, address)| {
            let arguments = [
                ["serve", "--store", &store, "--listen", address, "--http", "127.0.0.1:0"],
                [
                    "--policy",
                    &policy,
                    "--reconcile-interval",
                    "500ms",
                    "--shutdown-grace",
                    "5s",
                    "",
                ],
            ];
            let arguments = arguments.concat().into_iter().filter(|it| !it.is_empty());
            Service::start(home, &format!("server-{n}"), arguments.map(str::to_owned).collect())
        });
        let servers = servers.collect();

        let http = |address: &dyn std::fmt::Display| format!("http://{address}");
        let urls: Vec<String> = addresses.iter().map(|address| http(address)).collect();
        let effects: BTreeMap<String, String> = (TOOLS.iter().zip(ports))
            .map(|(tool, port)| (tool.name.to_owned(), http(&format!("127.0.0.1:{port}"))))
            .collect();
        let orders = Orders {
            name: String::new(),
            seed: plan.seed,
            life: 0,
            ledgers: urls.clone(),
            effects: effects.clone(),
        };
        let callers = Callers::start(home, CALLERS, &orders);
        Self { cluster, downstreams, servers, callers, urls, effects }
    }
}

fn sent_log(home: &Path, tool: &str) -> String {
    home.join(format!("{tool}.sent")).display().to_string()
}

/// Runs the plan: the figures, or what is wrong.
fn run(plan: Plan) -> Result<String, String> {
    let home = tempfile::Builder::new().prefix("chaos-").tempdir().expect("a directory");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut world = World::start(plan, home.path(), &runtime);
    let actions = plan.actions();
    let began = monotonic();

    let bell = Bell::default();
    let dice = |purpose| Dice::new(plan.seed, purpose);
    let World { cluster, downstreams, servers, callers, urls, effects } = &mut world;
    let (bell, callers) = (&bell, &*callers);
    let (caller_kills, postgres_kills, jobs) = thread::scope(|scope| {
        scope.spawn(|| hands::deal(bell, dice(1), callers, &actions, plan.chaos));
        let caller_kills = scope.spawn(|| hands::kill_callers(bell, dice(2), callers));
        scope.spawn(|| hands::kill_services(bell, dice(3), servers, (1000, 5000)));
        scope.spawn(|| hands::kill_services(bell, dice(4), downstreams, (2000, 8000)));
        let postgres_kills = scope.spawn(|| hands::kill_postgres(bell, dice(5), cluster));
        let jobs = scope.spawn(|| hands::run_jobs(bell, dice(6), home.path(), urls));
        thread::sleep(plan.chaos);
        bell.ring();
        let words = "a hand came to its end";
        (
            caller_kills.join().expect(words),
            postgres_kills.join().expect(words),
            jobs.join().expect(words),
        )
    });

    // All runs again. Nothing else goes wrong now, so that the end comes soon.
    let chaos_took = monotonic().duration_since(began);
    let cleared = clear_faults(effects);
    runtime.block_on(async { tokio::time::timeout(TAIL, cleared).await.expect("in time") });
    let left = callers.finish(TAIL);
    let tail_took = monotonic().duration_since(began) - chaos_took;

    let World { cluster, mut downstreams, mut servers, callers, urls, .. } = world;
    let logs = TOOLS.each_ref().map(|tool| sent_log(home.path(), tool.name));
    let logs = logs.each_ref().map(Path::new);
    let truth = runtime.block_on(Truth::read(&logs, &urls[0]));
    let kills = |services: &[Service]| services.iter().map(|it| it.kills).sum::<u32>();
    let (server_kills, downstream_kills) = (kills(&servers), kills(&downstreams));
    let told = if left.is_empty() { callers.dismiss() } else { callers.abandon() };

    let mut wrong: Vec<String> = Vec::new();
    let mut odd_actions = left;
    wrong.extend(odd_actions.iter().map(|action| format!("{action}: no end in time")));
    for (action, fault) in truth.faults(&actions, &told) {
        wrong.push(format!("{action}: {fault}"));
        odd_actions.insert(action);
    }
    wrong.extend(told.odd.iter().chain(&jobs.odd).cloned());
    for service in downstreams.iter_mut().chain(&mut servers) {
        wrong.extend(service.stop());
        wrong.extend(service.complaints());
    }
    drop(cluster);

    let figures = format!(
        "  {} actions; {:.1} s of chaos, {:.1} s to the end\n  killed with kill -9: {caller_kills} \
         callers, {server_kills} servers, {downstream_kills} downstreams, {postgres_kills} times \
         Postgres, {} of {} reconciling jobs\n  the callers met downstream {:?}\n  \
         the ledger answered {:?}\n{}",
        actions.len(),
        chaos_took.as_secs_f32(),
        tail_took.as_secs_f32(),
        jobs.kills,
        jobs.kills + jobs.done,
        told.met,
        told.answers,
        truth.figures(),
    );
    if wrong.is_empty() {
        return Ok(figures);
    }
    let histories = odd_actions
        .iter()
        .take(20)
        .map(|action| format!("{action} went through:\n{}", truth.history(action, home.path())));
    let histories: String = histories.collect();
    let kept = home.keep();
    Err(format!("{figures}{}\n{histories}all logs: {}\n", wrong.join("\n"), kept.display()))
}

/// Calls meet no faults any more, once each downstream has heard of it.
async fn clear_faults(effects: &BTreeMap<String, String>) {
    let client = tls::http_client().build().expect("an HTTP client");
    for url in effects.values() {
        // An outage of its own making may last for a moment more.
        while client.delete(format!("{url}/v1/faults")).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
