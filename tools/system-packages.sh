#!/usr/bin/env bash
# Installs Debian packages: for Horovod, MPI for its MPI jobs, a compiler and cmake for its wheel; for a cluster on this
# machine (tools/cluster.sh), the programs of a node and what shuts one down; for images without Docker, build tools.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/system-packages.sh [horovod] [node] [images] [shutdown]

Installs the missing Debian packages of these groups, if the user is root and apt-get is available; without an argument
those of Horovod:
  horovod  Open MPI, ssh client, C++ compiler, make and cmake
  node     containerd, runc, network plugins, packet filter and busybox for tools/cluster.sh
  images   buildah and debootstrap, to build images without Docker
  shutdown D-Bus and logind, for tests that shut a node down
Otherwise it prints one line with the missing packages and features, and succeeds: everything except MPI works without
MPI. Installed packages are not changed. Prints only to stderr.

examples:
  tools/system-packages.sh && tools/frameworks.sh horovod
  tools/system-packages.sh node images
  sudo tools/system-packages.sh
USAGE
}

# command that proves it | Debian package | what is not available without it
horovod='mpirun|openmpi-bin|MPI jobs
mpicxx|libopenmpi-dev|MPI in Horovod
ssh|openssh-client|MPI jobs on several hosts
g++|g++|building Horovod
make|make|building Horovod
cmake|cmake|a cmake of the system (the build fetches its own)'

# The package `busybox` is dynamically linked, and the containers have no libraries.
node='containerd|containerd|a cluster on this machine
runc|runc|a cluster on this machine
/usr/lib/cni/ptp|containernetworking-plugins|a cluster on this machine
iptables|iptables|a cluster on this machine
nft|nftables|a cluster on this machine
conntrack|conntrack|a cluster on this machine
ip|iproute2|a cluster on this machine
mount|mount|a cluster on this machine
openssl|openssl|a cluster on this machine
busybox|busybox-static|a cluster on this machine'

# runc runs the commands of a Dockerfile; crun would work as well.
images='buildah|buildah|images without Docker
runc|runc|images without Docker
debootstrap|debootstrap|base images without a registry'

# They run in the namespaces of a node only.
shutdown='dbus-daemon|dbus|tests of the shutdown of a node
busctl|systemd|tests of the shutdown of a node
/lib/systemd/systemd-logind|systemd|tests of the shutdown of a node'

main() {
  local group packages=''
  (($#)) || set -- horovod
  for group in "$@"; do
    case $group in
      -h | --help) usage; return ;;
      horovod | node | images | shutdown) packages+=${packages:+$'\n'}${!group} ;;
      *) usage >&2; fail "unknown argument '$group'" ;;
    esac
  done
  find_missing
  [[ -n $missing ]] || return 0
  if [[ $EUID != 0 ]]; then
    say "missing:$missing; not available without them: $lost. Run this script as root to install them"
  elif ! command -v apt-get >/dev/null; then
    say "missing:$missing; not available without them: $lost. There is no apt-get: install them with this system's package manager"
  else
    install
  fi
}

find_missing() {
  local proof package loss
  missing='' lost=''
  while IFS='|' read -r proof package loss; do
    [[ $missing == *" $package"* ]] || command -v "$proof" >/dev/null && continue
    missing+=" $package"
    [[ $lost == *"$loss"* ]] || lost+=${lost:+, }$loss
  done <<<"$packages"
}

install() {
  local started=$SECONDS log
  log=$(mktemp)
  say "installing$missing"
  # shellcheck disable=SC2086 # package names, to be split
  if ! { update && apt_get install --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm "$log"
    fail "apt-get could not install$missing, see above"
  fi
  rm "$log"
  say "done in $((SECONDS - started)) s"
}

# Another apt-get may be at work, on a machine that has just started for example. `DPkg::Lock::Timeout` waits for it to
# install packages, but not to update its lists.
update() {
  local output until=$((SECONDS + 300))
  until output=$(apt_get update 2>&1); do
    echo "$output"
    [[ $output == *"Could not get lock"* ]] && ((SECONDS < until)) || return 1
    sleep 2
  done
}

apt_get() { LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes --option DPkg::Lock::Timeout=300 "$@"; }

say() { echo "system-packages: $*" >&2; }

fail() {
  echo "system-packages: error: $*" >&2
  exit 1
}

main "$@"
