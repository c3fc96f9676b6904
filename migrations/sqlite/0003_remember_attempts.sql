-- Who repeated a call, and how often what was decided: the same tables as in migrations/postgres, and the
-- same reasons.

CREATE TABLE repeat_counts (
    id blob PRIMARY KEY,
    transport integer NOT NULL,
    orchestrator integer NOT NULL,
    model integer NOT NULL,
    resumed_run integer NOT NULL,
    unknown_layer integer NOT NULL
) WITHOUT ROWID;

CREATE TABLE repeats (
    id blob NOT NULL,
    -- Counted from 1 within the row; the first Begin is the row itself.
    ordinal integer NOT NULL,
    at integer NOT NULL,
    answered integer NOT NULL,
    layer integer NOT NULL,
    free_text_changed integer NOT NULL,
    attempt_id blob,
    trace_id blob,
    caller text NOT NULL,
    tool_call_id text NOT NULL,
    run_id text NOT NULL,
    step_id text NOT NULL,
    PRIMARY KEY (id, ordinal)
) WITHOUT ROWID;

CREATE TABLE begin_counts (
    -- A hash of namespace and tool.
    id blob NOT NULL,
    -- How long the span is: 1 or 60.
    minutes integer NOT NULL,
    -- When it begins.
    span_at integer NOT NULL,
    -- What is counted: an answer, 101 and up a layer, 120 new rows.
    counted integer NOT NULL,
    namespace text NOT NULL,
    tool text NOT NULL,
    count integer NOT NULL,
    PRIMARY KEY (id, minutes, span_at, counted)
) WITHOUT ROWID;

CREATE INDEX begin_counts_by_time ON begin_counts (namespace, span_at);
CREATE INDEX begin_counts_by_age ON begin_counts (span_at, minutes);

CREATE TABLE run_counts (
    -- A hash of namespace, tool and run.
    id blob PRIMARY KEY,
    namespace text NOT NULL,
    tool text NOT NULL,
    run_id text NOT NULL,
    count integer NOT NULL,
    last_at integer NOT NULL
) WITHOUT ROWID;

CREATE INDEX run_counts_by_time ON run_counts (namespace, last_at);
CREATE INDEX run_counts_by_age ON run_counts (last_at);
