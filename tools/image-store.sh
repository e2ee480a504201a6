#!/usr/bin/env bash
# Unpacks images in containerd's format, once for all clusters, so that new nodes have them within a second.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/image-store.sh IMAGE...

Adds buildah images to the store in $ALLRANKS_CACHE, and prints its folder for
`tools/cluster.sh up --store`. An image takes a minute or two the first time; unchanged images are skipped. Requires root.

examples:
  tools/images.sh --engine buildah --tag dev pytorch
  tools/cluster.sh up --store "$(tools/image-store.sh ghcr.io/allranks/pytorch:dev)"

environment:
  ALLRANKS_CACHE  parent folder of the store, default ~/.cache/allranks
USAGE
}

main() {
  case ${1-} in
    -h | --help) usage; exit 0 ;;
    '' | -*) usage >&2; exit 2 ;;
  esac
  store=${ALLRANKS_CACHE:-$HOME/.cache/allranks}/image-store
  mkdir -p "$store"
  exec 9>"$store.lock"
  flock 9
  local image id missing=()
  for image in "$@"; do
    buildah inspect --type image "$image" >/dev/null 2>&1 || fail "no image $image: build it with tools/images.sh or tools/e2e-prepare.sh"
    id=$(identity "$image")
    grep --quiet --line-regexp --fixed-strings "$image $id" "$store/images" 2>/dev/null || missing+=("$image")
  done
  ((!${#missing[@]})) || add "${missing[@]}"
  echo "$store"
}

# Hash of the content and configuration, without labels, which contain the commit.
identity() {
  local of=.OCIv1.Config
  buildah inspect --type image --format \
    "{{.OCIv1.RootFS}} {{$of.Env}} {{$of.Entrypoint}} {{$of.Cmd}} {{$of.User}} {{$of.WorkingDir}}" "$1" 2>/dev/null |
    sha256sum | cut -d ' ' -f 1
}

# Uses a private containerd that runs only during this call.
add() {
  local image started
  work=$(mktemp -d)
  trap 'end' EXIT
  cat >"$work/containerd.toml" <<TOML
version = 2
root = "$store/containerd"
state = "$work/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "$work/containerd.sock"
TOML
  containerd --config "$work/containerd.toml" >"$work/log" 2>&1 9>&- &
  process=$!
  until ctr --address "$work/containerd.sock" version >/dev/null 2>&1; do
    kill -0 "$process" 2>/dev/null || fail "containerd does not start: $(tail -n 3 "$work/log")"
    sleep 0.1
  done
  for image in "$@"; do
    started=$SECONDS
    # Once more: containerd may collect layers of the former image while it imports the new one, which shares them.
    import_image "$image" || import_image "$image" || fail "containerd did not import $image: $(tail -n 3 "$work/output")"
    { grep --invert-match --fixed-strings "$image " "$store/images" 2>/dev/null || true; echo "$image $(identity "$image")"; } >"$work/images"
    mv "$work/images" "$store/images"
    say "$image in $((SECONDS - started)) s"
  done
}

import_image() {
  buildah push --quiet "$1" "docker-archive:/dev/stdout:$1" |
    ctr --address "$work/containerd.sock" --namespace k8s.io images import --snapshotter "$(snapshotter)" - >"$work/output" 2>&1
}

end() {
  if [[ -n ${process:-} ]]; then
    kill "$process" 2>/dev/null || true
    wait "$process" || true
  fi
  rm -rf "$work"
}

# As in tools/cluster.sh: an overlay cannot be mounted on an overlay.
snapshotter() { if [[ $(stat --file-system --format=%T "$store") == overlayfs ]]; then echo native; else echo overlayfs; fi; }

say() { echo "image-store: $*" >&2; }

fail() {
  say "error: $*"
  exit 1
}

main "$@"
