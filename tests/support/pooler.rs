//! PgBouncer in transaction mode, before the Postgres that `./test.sh` started.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use super::cluster::{daemon_user, ends_with_us, free_port, home_for, poll, told};

/// Sessions with Postgres for each database: fewer than a store's connections, so that they are lent in turns.
pub(crate) const SESSIONS: u32 = 4;

/// Another road to the database at `direct`, by way of the pooler. It is started by the first test of a process that
/// asks, shared by the others, and ends with the process.
pub(crate) fn through_the_pooler(direct: &str) -> String {
    static PORT: OnceLock<u32> = OnceLock::new();
    let port = PORT.get_or_init(start);
    let (_, database) = direct.rsplit_once('/').expect("the URL names a database");
    format!("postgres://postgres@127.0.0.1:{port}/{database}")
}

/// Starts a pooler; its port.
fn start() -> u32 {
    let postgres = told("INTENT_LEDGER_TEST_POSTGRES");
    let (server, _) = postgres.rsplit_once('/').expect("the URL names a database");
    let (_, server_port) = server.rsplit_once(':').expect("the URL names a port");
    for _ in 0..8 {
        let run_as = daemon_user();
        let home = home_for(run_as, "pooler-");
        let port = free_port();
        let settings = format!(
            "[databases]\n\
             * = host=127.0.0.1 port={server_port}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = trust\n\
             auth_file = {home}/users\n\
             admin_users = postgres\n\
             pool_mode = transaction\n\
             default_pool_size = {SESSIONS}\n\
             max_client_conn = 1000\n\
             server_idle_timeout = 2\n",
            home = home.path().display(),
        );
        fs::write(home.path().join("pooler.ini"), settings).expect("the settings can be written");
        fs::write(home.path().join("users"), "\"postgres\" \"\"\n").expect("so can its users");
        match launch(&home, run_as, port) {
            Ok(pooler) => {
                ends_with_us(pooler.id(), home.path());
                std::mem::forget(home);
                return port;
            }
            // Somebody was quicker between our look at the port and the pooler's bind.
            Err(log) if log.contains("ddress already in use") => {}
            Err(log) => panic!("PgBouncer did not start:\n{log}"),
        }
    }
    panic!("no free port for PgBouncer");
}

/// Returns once it answers; an error is what it had to say.
fn launch(home: &TempDir, run_as: Option<(u32, u32)>, port: u32) -> Result<Child, String> {
    let log_path = home.path().join("log");
    let log = fs::File::create(&log_path).expect("the log can be created");
    let mut command = Command::new(told("INTENT_LEDGER_TEST_PGBOUNCER"));
    command
        .arg(home.path().join("pooler.ini"))
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a file handle can be cloned"))
        .stderr(log);
    if let Some((uid, gid)) = run_as {
        command.uid(uid).gid(gid);
    }
    let mut pooler = command.spawn().expect("pgbouncer can be started");
    let mut died = false;
    poll("the pooler answers", || {
        died = pooler.try_wait().expect("the pooler is our child").is_some();
        died || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    if died { Err(fs::read_to_string(log_path).unwrap_or_default()) } else { Ok(pooler) }
}
