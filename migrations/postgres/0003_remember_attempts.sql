-- Who repeated a call, and how often what was decided.
--
-- All of it is for people, and written behind: an effect that nobody repeats leaves nothing here, and
-- the counters are added to by whichever server has counted. Rows of before are served as they are: they
-- have no repeats until somebody repeats them.

-- How often a row was begun again, by layer. Its sum numbers the repeats that are kept one by one, so
-- that servers which write at once keep no more than there should be.
CREATE TABLE repeat_counts (
    -- The row's.
    id uuid PRIMARY KEY,
    transport bigint NOT NULL,
    orchestrator bigint NOT NULL,
    model bigint NOT NULL,
    resumed_run bigint NOT NULL,
    unknown_layer bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE repeats (
    id uuid NOT NULL,
    -- Counted from 1 within the row; the first Begin is the row itself.
    ordinal integer NOT NULL,
    at timestamptz NOT NULL,
    answered smallint NOT NULL,
    layer smallint NOT NULL,
    free_text_changed boolean NOT NULL,
    attempt_id uuid,
    trace_id uuid,
    caller text NOT NULL,
    tool_call_id text NOT NULL,
    run_id text NOT NULL,
    step_id text NOT NULL,
    PRIMARY KEY (id, ordinal)
);

-- How often what happened with a tool, by the minute, and by the hour once that is long ago.
CREATE TABLE begin_counts (
    -- A hash of namespace and tool.
    id uuid NOT NULL,
    -- How long the span is: 1 or 60.
    minutes smallint NOT NULL,
    -- When it begins.
    span_at timestamptz NOT NULL,
    -- What is counted: an answer, 101 and up a layer, 120 new rows.
    counted smallint NOT NULL,
    namespace text NOT NULL,
    tool text NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (id, minutes, span_at, counted)
) WITH (fillfactor = 70);

CREATE INDEX begin_counts_by_time ON begin_counts (namespace, span_at);
CREATE INDEX begin_counts_by_age ON begin_counts (span_at, minutes);

-- Runs in which one tool was executed more than once.
CREATE TABLE run_counts (
    -- A hash of namespace, tool and run.
    id uuid PRIMARY KEY,
    namespace text NOT NULL,
    tool text NOT NULL,
    run_id text NOT NULL,
    count bigint NOT NULL,
    last_at timestamptz NOT NULL
);

CREATE INDEX run_counts_by_time ON run_counts (namespace, last_at);
CREATE INDEX run_counts_by_age ON run_counts (last_at);
