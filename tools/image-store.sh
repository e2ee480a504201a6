#!/usr/bin/env bash
# Images as containerd keeps them, unpacked once for all clusters: a node that begins with them has them in a second.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/image-store.sh IMAGE...

Makes sure that images of buildah's are in the store, in $ALLRANKS_CACHE, and prints its folder for
`tools/cluster.sh up --store`. An image takes a minute or two the first time; one that is there as it is, no time. As root.

examples:
  tools/images.sh --engine buildah --tag dev pytorch
  tools/cluster.sh up --store "$(tools/image-store.sh ghcr.io/allranks/pytorch:dev)"

environment:
  ALLRANKS_CACHE  where it is kept, default ~/.cache/allranks
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
    buildah inspect --type image "$image" >/dev/null 2>&1 || fail "there is no image $image: tools/images.sh or tools/e2e-prepare.sh builds it"
    id=$(identity "$image")
    grep --quiet --line-regexp --fixed-strings "$image $id" "$store/images" 2>/dev/null || missing+=("$image")
  done
  ((!${#missing[@]})) || add "${missing[@]}"
  echo "$store"
}

# Of what runs: its labels name a commit, and change with each.
identity() {
  local of=.OCIv1.Config
  buildah inspect --type image --format \
    "{{.OCIv1.RootFS}} {{$of.Env}} {{$of.Entrypoint}} {{$of.Cmd}} {{$of.User}} {{$of.WorkingDir}}" "$1" 2>/dev/null |
    sha256sum | cut -d ' ' -f 1
}

# With a containerd that runs as long as this does, and of which nothing else is to be seen.
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
    buildah push --quiet "$image" "docker-archive:/dev/stdout:$image" |
      ctr --address "$work/containerd.sock" --namespace k8s.io images import --snapshotter "$(snapshotter)" - >"$work/said" 2>&1 ||
      fail "containerd did not take $image: $(tail -n 3 "$work/said")"
    { grep --invert-match --fixed-strings "$image " "$store/images" 2>/dev/null || true; echo "$image $(identity "$image")"; } >"$work/images"
    mv "$work/images" "$store/images"
    say "$image in $((SECONDS - started)) s"
  done
}

end() {
  if [[ -n ${process:-} ]]; then
    kill "$process" 2>/dev/null || true
    wait "$process" || true
  fi
  rm -rf "$work"
}

# As tools/cluster.sh does: an overlay on an overlay is not mounted.
snapshotter() { if [[ $(stat --file-system --format=%T "$store") == overlayfs ]]; then echo native; else echo overlayfs; fi; }

say() { echo "image-store: $*" >&2; }

fail() {
  say "error: $*"
  exit 1
}

main "$@"
