#!/usr/bin/env bash
# The tests with real pods, on a cluster of their own: what mostly waits for nodes, backoffs and deadlines runs beside the
# rest, and what takes the operator away runs last, alone. Arguments are tests or options of pytest; those run in one row.
# docs/e2e.md tells of the environment: ALLRANKS_E2E=DIR, ALLRANKS_TEST_CLUSTER=yes.
set -euo pipefail
cd "$(dirname "$0")/.."
waits=(tests/e2e/test_elastic.py tests/e2e/test_nodes.py tests/e2e/test_progress.py)
last=(tests/e2e/test_release.py)
kept=build/e2e

main() {
  mkdir -p "$kept"
  if [ "${ALLRANKS_TEST_CLUSTER:-}" = yes ]; then
    row "${@:-tests/e2e}"
    return
  fi
  trap 'finish $?' EXIT
  trap 'exit 130' INT TERM HUP
  [ -n "${ALLRANKS_E2E:-}" ] || cluster
  if (($#)); then
    row "$@"
    return
  fi
  set -m # in a group of its own, which `finish` ends
  row "${waits[@]}" >"$kept/waits.log" 2>&1 &
  beside=$!
  set +m
  local failed=0 test rest=()
  for test in tests/e2e/test_*.py; do
    [[ " ${waits[*]} ${last[*]} " == *" $test "* ]] || rest+=("$test")
  done
  row "${rest[@]}" || failed=1
  echo "and beside them:"
  wait "$beside" || failed=1
  beside=''
  cat "$kept/waits.log"
  row "${last[@]}" || failed=1
  return "$failed"
}

row() {
  .venv/bin/python -m pytest -q -m e2e --durations=10 "$@"
}

# Two nodes that each say that they have four GPUs. Tests start when node-1 has what most of them need, and wait for the
# other images, which take room, and time to load.
cluster() {
  mine=$(mktemp -d "${TMPDIR:-/tmp}/allranks-e2e.XXXXXX")
  export ALLRANKS_E2E=$mine/cluster
  tools/cluster.sh up --nodes 2 --gpus 4 --dir "$ALLRANKS_E2E" >/dev/null
  give node-1 operator pytorch >/dev/null
  set -m
  { { give node-2 pytorch && give node-1 tensorflow && give node-1 horovod; } >"$kept/images.log" 2>&1 ||
    cp "$kept/images.log" "$ALLRANKS_E2E/images.failed"; } &
  loading=$!
  set +m
}

# Builds images, as far as they are not, and loads them.
give() {
  local node=$1
  shift
  .venv/bin/python tests/images/building.py "$@" --into "tools/cluster.sh load --on $node - --dir $ALLRANKS_E2E"
}

finish() {
  trap '' INT TERM HUP
  local group
  for group in ${beside:-} ${loading:-}; do
    kill -- "-$group" 2>/dev/null || true
    wait "$group" 2>/dev/null || true
  done
  [ -z "${mine:-}" ] || { tools/cluster.sh down --dir "$mine/cluster" && rm -rf "$mine"; } || exit 1
  exit "$1"
}

main "$@"
