-- Finds what nobody settles: the same tables as in migrations/postgres, and the same reasons.

CREATE TABLE granted_batches (
    -- When the first of its leases is over.
    due_at integer NOT NULL,
    -- The id of its first intent.
    id blob NOT NULL,
    -- The ids, one after the other.
    intents blob NOT NULL,
    PRIMARY KEY (due_at, id)
) WITHOUT ROWID;

CREATE TABLE open_intents (
    id blob PRIMARY KEY,
    namespace text NOT NULL,
    tool text NOT NULL,
    -- When to look at it next.
    due_at integer NOT NULL,
    -- How often its downstream was asked since its last grant or heartbeat, and when it last was.
    probes integer NOT NULL DEFAULT 0,
    asked_at integer,
    -- Until when somebody has it for himself.
    claimed_until integer,
    -- Raised by every change; what a change must find to happen.
    version integer NOT NULL DEFAULT 1
);

CREATE INDEX open_intents_by_due ON open_intents (namespace, tool, due_at);

INSERT INTO open_intents (id, namespace, tool, due_at)
SELECT id, namespace, tool, coalesce(lease_expires_at, created_at) FROM intents
WHERE state IN (3, 4) AND needs_attention = 0;
