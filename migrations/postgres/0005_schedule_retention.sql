-- When what is settled may be forgotten.
--
-- Results are pruned and tombstones purged by time, and no index over the time of settling may tell when:
-- every settlement would write all indexes of its row. So the ids that a batch of grants remembers move on to
-- a calendar when the batch is looked through. There they stay, some hundred in a row, filed by the earliest
-- time at which something can be due, until nothing is left of them.

-- Of a tombstone only. At the end: an absent column costs a row nothing.
ALTER TABLE intents ADD COLUMN pruned_at timestamptz;

CREATE TABLE retention_batches (
    -- When to look at them; the end of the claim while somebody does.
    due_at timestamptz NOT NULL,
    id uuid NOT NULL,
    intents uuid[] NOT NULL,
    PRIMARY KEY (due_at, id)
) WITH (toast_tuple_target = 8160); -- 256 ids stay in their row

-- What is there already is looked at once, soon. What a batch still remembers is filed with the batch once
-- more, which costs a second look and nothing else.
INSERT INTO retention_batches (due_at, id, intents)
SELECT now(), gen_random_uuid(), array_agg(id)
FROM (SELECT id, (row_number() OVER () - 1) / 256 AS part FROM intents) numbered
GROUP BY part;
