-- Finds an intent by any reference of the downstream that was ever given for it.
--
-- A row has one; where the downstream has several objects for a key, or names another one than before, the
-- others stand in events. One id must not settle two keys, whichever it is. Events are written for what is out
-- of the ordinary only, so that an effect pays nothing for it.
CREATE INDEX events_by_reference ON events ((fact::jsonb ->> 'downstream_ref'))
    WHERE fact::jsonb ->> 'downstream_ref' IS NOT NULL;

-- Where the binding arguments of a repeat differ from those of the first Begin: JSON Pointers, a line each.
ALTER TABLE repeats ADD COLUMN changed text NOT NULL DEFAULT '';
