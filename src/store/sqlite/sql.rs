//! The statements.

/// A new row; nothing where there is one.
pub(super) const INSERT: &str = "
    INSERT INTO intents (
     id, version, key, key_basis, policy_version, hash_version, fingerprint,
     argument_digests, namespace, tool, run_id, step_id, tool_call_id, created_at,
     state, attempt, attempt_id, caller, granted_on, granted_at, lease_expires_at,
     extended, fate, reports, result, result_content_type, result_sha256, result_size,
     result_truncated, pruned, provenance, settled_at, downstream_ref, downstream_key,
     needs_attention, conflict, details)
    VALUES (
     :id, :version, :key, :key_basis, :policy_version, :hash_version, :fingerprint,
     :argument_digests, :namespace, :tool, :run_id, :step_id, :tool_call_id,
     :created_at, :state, :attempt, :attempt_id, :caller, :granted_on, :granted_at,
     :lease_expires_at, :extended, :fate, :reports, :result, :result_content_type,
     :result_sha256, :result_size, :result_truncated, :pruned, :provenance, :settled_at,
     :downstream_ref, :downstream_key, :needs_attention, :conflict, :details)
    ON CONFLICT (id) DO NOTHING";

/// A row in place of the one with the expected version.
pub(super) const REPLACE: &str = "
    UPDATE intents SET
     version = :version, state = :state, attempt = :attempt, attempt_id = :attempt_id,
     caller = :caller, granted_on = :granted_on, granted_at = :granted_at,
     lease_expires_at = :lease_expires_at, extended = :extended, fate = :fate,
     reports = :reports, result = :result, result_content_type = :result_content_type,
     result_sha256 = :result_sha256, result_size = :result_size,
     result_truncated = :result_truncated, pruned = :pruned, provenance = :provenance,
     settled_at = :settled_at, downstream_ref = :downstream_ref,
     downstream_key = :downstream_key, needs_attention = :needs_attention,
     conflict = :conflict, details = :details
    WHERE id = :id AND version = :expected";

/// Every column of the rows that meet a condition.
pub(super) fn select(condition: &str) -> String {
    format!("SELECT * FROM intents WHERE {condition}")
}
