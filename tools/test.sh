#!/usr/bin/env bash
# `make test`: all tests, fast ones first; prints each step and its duration. `tools/test.sh fast` runs only the steps that
# need no builds, `tools/test.sh e2e` only the end-to-end tests. Set PYTEST_ADDOPTS for additional pytest arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
which=${1:-all}
summary=()

step() {
  local title=$1 start=$SECONDS
  shift
  printf '\n==> %s\n' "$title"
  "$@" || { printf '\nFAILED after %s s: %s\n' "$((SECONDS - start))" "$title" >&2; exit 1; }
  summary+=("$(printf '%5s s  %s' "$((SECONDS - start))" "$title")")
}

# The first time, builds of half an hour run next to the tests, with low CPU priority. Steps that need them call the same
# scripts, which lock and reuse the results.
build_ahead() {
  # With autogroups, Linux divides CPU time between sessions first: niceness applies only within a session.
  setsid nice -n 19 bash -c "echo 19 >/proc/self/autogroup; $1" >/dev/null 2>&1 &
  builder=$!
  trap 'kill -- "-$builder" 2>/dev/null || true' EXIT
}

real_pods() {
  if [ "$EUID" != 0 ]; then
    summary+=('skipped: tests with real pods, which require root (sudo -E make e2e)')
    return
  fi
  step 'nodes, Argo and images (built once)' tools/e2e-prepare.sh
  [ "$which" = e2e ] || step 'tests of images and nodes' "$bin/python" -m pytest -q -m e2e tests/images tests/nodes
  step 'tests with real pods' tools/e2e.sh
}

if [ "$which" != e2e ]; then
  if [ "$which" = all ]; then
    step 'system packages' tools/system-packages.sh horovod $([ "$EUID" != 0 ] || echo node images)
    # In the order of use. The Horovod image uses the wheel of the Horovod environment.
    ahead='tools/frameworks.sh; tools/controlplane.sh; tools/helm.sh; tools/go-tools.sh untt'
    build_ahead "$ahead$([ "$EUID" != 0 ] || echo '; tools/e2e-prepare.sh')"
  fi
  step 'lint (ruff)' "$bin/ruff" check --no-cache .
  step 'format (ruff)' "$bin/ruff" format --check .
  step 'types (mypy --strict)' "$bin/mypy"
  step 'layers (import-linter)' "$bin/lint-imports" --no-cache
  step 'generated files' make --no-print-directory verify
  step 'tests without frameworks' "$bin/python" -m pytest -q -m 'not slow and not cluster and not e2e'
fi
if [ "$which" = all ]; then
  step 'PyTorch, TensorFlow, Horovod' tools/frameworks.sh pytorch tensorflow horovod
  step 'tests with real frameworks' "$bin/python" -m pytest -q -m slow --durations=10
  step 'control plane (built once, by Go)' tools/controlplane.sh
  step 'Helm and its test runner (built once, by Go)' bash -c "tools/helm.sh && tools/go-tools.sh untt"
  step 'tests on a real API server' "$bin/python" -m pytest -q -m cluster --durations=10
fi
[ "$which" = fast ] || real_pods

printf '\nall passed:\n'
printf '%s\n' "${summary[@]}"
