//! How a store is opened, by its address.

use std::sync::Arc;

use thiserror::Error;

use super::{BoxError, Store, StoreError, postgres, sqlite};

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The address is not one of a store.
    #[error("understand the store address {0:?}: expected sqlite:PATH or postgres://…")]
    Address(String),
    /// The store's schema is another one than this program's.
    #[error("use a schema of version {found}, this program needs {needed}: {remedy}")]
    Schema {
        /// The version found.
        found: u32,
        /// The version needed.
        needed: u32,
        /// What mends it.
        remedy: &'static str,
    },
    /// The store would acknowledge what it can lose.
    #[error(
        "trust the store's durability: {0}; pass --allow-unsafe-durability to use it all the same"
    )]
    Unsafe(String),
    /// The migrations failed.
    #[error("migrate the store")]
    Migrate(#[source] BoxError),
    /// It cannot be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// `sqlite:PATH` or `postgres://…`.
    pub address: String,
    /// Accept settings that can lose what was acknowledged.
    pub allow_unsafe_durability: bool,
    /// How many connections a Postgres store keeps for reads and writes.
    pub connections_max: usize,
    /// Whether Postgres keeps prepared statements between transactions.
    pub statements: Statements,
}

/// How statements are sent to Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Statements {
    /// Prepared once per connection: the fast way to a Postgres of one's own.
    #[default]
    Named,
    /// Planned each time: for a pooler that lends a session for one transaction only.
    Unnamed,
}

impl StoreOptions {
    /// The address, and a default for everything else.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            allow_unsafe_durability: false,
            connections_max: CONNECTIONS_MAX,
            statements: Statements::default(),
        }
    }
}

/// Two writers and a handful of readers keep a small Postgres busy; more only queue there.
pub const CONNECTIONS_MAX: usize = 16;

/// Opens the store at an address.
pub async fn open(options: &StoreOptions) -> Result<Arc<dyn Store>, OpenError> {
    if let Some(path) = options.address.strip_prefix("sqlite:") {
        Ok(Arc::new(sqlite::SqliteStore::open(path)?))
    } else if is_postgres(&options.address) {
        Ok(Arc::new(postgres::PostgresStore::open(options).await?))
    } else {
        Err(OpenError::Address(options.address.clone()))
    }
}

/// Opens the store at an address to look at it: what is not there, or not of this program's schema,
/// is an error, and nothing is made or migrated.
pub async fn open_as_is(options: &StoreOptions) -> Result<Arc<dyn Store>, OpenError> {
    match options.address.strip_prefix("sqlite:") {
        Some(path) => Ok(Arc::new(sqlite::SqliteStore::open_as_is(path)?)),
        None => open(options).await,
    }
}

/// Brings the schema of the store at an address up to this program's; says from and to.
pub async fn migrate(options: &StoreOptions) -> Result<(u32, u32), OpenError> {
    if let Some(path) = options.address.strip_prefix("sqlite:") {
        sqlite::migrate(path)
    } else if is_postgres(&options.address) {
        postgres::migrate(&options.address).await
    } else {
        Err(OpenError::Address(options.address.clone()))
    }
}

/// Whether an address is that of a store which no application shares, and which `open` makes or migrates.
pub fn is_embedded(address: &str) -> bool {
    address.starts_with("sqlite:")
}

fn is_postgres(address: &str) -> bool {
    address.starts_with("postgres://") || address.starts_with("postgresql://")
}
