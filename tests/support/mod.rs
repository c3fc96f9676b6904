//! What the integration tests share: servers, stores, calls.

pub(crate) mod calls;
pub(crate) mod cluster;
pub(crate) mod dice;
pub(crate) mod downstream;
pub(crate) mod faulty;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod nobody;
pub(crate) mod pooler;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod replicas;
pub(crate) mod seeded;
pub(crate) mod server;

/// Runs the same test on the embedded store and on Postgres.
///
/// Each function gets the [`server::Kind`] of its store and becomes two tests, `sqlite::NAME` and
/// `postgres::NAME`.
#[macro_export]
macro_rules! on_both_stores {
    ($($(#[$doc:meta])* async fn $name:ident($kind:ident) $body:block)+) => {
        $($(#[$doc])* async fn $name($kind: $crate::support::server::Kind) $body)+

        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::support::server::Kind::Sqlite).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::support::server::Kind::Postgres).await;
            })+
        }
    };
}

/// As [`on_both_stores!`], and on Postgres behind a pooler and on a Postgres of another major version: `pooled::NAME`
/// and `another_major::NAME`.
#[macro_export]
macro_rules! on_every_store {
    ($($(#[$doc:meta])* async fn $name:ident($kind:ident) $body:block)+) => {
        $crate::on_both_stores! { $($(#[$doc])* async fn $name($kind) $body)+ }

        mod pooled {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::support::server::Kind::Pooled).await;
            })+
        }

        mod another_major {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::support::server::Kind::AnotherMajor).await;
            })+
        }
    };
}
