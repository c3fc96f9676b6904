//! Connections, and how a statement is sent over one.

use std::{future::Future, ops::Deref, time::Duration};

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use tokio_postgres::{
    NoTls, Row,
    types::{ToSql, Type},
};

use super::fault::{Fault, fault};
use crate::store::{
    BoxError, CONNECTION_WAIT_MAX, LOCK_WAIT, OpenError, Statements, StoreError, StoreOptions,
};

/// Every statement reaches its rows by id. A plan made while the table was small would scan it, and
/// a prepared statement keeps its plan while the table grows.
///
/// Where there is no other way, a plan that is off costs ten thousand million, and from a hundred
/// thousand on Postgres compiles a plan to machine code first, at some 300 ms each: `jit` goes off too.
/// And each array looks so cheap for the values at hand that Postgres would plan every batch anew,
/// which takes longer than writing it.
const PLANNER: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; \
                       SET enable_mergejoin = off; SET jit = off; \
                       SET plan_cache_mode = force_generic_plan";

/// What a session of our own is told once.
fn settings() -> String {
    format!(
        "{PLANNER}; SET lock_timeout = '{}ms'; SET default_transaction_isolation = 'read committed'",
        LOCK_WAIT.as_millis()
    )
}

/// How long a read or a write waits for its turn while every connection is lent. A store that is
/// gone is told sooner, by the attempt to connect; this is for a crowd on a busy machine.
const TURN_WAIT_MAX: Duration = Duration::from_secs(5);

/// A parameter and its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Runs one statement, prepared once per connection or not at all.
pub(super) async fn run(
    client: &Object,
    statements: Statements,
    statement: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    match statements {
        Statements::Named => {
            let (values, types): (Vec<_>, Vec<_>) = parameters.iter().cloned().unzip();
            let prepared = client.prepare_typed_cached(statement, &types).await?;
            client.query(&prepared, &values).await
        }
        Statements::Unnamed => client.query_typed(statement, parameters).await,
    }
}

/// A pool whose connections are tested for life before they are lent.
pub(super) fn pool(options: &StoreOptions) -> Result<Pool, OpenError> {
    let mut config: tokio_postgres::Config = options
        .address
        .parse()
        .map_err(|_| OpenError::Address("postgres://… (it does not parse)".to_owned()))?;
    if config.get_application_name().is_none() {
        config.application_name("intent-ledger");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECTION_WAIT_MAX);
    }
    config.tcp_user_timeout(Duration::from_secs(10));
    let manager = Manager::from_config(
        config,
        NoTls,
        ManagerConfig { recycling_method: RecyclingMethod::Fast },
    );
    let mut builder = Pool::builder(manager);
    if options.statements == Statements::Named {
        builder = builder.post_create(Hook::async_fn(|client, _| {
            Box::pin(
                async move { client.batch_execute(&settings()).await.map_err(HookError::Backend) },
            )
        }));
    }
    builder
        .max_size(options.connections_max)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(TURN_WAIT_MAX))
        .create_timeout(Some(CONNECTION_WAIT_MAX))
        .recycle_timeout(Some(CONNECTION_WAIT_MAX))
        .build()
        .map_err(|error| OpenError::Store(StoreError::Unavailable(error.into())))
}

/// A connection with a statement under way. Whoever asked may go away: the connection is then closed
/// rather than lent again, since its next borrower would wait for the same answer.
pub(super) struct Busy(Option<Object>);

impl Busy {
    pub(super) fn new(client: Object) -> Self {
        Self(Some(client))
    }

    /// The statement has been answered, or is given up.
    pub(super) fn done(mut self) -> Object {
        self.0.take().expect("taken here only")
    }
}

impl Deref for Busy {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.0.as_ref().expect("taken by done only")
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

/// What comes of `answer`; `None` if it does not come in time.
pub(super) async fn within<T>(longest: Duration, answer: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(longest, answer).await.ok()
}

/// Keeps a connection whose answer has come. Another one is closed rather than lent again: its
/// next borrower would wait for the same answer.
pub(super) fn keep<T>(client: Object, answer: Option<T>) -> Result<(Object, T), BoxError> {
    match answer {
        Some(answer) => Ok((client, answer)),
        None => {
            drop(Object::take(client));
            Err("the server took the statement and did not answer".into())
        }
    }
}

/// Lends a connection again after an error, unless its session may have ended: the driver needs a
/// moment to notice that, and the next borrower would be the one to find out.
pub(super) fn release(client: Object, error: &tokio_postgres::Error) {
    if error.code().map(fault).is_none_or(|fault| fault == Fault::Unknown) {
        drop(Object::take(client));
    }
}
