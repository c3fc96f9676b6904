-- The ledger: one row per intent, facts out of the ordinary beside it, and the policy all replicas
-- decide by.
--
-- The same tables as in migrations/postgres, for the store that needs no server. Times are
-- microseconds since the Unix epoch; UUIDs are their 16 bytes.

CREATE TABLE intents (
    -- The intent's downstream key as a UUID; one hash away from `key`.
    id blob PRIMARY KEY,
    -- Raised by every change; what a change must find to happen.
    version integer NOT NULL,
    key blob NOT NULL,
    key_basis integer NOT NULL,
    policy_version integer NOT NULL,
    hash_version integer NOT NULL,
    fingerprint blob NOT NULL,
    argument_digests blob NOT NULL,
    namespace text NOT NULL,
    tool text NOT NULL,
    run_id text NOT NULL,
    step_id text NOT NULL,
    tool_call_id text,
    created_at integer NOT NULL,
    -- 1 awaiting approval, 2 approved, 3 started, 4 unknown, 5 completed, 6 failed, 7 denied.
    state integer NOT NULL,
    -- The current attempt; earlier ones are in `details`.
    attempt integer NOT NULL,
    attempt_id blob,
    caller text,
    granted_on integer,
    granted_at integer,
    lease_expires_at integer,
    extended integer NOT NULL DEFAULT 0,
    fate integer,
    reports blob,
    -- Bytes as they came, never JSON: a replay is byte for byte.
    result blob,
    result_content_type text,
    -- Only where the bytes do not tell: cut, pruned, or none reported.
    result_sha256 blob,
    result_size integer,
    result_truncated integer NOT NULL DEFAULT 0,
    pruned integer NOT NULL DEFAULT 0,
    provenance integer,
    settled_at integer,
    downstream_ref text,
    -- Only where the current attempt has a downstream key of its own: its UUID form.
    downstream_key blob,
    needs_attention integer NOT NULL,
    conflict integer NOT NULL DEFAULT 0,
    -- JSON of what ordinary effects do without: labels, earlier attempts, approval.
    details text,
    -- Counters, written behind; they raise no version.
    replay_count integer NOT NULL DEFAULT 0,
    last_seen_at integer
);

-- A list is read newest first.
CREATE INDEX intents_by_creation ON intents (namespace, created_at);
CREATE INDEX intents_needing_attention ON intents (namespace, created_at)
    WHERE needs_attention = 1;
CREATE INDEX intents_by_tool_call ON intents (tool_call_id) WHERE tool_call_id IS NOT NULL;
CREATE INDEX intents_by_downstream_ref ON intents (downstream_ref) WHERE downstream_ref IS NOT NULL;
CREATE INDEX intents_by_downstream_key ON intents (downstream_key) WHERE downstream_key IS NOT NULL;

-- Facts out of the ordinary. A plain repeat has the digest of the first and is kept once.
CREATE TABLE events (
    id blob NOT NULL,
    digest blob NOT NULL,
    at integer NOT NULL,
    fact text NOT NULL,
    PRIMARY KEY (id, digest)
) WITHOUT ROWID;

-- Reports for keys that were never begun. Namespace and id together: nobody's report reaches
-- another tenant's row.
CREATE TABLE orphan_facts (
    id blob NOT NULL,
    namespace text NOT NULL,
    digest blob NOT NULL,
    at integer NOT NULL,
    fact text NOT NULL,
    PRIMARY KEY (id, namespace, digest)
);

-- Every policy that rows may refer to; the active one is the one that `active_policy` names.
CREATE TABLE policies (
    version integer PRIMARY KEY,
    text text NOT NULL,
    activated_at integer NOT NULL
);

CREATE TABLE active_policy (
    singleton integer PRIMARY KEY DEFAULT 1 CHECK (singleton = 1),
    version integer NOT NULL
);
INSERT INTO active_policy (version) VALUES (0);
