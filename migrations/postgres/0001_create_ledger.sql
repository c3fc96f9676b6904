-- The ledger: one row per intent, facts out of the ordinary beside it, and the policy all replicas
-- decide by.
--
-- Every table is reached by `id`, so that a distributed Postgres can place rows by it: there are no
-- triggers, no second unique index, no volatile function in an UPDATE. Times come from now(), which
-- is the start of the writing transaction.

-- The order of the columns is that of their lives: first what never changes, then what a further
-- attempt changes, last what a settlement changes. The log of an update carries what lies between the
-- first and the last byte that differ.
CREATE TABLE intents (
    -- The intent's downstream key as a UUID; one hash away from `key`.
    id uuid PRIMARY KEY,
    created_at timestamptz NOT NULL,
    policy_version integer NOT NULL,
    hash_version smallint NOT NULL,
    key_basis smallint NOT NULL,
    key bytea NOT NULL,
    fingerprint bytea NOT NULL,
    argument_digests bytea NOT NULL,
    namespace text NOT NULL,
    tool text NOT NULL,
    run_id text NOT NULL,
    step_id text NOT NULL,
    tool_call_id text,
    -- The current attempt; earlier ones are in `details`.
    attempt_id uuid,
    caller text,
    granted_at timestamptz,
    lease_expires_at timestamptz,
    attempt integer NOT NULL,
    granted_on smallint,
    extended boolean NOT NULL DEFAULT false,
    pruned boolean NOT NULL DEFAULT false,
    needs_attention boolean NOT NULL,
    conflict boolean NOT NULL DEFAULT false,
    result_truncated boolean NOT NULL DEFAULT false,
    -- Only where the current attempt has a downstream key of its own: its UUID form.
    downstream_key uuid,
    -- JSON of what ordinary effects do without: labels, earlier attempts, approval.
    details text,
    -- Counters, written behind; they raise no version.
    replay_count bigint NOT NULL DEFAULT 0,
    last_seen_at timestamptz,
    -- Raised by every change; what a change must find to happen.
    version integer NOT NULL,
    -- 1 awaiting approval, 2 approved, 3 started, 4 unknown, 5 completed, 6 failed, 7 denied.
    state smallint NOT NULL,
    fate smallint,
    provenance smallint,
    settled_at timestamptz,
    reports bytea,
    downstream_ref text,
    result_content_type text,
    -- Bytes as they came, never jsonb: a replay is byte for byte.
    result bytea,
    -- Only where the bytes do not tell: cut, pruned, or none reported.
    result_sha256 bytea,
    result_size bigint
) WITH (fillfactor = 40);

-- A list is read newest first. None of these columns is changed by an ordinary settlement, so that
-- it stays a heap-only update; and new entries go to the end of their namespace.
CREATE INDEX intents_by_creation ON intents (namespace, created_at);
CREATE INDEX intents_needing_attention ON intents (namespace, created_at) WHERE needs_attention;
CREATE INDEX intents_by_tool_call ON intents (tool_call_id) WHERE tool_call_id IS NOT NULL;
CREATE INDEX intents_by_downstream_ref ON intents (downstream_ref) WHERE downstream_ref IS NOT NULL;
CREATE INDEX intents_by_downstream_key ON intents (downstream_key) WHERE downstream_key IS NOT NULL;

-- What a batch brings, one record a row: of new rows, of ordinary settlements, of other changes, and
-- of the facts beside them. One array of records is read by one function, whatever its width.
CREATE TYPE new_intent AS (
    id uuid,
    key bytea,
    key_basis smallint,
    policy_version integer,
    hash_version smallint,
    fingerprint bytea,
    argument_digests bytea,
    namespace text,
    tool text,
    run_id text,
    step_id text,
    tool_call_id text,
    state smallint,
    attempt_id uuid,
    caller text,
    needs_attention boolean,
    details text,
    -- Microseconds.
    lease bigint,
    orphans_seen boolean
);
CREATE TYPE settled_intent AS (
    id uuid,
    state smallint,
    fate smallint,
    reports bytea,
    result bytea,
    result_content_type text,
    result_sha256 bytea,
    result_size bigint,
    provenance smallint,
    downstream_ref text,
    expected integer
);
CREATE TYPE changed_intent AS (
    id uuid,
    version integer,
    state smallint,
    attempt integer,
    attempt_id uuid,
    caller text,
    granted_on smallint,
    granted_at timestamptz,
    lease_expires_at timestamptz,
    extended boolean,
    fate smallint,
    reports bytea,
    result bytea,
    result_content_type text,
    result_sha256 bytea,
    result_size bigint,
    result_truncated boolean,
    pruned boolean,
    provenance smallint,
    settled_at timestamptz,
    downstream_ref text,
    downstream_key uuid,
    needs_attention boolean,
    conflict boolean,
    details text,
    expected integer,
    policy integer,
    settles boolean
);
CREATE TYPE intent_fact AS (id uuid, digest bytea, fact text);

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
