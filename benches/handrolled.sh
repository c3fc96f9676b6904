#!/usr/bin/env bash
# The baseline our own figures stand beside: the table an application would write by hand, driven by pgbench.
set -euo pipefail

if [ "$#" -lt 2 ] || [ "$#" -gt 3 ]; then
  cat >&2 <<'HELP'
Usage: benches/handrolled.sh URL CLIENTS [SECONDS]

Records effects in a table handrolled_effect of the database at URL (made, then dropped), two
transactions an effect, from CLIENTS connections for SECONDS (default 10). Prints one line:

  handrolled clients=16 seconds=10 effects=61234 effects_per_s=6123 p50_ms=2.41 p99_ms=6.02

Needs psql and pgbench: in PATH, under /usr/lib/postgresql, or in INTENT_LEDGER_TEST_PGBIN.
HELP
  exit 64
fi
url="$1" clients="$2" seconds="${3:-10}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"

pgbench="$(find ${INTENT_LEDGER_TEST_PGBIN:+"$INTENT_LEDGER_TEST_PGBIN"} /usr/lib/postgresql/*/bin \
  -name pgbench 2>/dev/null | sort -V | tail -n 1)" || true
bin="${INTENT_LEDGER_TEST_PGBIN:-${pgbench%/pgbench}}"
PATH="${bin:+$bin:}$PATH"

sql() { psql -X -q -v ON_ERROR_STOP=1 "$url" -c 'SET client_min_messages = warning' -c "$1"; }

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

sql 'DROP TABLE IF EXISTS handrolled_effect'
sql 'CREATE TABLE handrolled_effect (
  key text PRIMARY KEY,
  state text NOT NULL,
  result jsonb,
  created_at timestamptz NOT NULL DEFAULT now(),
  settled_at timestamptz)'
trap 'rm -rf "$work"; sql "DROP TABLE IF EXISTS handrolled_effect"' EXIT

threads="$(nproc)"
if [ "$threads" -gt "$clients" ]; then
  threads="$clients"
fi
if ! pgbench --no-vacuum --protocol=prepared --file="$here/handrolled.sql" --client="$clients" \
  --jobs="$threads" --time="$seconds" --log --log-prefix="$work/effects" "$url" >"$work/report" 2>&1; then
  cat "$work/report" >&2
  exit 1
fi

# pgbench's log has a line an effect, both transactions together; its third column is microseconds.
cat "$work"/effects.* | awk '{ print $3 }' | sort -n >"$work/latencies"
per_second="$(awk '/^tps = / { print $3 }' "$work/report")"
awk -v clients="$clients" -v seconds="$seconds" -v per_second="$per_second" '
  { latency[NR] = $1 }
  function percentile(p,    at) {
    at = int(NR * p)
    if (at < NR * p) at++ # nearest rank
    return latency[at] / 1000
  }
  END {
    printf "handrolled clients=%d seconds=%d effects=%d effects_per_s=%.0f p50_ms=%.2f p99_ms=%.2f\n",
      clients, seconds, NR, per_second, percentile(0.50), percentile(0.99)
  }' "$work/latencies"
