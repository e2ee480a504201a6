#!/usr/bin/env bash
# Debian's packages for Horovod: MPI to run its MPI jobs, a compiler and cmake to build its wheel.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/system-packages.sh

Installs Debian's Open MPI, ssh client, C++ compiler, make and cmake where they are missing, if this user is root and
apt-get is there. Otherwise it says in one line what is missing and what will not be available, and succeeds:
everything but MPI works without MPI. What is there already is left alone. Prints on stderr only.

examples:
  tools/system-packages.sh && tools/frameworks.sh horovod
  sudo tools/system-packages.sh
USAGE
}

# command that proves it | Debian package | what is not available without it
packages='mpirun|openmpi-bin|MPI jobs
mpicxx|libopenmpi-dev|MPI in Horovod
ssh|openssh-client|MPI jobs on several hosts
g++|g++|building Horovod
make|make|building Horovod
cmake|cmake|a cmake of the system (the build fetches its own)'

main() {
  case ${1:-} in
    '') ;;
    -h | --help) usage; return ;;
    *) usage >&2; fail "unknown argument '$1'" ;;
  esac
  find_missing
  [[ -n $missing ]] || return 0
  if [[ $EUID != 0 ]]; then
    say "missing:$missing; not available then: $lost. Root may run this script to install them"
  elif ! command -v apt-get >/dev/null; then
    say "missing:$missing; not available then: $lost. There is no apt-get here: install them with this system's own tools"
  else
    install
  fi
}

find_missing() {
  local proof package loss
  missing='' lost=''
  while IFS='|' read -r proof package loss; do
    command -v "$proof" >/dev/null && continue
    missing+=" $package"
    [[ $lost == *"$loss"* ]] || lost+=${lost:+, }$loss
  done <<<"$packages"
}

install() {
  local started=$SECONDS log
  log=$(mktemp)
  say "installing$missing"
  # shellcheck disable=SC2086 # package names, to be split
  if ! { apt_get update && apt_get install --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm "$log"
    fail "apt-get could not install$missing, see above"
  fi
  rm "$log"
  say "done in $((SECONDS - started)) s"
}

# Another apt-get may hold the lock, on a machine that has just started for example.
apt_get() { DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes --option DPkg::Lock::Timeout=300 "$@"; }

say() { echo "system-packages: $*" >&2; }

fail() {
  echo "system-packages: error: $*" >&2
  exit 1
}

main "$@"
