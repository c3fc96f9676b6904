-- What a run has left of its limit, and which intents look alike: the same tables as in
-- migrations/postgres, and the same reasons.

CREATE TABLE run_slots (
    -- A hash of namespace, tool and run.
    id blob NOT NULL,
    intent blob NOT NULL,
    PRIMARY KEY (id, intent)
) WITHOUT ROWID;

-- For whoever forgets an intent.
CREATE INDEX run_slots_by_intent ON run_slots (intent);

-- Under which subject an intent was begun; nothing of the subject itself.
CREATE TABLE look_alikes (
    -- A hash of namespace, tool and the subject's values.
    id blob NOT NULL,
    created_at integer NOT NULL,
    intent blob NOT NULL,
    -- When it is no look-alike any more, and may be forgotten.
    expires_at integer NOT NULL,
    PRIMARY KEY (id, created_at, intent)
) WITHOUT ROWID;

CREATE INDEX look_alikes_by_expiry ON look_alikes (expires_at);

-- Proposals run out by themselves: nobody is asked about them, so they wait behind nothing that is.
ALTER TABLE open_intents ADD COLUMN proposal integer NOT NULL DEFAULT 0;
CREATE INDEX open_proposals_by_due ON open_intents (due_at) WHERE proposal = 1;
