#!/usr/bin/env bash
# Runs the end-to-end tests on a cluster of their own, three at a time, because they mostly wait for nodes, backoffs and
# deadlines. Tests that remove the operator or change its settings, or affect the pods of other tests, run last, one at a
# time.
set -euo pipefail
cd "$(dirname "$0")/.."
long=(tests/e2e/test_{kubelets,faults,elastic,progress,nodes}.py)
last=(tests/e2e/test_{data_on_nodes,release,removed_pods,archive,ui_pictures,gangs,queues}.py)
kept=build/e2e
taint=tests.allranks.dev/kept-free
free=(node-2 node-3) # nodes that only tests use that stop them, or change their kubelet

usage() {
  cat <<'USAGE'
usage: tools/e2e.sh [TEST...] [OPTION OF PYTEST...]

Starts three nodes, runs the end-to-end tests on them, and stops them, as root. tools/e2e-prepare.sh builds what they need;
`make e2e` does both. docs/dev/e2e.md describes how to use an existing cluster. With options alone, all tests run; results of
the tests that run last are in another file (--junit-xml=pods.xml: pods.last.xml).

examples:
  tools/e2e.sh
  tools/e2e.sh --junit-xml=pods.xml
  tools/e2e.sh tests/e2e/test_faults.py -k evicted

environment:
  ALLRANKS_E2E=DIR                          a cluster of `tools/cluster.sh up --nodes 3 --gpus 4 --dir DIR`
  ALLRANKS_TEST_CLUSTER=yes and KUBECONFIG  any cluster
USAGE
}

main() {
  case ${1-} in -h | --help) usage; exit 0 ;; esac
  mkdir -p "$kept"
  if [ "${ALLRANKS_TEST_CLUSTER:-}" = yes ]; then
    row "${@:-tests/e2e}"
    return
  fi
  trap 'finish $?' EXIT
  trap 'exit 130' INT TERM HUP
  if [ -z "${ALLRANKS_E2E:-}" ]; then cluster; fi
  local node
  for node in "${free[@]}"; do kubectl taint node "$node" "$taint=$node:NoSchedule" --overwrite; done
  if [[ $* == *tests/* ]]; then
    beside row "$@"
    wait "$!"
    return
  fi
  local failed=0 test tests=("${long[@]}") # long tests first, so that all three workers are busy until the end
  for test in tests/e2e/test_*.py; do
    [[ " ${long[*]} ${last[*]} " == *" $test "* ]] || tests+=("$test")
  done
  beside row "${tests[@]}" --numprocesses=3 --dist=loadscope --no-loadscope-reorder "$@"
  wait "$!" || failed=1
  beside row "${last[@]}" "${@/%.xml/.last.xml}"
  wait "$!" || failed=1
  return "$failed"
}

row() {
  .venv/bin/python -m pytest -q -m e2e --durations=10 "$@"
}

# Runs the command in its own process group, which `finish` ends.
beside() {
  set -m
  "$@" &
  set +m
}

# Three nodes with four fake GPUs each, and the images built by tools/e2e-prepare.sh.
cluster() {
  local store
  # Without `libraries`, which takes long to build: the tests of its examples are skipped.
  local file image images=()
  for file in images/*/Dockerfile; do
    image=$(basename "$(dirname "$file")")
    [ "$image" = libraries ] || images+=("ghcr.io/allranks/$image:e2e")
  done
  for image in root user conda venv noshell; do images+=("ghcr.io/allranks/layout-$image:e2e"); done
  store=$(tools/image-store.sh "${images[@]}")
  mine=$(mktemp -d "$(dirname "$store")/e2e.XXXXXX") # on the same file system: they share files
  export ALLRANKS_E2E=$mine/cluster
  tools/cluster.sh up --with node --nodes 3 --gpus 4 --gangs --store "$store" --dir "$ALLRANKS_E2E" >/dev/null
}

kubectl() {
  KUBECONFIG=$ALLRANKS_E2E/kubeconfig PATH=$ALLRANKS_E2E/bin:$PATH command kubectl "$@" >/dev/null
}

# Interrupts the tests first, so that they can restore what they changed.
finish() {
  trap '' INT TERM HUP
  local signal
  for signal in INT TERM; do
    for _ in {1..60}; do
      [ -n "$(jobs -rp)" ] || break
      for group in $(jobs -rp); do kill "-$signal" -- "-$group" || true; done
      signal=0
      sleep 1
    done
  done
  if [ -n "${mine:-}" ]; then
    tools/cluster.sh down --dir "$mine/cluster" && rm -rf "$mine" || exit 1
  elif [ -n "${ALLRANKS_E2E:-}" ]; then
    kubectl taint node "${free[@]}" "$taint-" || true
  fi
  exit "$1"
}

main "$@"
