-- Settles an intent within the transaction of its effect.
--
-- The application calls intent_ledger.complete() in the transaction that has the effect: both commit, or
-- neither does. The row stays locked until then, so that a Begin which would grant a further attempt waits; and
-- an attempt that was superseded gets an error, which rolls its effect back. The function guards, as every
-- write of the ledger does, and decides nothing: that a lease is over, that a further attempt may be granted,
-- what a repeat is answered is decided elsewhere. It writes what an ordinary settlement writes.
--
-- SQLSTATEs of its errors, all of which leave the intent as it was:
--   IL001  there is no such intent
--   IL002  the attempt is not the one that holds the right to execute
--   IL003  the intent is settled, or nobody has begun it
--   IL004  the attempt was not granted for completion within a transaction
--   IL005  an argument is malformed
--
-- Its caller needs no right on the tables: it runs as the owner of the ledger, and only roles that are told so
-- (GRANT USAGE ON SCHEMA intent_ledger, GRANT EXECUTE ON FUNCTION intent_ledger.complete) may run it.
DO $migration$
DECLARE
    body text := $body$
    #variable_conflict use_column
    DECLARE
        row_id uuid;
        filed bytea;
        -- The default of max_result_bytes: what a policy says otherwise is not known here.
        bytes_max constant integer := 262144;
        backslash constant text := chr(92);
        -- An escaped NUL, which no jsonb takes; not the end of an escaped backslash and plain letters.
        escaped_nul constant text := '(?<!' || repeat(backslash, 2) || ')((?:' || repeat(backslash, 4) || ')*)'
            || repeat(backslash, 2) || 'u0000';
        no_nul constant text := backslash || '1' || repeat(backslash, 2) || 'ufffd';
        there record;
    BEGIN
        IF coalesce(complete.key, '') !~ '^[0-9a-f]{64}$' THEN
            RAISE EXCEPTION USING ERRCODE = 'IL005',
                MESSAGE = 'key: must be the 64 lower-case hexadecimal digits that Begin has answered';
        ELSIF complete.attempt_id IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'IL005',
                MESSAGE = 'attempt_id: must be the one that Begin has answered with EXECUTE';
        ELSIF octet_length(complete.result_content_type) > 255
            OR complete.result_content_type ~ '[[:cntrl:]]' THEN
            RAISE EXCEPTION USING ERRCODE = 'IL005',
                MESSAGE = 'result_content_type: must have 255 bytes or less, and no control character';
        END IF;
        -- Who reads COMPLETED must not lose it by a crash, however little the application's own
        -- transactions are worth to it.
        IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;

        -- The id of a row is one hash away from its key; this is that of hash version 1.
        filed := substr(sha256(convert_to(
            '["intent-ledger/1/downstream","' || complete.key || '"]', 'UTF8')), 1, 16);
        filed := set_byte(filed, 6, (get_byte(filed, 6) & 15) | 128);
        filed := set_byte(filed, 8, (get_byte(filed, 8) & 63) | 128);
        row_id := encode(filed, 'hex')::uuid;

        -- What was promised at the grant of the current attempt is a part of `details`, which is JSON of which
        -- no part is an escaped NUL once that is replaced.
        -- As for every completed intent, what the downstream would be asked by and what a person was
        -- shown goes; a result that is too large is cut, and what the whole was is kept.
        UPDATE {intents} i
        SET version = i.version + 1, state = 5, fate = 2,
            result = substr(complete.result, 1, bytes_max),
            result_content_type = nullif(complete.result_content_type, ''),
            result_sha256 = CASE WHEN complete.result IS NULL THEN sha256(''::bytea)
                WHEN octet_length(complete.result) > bytes_max THEN sha256(complete.result) END,
            result_size = CASE WHEN complete.result IS NULL THEN 0
                WHEN octet_length(complete.result) > bytes_max THEN octet_length(complete.result) END,
            result_truncated = coalesce(octet_length(complete.result) > bytes_max, false),
            needs_attention = i.conflict, provenance = 1, settled_at = clock.at,
            details = CASE WHEN i.details ~ '"(kept|approval)":' THEN jsonb_set(
                regexp_replace(i.details, escaped_nul, no_nul, 'g')::jsonb - 'kept',
                '{approval,arguments_json}', '""', false)::text ELSE i.details END
        FROM (SELECT clock_timestamp() AS at) clock
        WHERE i.id = row_id AND i.key = decode(complete.key, 'hex')
          AND i.attempt_id = complete.attempt_id AND i.state IN (3, 4) AND i.fate IN (1, 5)
          AND regexp_replace(i.details, escaped_nul, no_nul, 'g')::jsonb
              @> '{"promise": {"same_transaction": true}}';
        IF FOUND THEN
            RETURN;
        END IF;

        -- Nothing was written; the rest only tells why.
        SELECT i.state, i.attempt_id = complete.attempt_id AS is_current INTO there
        FROM {intents} i WHERE i.id = row_id AND i.key = decode(complete.key, 'hex');
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'IL001', MESSAGE = 'there is no such intent',
                HINT = 'Begin it first, and pass on the key that Begin has answered.';
        ELSIF there.state NOT IN (3, 4) THEN
            RAISE EXCEPTION USING ERRCODE = 'IL003',
                MESSAGE = 'the intent is settled already, or was never started',
                DETAIL = 'Nothing of this transaction may stand: the effect may be in the world by another one.',
                HINT = 'Roll back and ask Begin again: it answers with the first result.';
        ELSIF there.is_current IS NOT TRUE THEN
            RAISE EXCEPTION USING ERRCODE = 'IL002',
                MESSAGE = 'the attempt does not hold the right to execute',
                DETAIL = 'A newer one was granted meanwhile, or this one never was.',
                HINT = 'Roll back and ask Begin again.';
        ELSE
            RAISE EXCEPTION USING ERRCODE = 'IL004',
                MESSAGE = 'the attempt was not granted for completion within a transaction',
                HINT = 'Set downstream.same_transaction = true in the policy of the tool, or call Complete.';
        END IF;
    END
    $body$;
BEGIN
    -- Only who may make schemas has to: somebody else may have made it beforehand.
    IF to_regnamespace('intent_ledger') IS NULL THEN
        CREATE SCHEMA intent_ledger;
    END IF;
    -- The tables are where this migration finds them, whatever the caller's search path is; and no function or
    -- operator is looked for where the application may make some, since this one runs as the ledger's owner.
    body := replace(body, '{intents}', format('%I.intents', current_schema()));
    EXECUTE 'CREATE FUNCTION intent_ledger.complete(
        key text, attempt_id uuid, result bytea DEFAULT NULL, result_content_type text DEFAULT NULL)
        RETURNS void LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp AS ' || quote_literal(body);
    REVOKE ALL ON FUNCTION intent_ledger.complete(text, uuid, bytea, text) FROM PUBLIC;
END
$migration$;
