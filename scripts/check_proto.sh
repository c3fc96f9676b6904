#!/usr/bin/env bash
# Checks the public contract: lint, format, and that no client breaks against the stored image.
#
# `--accept` stores the present contract as the image instead of comparing with it: after an addition, or a
# deliberate break before the first release.
set -euo pipefail
cd "$(dirname "$0")/.."

image=tests/golden/intent_ledger.v1.image.json

if ! buf=$(command -v buf); then
  buf=.venv/bin/buf
  if [[ ! -x $buf ]]; then
    echo "check_proto: no buf in PATH or .venv; pip install -r requirements-dev.txt into .venv" >&2
    exit 1
  fi
fi

case "${1-}" in
  --accept)
    "$buf" build --exclude-source-info -o '-#format=json' | python3 -m json.tool --indent 1 >"$image"
    exit
    ;;
  '') ;;
  *)
    echo "usage: scripts/check_proto.sh [--accept]" >&2
    exit 64
    ;;
esac

"$buf" lint
"$buf" format --diff --exit-code
"$buf" breaking --against "$image"
