-- What a run has left of its limit, and which intents look alike.
--
-- A slot is a row: taken in the transaction of the grant that needs it, deleted in that of the change
-- that finds out that nothing happened. The slots of a run are counted rather than added up, so that
-- nothing can get out of step with the intents, and only for tools that have a limit.

CREATE TABLE run_slots (
    -- A hash of namespace, tool and run.
    id uuid NOT NULL,
    intent uuid NOT NULL,
    PRIMARY KEY (id, intent)
);

-- For whoever forgets an intent.
CREATE INDEX run_slots_by_intent ON run_slots (intent);

-- Under which subject an intent was begun; nothing of the subject itself.
CREATE TABLE look_alikes (
    -- A hash of namespace, tool and the subject's values.
    id uuid NOT NULL,
    created_at timestamptz NOT NULL,
    intent uuid NOT NULL,
    -- When it is no look-alike any more, and may be forgotten.
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (id, created_at, intent)
);

CREATE INDEX look_alikes_by_expiry ON look_alikes (expires_at);

-- What a write takes beside its row; ordinary batches carry none.
CREATE TYPE intent_guard AS (
    id uuid,
    -- The run whose slot it takes, and how many of that may be held; null for an effect that has
    -- happened, room or not.
    takes uuid,
    slots_max integer,
    gives_back uuid,
    subject uuid,
    -- Microseconds.
    window_span bigint,
    -- It happens only if nothing else has come under the subject since.
    alone_since timestamptz,
    -- When somebody must look at a new row that was not granted.
    due_at timestamptz
);

-- Proposals run out by themselves: nobody is asked about them, so they wait behind nothing that is.
ALTER TABLE open_intents ADD COLUMN proposal boolean NOT NULL DEFAULT false;
CREATE INDEX open_proposals_by_due ON open_intents (due_at) WHERE proposal;
