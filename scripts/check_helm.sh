#!/usr/bin/env bash
# Checks the Helm chart and the Dockerfile: linted, rendered and validated, against the sources too. Needs no
# cluster, no Docker and no network; tests/helm has the checks.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
if ! "$python" -c 'import helm_python, kubernetes_validate' 2>/dev/null; then
  echo "check_helm: no Helm in .venv; pip install -r requirements-dev.txt into it" >&2
  exit 1
fi
PYTHONDONTWRITEBYTECODE=1 exec "$python" tests/helm/check.py
