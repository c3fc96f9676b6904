-- Finds an intent by any reference of the downstream that was ever given for it.
CREATE INDEX events_by_reference ON events (fact ->> '$.downstream_ref')
    WHERE fact ->> '$.downstream_ref' IS NOT NULL;

-- Where the binding arguments of a repeat differ from those of the first Begin: JSON Pointers, a line each.
ALTER TABLE repeats ADD COLUMN changed text NOT NULL DEFAULT '';
