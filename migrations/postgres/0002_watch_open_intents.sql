-- Finds what nobody settles, at a price that ordinary effects hardly pay.
--
-- An index over STARTED and UNKNOWN rows would make every settlement write all indexes of its row. So
-- each batch of grants leaves one row in `granted_batches`; once its first lease is over, those of its
-- intents that are still unsettled go to `open_intents`, the agenda of the reconciler, and the batch is
-- forgotten. What changes an unsettled intent out of the ordinary (a further grant, a heartbeat, an
-- unknown outcome) puts it on the agenda by itself. Entries of intents that were settled meanwhile are
-- dropped by whoever meets them.

CREATE TABLE granted_batches (
    -- When the first of its leases is over.
    due_at timestamptz NOT NULL,
    -- The id of its first intent.
    id uuid NOT NULL,
    intents uuid[] NOT NULL,
    PRIMARY KEY (due_at, id)
) WITH (toast_tuple_target = 8160); -- 256 ids stay in their row

CREATE TABLE open_intents (
    id uuid PRIMARY KEY,
    namespace text NOT NULL,
    tool text NOT NULL,
    -- When to look at it next.
    due_at timestamptz NOT NULL,
    -- How often its downstream was asked since its last grant or heartbeat, and when it last was.
    probes integer NOT NULL DEFAULT 0,
    asked_at timestamptz,
    -- Until when somebody has it for himself.
    claimed_until timestamptz,
    -- Raised by every change; what a change must find to happen.
    version integer NOT NULL DEFAULT 1
);

CREATE INDEX open_intents_by_due ON open_intents (namespace, tool, due_at);

ALTER TYPE changed_intent ADD ATTRIBUTE due_at timestamptz;

INSERT INTO open_intents (id, namespace, tool, due_at)
SELECT id, namespace, tool, coalesce(lease_expires_at, created_at) FROM intents
WHERE state IN (3, 4) AND NOT needs_attention;
