-- The ledger: one row per intent, facts out of the ordinary beside it, and the policy all replicas
-- decide by.
--
-- Every table is reached by `id`, so that a distributed Postgres can place rows by it: there are no
-- triggers, no second unique index, no volatile function in an UPDATE. Times come from now(), which
-- is the start of the writing transaction.

CREATE TABLE intents (
    -- The intent's downstream key as a UUID; one hash away from `key`.
    id uuid PRIMARY KEY,
    -- Raised by every change; what a change must find to happen.
    version integer NOT NULL,
    key bytea NOT NULL,
    key_basis smallint NOT NULL,
    policy_version integer NOT NULL,
    hash_version smallint NOT NULL,
    fingerprint bytea NOT NULL,
    argument_digests bytea NOT NULL,
    namespace text NOT NULL,
    tool text NOT NULL,
    run_id text NOT NULL,
    step_id text NOT NULL,
    tool_call_id text,
    created_at timestamptz NOT NULL,
    -- 1 awaiting approval, 2 approved, 3 started, 4 unknown, 5 completed, 6 failed, 7 denied.
    state smallint NOT NULL,
    -- The current attempt; earlier ones are in `details`.
    attempt integer NOT NULL,
    attempt_id uuid,
    caller text,
    granted_on smallint,
    granted_at timestamptz,
    lease_expires_at timestamptz,
    extended boolean NOT NULL DEFAULT false,
    fate smallint,
    reports bytea,
    -- Bytes as they came, never jsonb: a replay is byte for byte.
    result bytea,
    result_content_type text,
    result_sha256 bytea,
    result_size bigint,
    result_truncated boolean NOT NULL DEFAULT false,
    pruned boolean NOT NULL DEFAULT false,
    provenance smallint,
    settled_at timestamptz,
    downstream_ref text,
    -- Only where the current attempt has a downstream key of its own: its UUID form.
    downstream_key bytea,
    needs_attention boolean NOT NULL,
    conflict boolean NOT NULL DEFAULT false,
    -- JSON of what ordinary effects do without: labels, earlier attempts, approval.
    details text,
    -- Counters, written behind; they raise no version.
    replay_count bigint NOT NULL DEFAULT 0,
    last_seen_at timestamptz
) WITH (fillfactor = 50);

-- A list is read newest first. None of these columns is changed by an ordinary settlement, so that
-- it stays a heap-only update.
CREATE INDEX intents_by_creation ON intents (namespace, created_at DESC, id DESC);
CREATE INDEX intents_needing_attention ON intents (namespace, created_at DESC, id DESC)
    WHERE needs_attention;
CREATE INDEX intents_by_tool_call ON intents (tool_call_id) WHERE tool_call_id IS NOT NULL;
CREATE INDEX intents_by_downstream_ref ON intents (downstream_ref) WHERE downstream_ref IS NOT NULL;
CREATE INDEX intents_by_downstream_key ON intents (downstream_key) WHERE downstream_key IS NOT NULL;

-- Facts out of the ordinary. A plain repeat has the digest of the first and is kept once.
CREATE TABLE events (
    id uuid NOT NULL,
    digest bytea NOT NULL,
    at timestamptz NOT NULL,
    fact text NOT NULL,
    PRIMARY KEY (id, digest)
);

-- Reports for keys that were never begun. Namespace and id together: nobody's report reaches
-- another tenant's row.
CREATE TABLE orphan_facts (
    id uuid NOT NULL,
    namespace text NOT NULL,
    digest bytea NOT NULL,
    at timestamptz NOT NULL,
    fact text NOT NULL,
    PRIMARY KEY (id, namespace, digest)
);

-- Every policy that rows may refer to; the active one is the one that `active_policy` names.
CREATE TABLE policies (
    version integer PRIMARY KEY,
    text text NOT NULL,
    activated_at timestamptz NOT NULL
);

CREATE TABLE active_policy (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    version integer NOT NULL
);
INSERT INTO active_policy (version) VALUES (0);
