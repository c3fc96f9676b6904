//! What a policy file says, each value with the place it stands at.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    mistake::{Mistake, Site},
    status::{Expression, GrpcCall, HttpRequest},
};
use crate::domain::{
    canonical_json::Pointer,
    identity::{IdentityPointer, Scope},
    look_alike::LookAlikeAction,
    tool::{Class, KeyFormat},
};

/// A policy file as it is written, before any layer is laid over another.
#[derive(Debug, Clone, Default)]
pub struct PolicyFile {
    pub(super) version: u32,
    pub(super) defaults: Section,
    pub(super) tools: BTreeMap<String, Section>,
    pub(super) namespaces: BTreeMap<String, NamespaceSection>,
    /// What is no mistake, and will surprise.
    pub(super) warnings: Vec<Mistake>,
}

impl PolicyFile {
    /// The version the file gives itself; 1 where it gives none.
    pub fn version(&self) -> u32 {
        self.version
    }
}

/// What one tenant has otherwise.
#[derive(Debug, Clone, Default)]
pub(super) struct NamespaceSection {
    pub(super) defaults: Section,
    pub(super) tools: BTreeMap<String, Section>,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Sited<T> {
    pub(super) value: T,
    pub(super) site: Site,
}

/// One key of a section.
#[derive(Debug, Clone, Default)]
pub(super) enum Field<T> {
    /// The section leaves the key to the layers below.
    #[default]
    Absent,
    /// The key is there and its value is a mistake that has been reported: what is checked
    /// across keys has nothing more to say of it.
    Broken,
    /// The key is there.
    Set(Sited<T>),
}

/// The keys of one tool, or of what holds for all tools.
#[derive(Debug, Clone, Default)]
pub(super) struct Section {
    pub(super) class: Field<Class>,
    pub(super) refuse_unlisted: Field<bool>,
    pub(super) scope: Field<Scope>,
    pub(super) lease: Field<Duration>,
    pub(super) lease_max: Field<Duration>,
    pub(super) resend_window: Field<Duration>,
    pub(super) retention: Field<Duration>,
    pub(super) tombstone: Field<Duration>,
    pub(super) max_attempts: Field<u32>,
    pub(super) retry_failed: Field<bool>,
    pub(super) give_up_after: Field<Duration>,
    pub(super) max_result_bytes: Field<u64>,
    pub(super) identity: Field<Vec<Sited<IdentityPointer>>>,
    pub(super) free_text: Field<Vec<Sited<Pointer>>>,
    pub(super) check_with: Field<String>,
    pub(super) key_format: Field<KeyFormat>,
    pub(super) new_key_after_failed: Field<bool>,
    pub(super) deduplicates: Field<bool>,
    pub(super) window: Field<Duration>,
    pub(super) same_transaction: Field<bool>,
    pub(super) status: StatusSection,
    pub(super) approval: ApprovalSection,
    pub(super) limit_per_run: Field<u32>,
    pub(super) halted: Field<bool>,
    pub(super) look_alike: LookAlikeSection,
}

/// The keys of a tool's `approval`.
#[derive(Debug, Clone, Default)]
pub(super) struct ApprovalSection {
    /// Whether the table is there at all, with its own place.
    pub(super) is_there: Field<()>,
    pub(super) when: Field<Arc<Expression>>,
    pub(super) expires: Field<Duration>,
    pub(super) valid_for: Field<Duration>,
}

/// The keys of a tool's `look_alike`.
#[derive(Debug, Clone, Default)]
pub(super) struct LookAlikeSection {
    /// Whether the table is there at all, with its own place.
    pub(super) is_there: Field<()>,
    pub(super) subject: Field<Vec<Sited<IdentityPointer>>>,
    pub(super) window: Field<Duration>,
    pub(super) action: Field<LookAlikeAction>,
}

/// The keys of a tool's `downstream.status`.
#[derive(Debug, Clone, Default)]
pub(super) struct StatusSection {
    /// Whether the table is there at all, with its own place.
    pub(super) is_there: Field<()>,
    pub(super) http: Field<HttpRequest>,
    pub(super) grpc: Field<GrpcCall>,
    pub(super) completed_when: Field<Arc<Expression>>,
    pub(super) not_executed_when: Field<Arc<Expression>>,
    pub(super) running_when: Field<Arc<Expression>>,
    pub(super) result: Field<Arc<Expression>>,
    pub(super) key_at: Field<Arc<Expression>>,
    pub(super) ref_at: Field<Arc<Expression>>,
    pub(super) visibility: Field<Duration>,
    pub(super) confirmations: Field<u32>,
    pub(super) probe_on_begin: Field<bool>,
}
