-- When what is settled may be forgotten: the same table as in migrations/postgres, and the same reasons.

-- Of a tombstone only.
ALTER TABLE intents ADD COLUMN pruned_at integer;

CREATE TABLE retention_batches (
    -- When to look at them; the end of the claim while somebody does.
    due_at integer NOT NULL,
    id blob NOT NULL,
    -- The ids, one after the other.
    intents blob NOT NULL,
    PRIMARY KEY (due_at, id)
) WITHOUT ROWID;

-- What is there already is looked at once, soon. Each by itself: they are filed together from then on. What a
-- batch still remembers is among them too, and is filed twice for a while.
INSERT INTO retention_batches (due_at, id, intents)
SELECT CAST(strftime('%s', 'now') AS integer) * 1000000, randomblob(16), id FROM intents;
