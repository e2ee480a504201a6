#!/usr/bin/env bash
# `make test`: every test, fast ones first; says what runs and how long it took. `tools/test.sh fast` stops before the
# frameworks. Further arguments of pytest come from PYTEST_ADDOPTS.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
summary=()

step() {
  local title=$1 start=$SECONDS
  shift
  printf '\n==> %s\n' "$title"
  "$@" || { printf '\nFAILED after %s s: %s\n' "$((SECONDS - start))" "$title" >&2; exit 1; }
  summary+=("$(printf '%5s s  %s' "$((SECONDS - start))" "$title")")
}

step 'lint (ruff)' "$bin/ruff" check --no-cache .
step 'format (ruff)' "$bin/ruff" format --check .
step 'types (mypy --strict)' "$bin/mypy"
step 'layers (import-linter)' "$bin/lint-imports" --no-cache
step 'generated files' make --no-print-directory verify
step 'tests without frameworks' "$bin/python" -m pytest -q -m 'not slow and not cluster and not e2e'
if [ "${1:-all}" != fast ]; then
  step 'control plane (built once, by Go)' tools/controlplane.sh
  step 'Helm (built once, by Go)' tools/helm.sh
  step 'tests on a real API server' "$bin/python" -m pytest -q -m cluster --durations=10
  step 'system packages for MPI' tools/system-packages.sh
  step 'PyTorch, TensorFlow, Horovod' tools/frameworks.sh pytorch tensorflow horovod
  step 'tests with real frameworks' "$bin/python" -m pytest -q -m slow --durations=10
fi

printf '\nall passed:\n'
printf '%s\n' "${summary[@]}"
