-- One effect as an application without a ledger would record it: note it, do it, note the result. Two transactions of
-- its own, because the effect itself happens between them.
\set high random(1, 9223372036854775807)
\set low random(1, 9223372036854775807)
INSERT INTO handrolled_effect (key, state)
  VALUES (lpad(to_hex(:high::bigint), 16, '0') || lpad(to_hex(:low::bigint), 16, '0'), 'started')
  ON CONFLICT (key) DO NOTHING RETURNING key;
UPDATE handrolled_effect
  SET state = 'done', result = '{"id": "ch_1", "status": "succeeded"}', settled_at = now()
  WHERE key = lpad(to_hex(:high::bigint), 16, '0') || lpad(to_hex(:low::bigint), 16, '0');
