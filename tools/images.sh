#!/usr/bin/env bash
# Builds the images with docker, podman or buildah; docs/platform/images.md describes their contents.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/images.sh [options] [operator] [ui] [data] [archiver] [pytorch] [tensorflow] [horovod] [jax] [ray] [mpi]
                       [libraries] [base]
       tools/images.sh tools

Builds the given images (default: all but libraries) with docker, podman or buildah, the first one that is installed, and
prints their names on stdout, one per line. Durations and sizes go to stderr. A second call takes seconds: layers are
cached. `libraries` is PyTorch with Lightning and the libraries of Hugging Face.

If the base image cannot be pulled, a test base replaces it (Debian's Python 3.11, created by debootstrap, as root), which
is for tests only. `base` builds only that. `tools` installs missing tools for building and running (Debian, as root):
buildah, debootstrap and runc.

options:
  --base IMAGE            base image, default python:3.12-slim-bookworm; an image given here is never replaced
  --test-base             use the test base without trying to pull
  --build-arg NAME=VALUE  as for docker build; can be repeated
  --push-tar DIR          also write each image to DIR/NAME.tar (docker-archive), for `docker load`,
                          `ctr images import`, `kind load image-archive`
  --into COMMAND          pipe each image to this command, as such an archive
  --tag TAG               default: allranks' version; `test-only` with a build argument for tests
  --prefix PREFIX         default: ghcr.io/allranks
  --engine ENGINE         docker, podman or buildah

examples:
  tools/images.sh operator
  tools/images.sh --prefix registry.example.com/me --tag dev pytorch
  tools/images.sh --build-arg TENSORFLOW_VARIANT=cuda tensorflow
  tools/images.sh --build-arg HOROVOD_NCCL=pytorch horovod
  tools/images.sh tools && tools/images.sh --test-base --push-tar /tmp/images operator pytorch
  tools/images.sh --into 'tools/cluster.sh load --on node-1 -' operator

environment:
  ALLRANKS_CACHE  folder of the test base and wheels, default ~/.cache/allranks
USAGE
}

default_base=python:3.12-slim-bookworm
test_base=localhost/allranks/test-base:bookworm-1 # increment when `debootstrap_into` changes
all=(operator ui data archiver pytorch tensorflow horovod jax ray mpi) # our own, and allranks.frameworks.FRAMEWORKS with an image

main() {
  local wanted=() base='' without_pull=false arguments=() tar_folder='' into='' tag='' version prefix=ghcr.io/allranks engine='' image
  cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
  parse_arguments "$@"
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  if [[ ${wanted[0]} == tools ]]; then
    install_tools
    return
  fi
  version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/allranks/version.py)
  [[ "${arguments[*]-}" != *TEST_ONLY_* ]] || tag=${tag:-test-only}
  tag=${tag:-$version}
  find_engine
  mkdir -p "$cache/images"
  # Concurrent calls would build the same layers twice.
  exec 9>"$cache/images/lock"
  flock --nonblock 9 || { say "another call is building, waiting for it"; flock 9; }
  settle_base
  for image in "${wanted[@]}"; do
    build "$image"
  done
}

parse_arguments() {
  while (($#)); do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --test-base) without_pull=true ;;
      --base | --build-arg | --push-tar | --into | --tag | --prefix | --engine)
        (($# > 1)) || { usage >&2; fail "$1 needs a value"; }
        case $1 in
          --base) base=$2 ;;
          --build-arg) arguments+=(--build-arg "$2") ;;
          --push-tar) tar_folder=$(realpath --canonicalize-missing "$2") ;;
          --into) into=$2 ;;
          --tag) tag=$2 ;;
          --prefix) prefix=${2%/} ;;
          --engine) engine=$2 ;;
        esac
        shift
        ;;
      *)
        [[ " ${all[*]} libraries base tools " == *" $1 "* ]] || { usage >&2; fail "unknown argument '$1'"; }
        wanted+=("$1")
        ;;
    esac
    shift
  done
  ((${#wanted[@]})) || wanted=("${all[@]}")
}

install_tools() {
  local missing=() tool
  for tool in buildah debootstrap runc; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  ((${#missing[@]})) || return 0
  { [[ $EUID == 0 ]] && command -v apt-get >/dev/null; } ||
    fail "missing: ${missing[*]}. On Debian, run this as root to install them; elsewhere use the system's package manager"
  say "installing ${missing[*]}"
  apt-get -o DPkg::Lock::Timeout=300 --quiet=2 update >&2 || say "could not update the package lists"
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 --quiet=2 install --yes \
    --no-install-recommends "${missing[@]}" >"$(log_file tools)" 2>&1 ||
    { tail -n 20 "$(log_file tools)" >&2; fail "apt-get could not install ${missing[*]}, see above"; }
}

find_engine() {
  local candidate
  for candidate in ${engine:-docker podman buildah}; do
    # The docker client does not work without its daemon.
    if timeout 120 "$candidate" info >/dev/null 2>&1; then
      engine=$candidate
      return
    fi
  done
  fail "${engine:-none of docker, podman and buildah} does not work here. Start Docker, or on Debian: tools/images.sh tools"
}

# Sets `base` to an image that exists or can be pulled or built.
settle_base() {
  if ! $without_pull && [[ ${wanted[*]} != base ]]; then
    [[ -z $base ]] || return 0
    if have "$default_base" || timeout --foreground 300 "$engine" pull "$default_base" >"$(log_file pull)" 2>&1; then
      base=$default_base
      return
    fi
    say "$default_base cannot be pulled ($(tail -n 1 "$(log_file pull)"))"
    say "using the test base instead: Debian's Python 3.11, for tests only"
  fi
  make_test_base
}

have() {
  case $engine in
    buildah) buildah inspect --type image "$1" ;;
    *) "$engine" image inspect "$1" ;;
  esac >/dev/null 2>&1
}

make_test_base() {
  local started=$SECONDS archive context
  archive=$cache/images/test-base-${test_base##*:}-$(uname -m).tar
  base=$test_base
  [[ -e $archive ]] || debootstrap_into "$archive"
  have "$base" && return
  context=$(mktemp -d -p "$cache/images")
  ln "$archive" "$context/root.tar"
  printf 'FROM scratch\nADD root.tar /\nENV LANG=C.UTF-8\nCMD ["python3"]\n' >"$context/Dockerfile"
  run_build base --tag "$base" --file "$context/Dockerfile" "$context"
  rm -r "$context"
  say "test base: $(size_of "$base") in $((SECONDS - started)) s"
}

debootstrap_into() {
  local archive=$1 root
  command -v debootstrap >/dev/null || fail "the test base requires debootstrap (Debian: tools/images.sh tools)"
  [[ $EUID == 0 ]] || fail "only root can build the test base: use another base with --base"
  root=$(mktemp -d -p "$cache/images")
  say "building the test base"
  timeout --foreground 900 debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv,python-is-python3 \
    bookworm "$root" >"$(log_file base)" 2>&1 ||
    { tail -n 5 "$(log_file base)" >&2; rm -rf "$root"; fail "debootstrap failed, see above"; }
  # As in Docker's own Debian images: packages do not start their services.
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  rm -rf "${root:?}"/{var/lib/apt/lists,var/cache/apt,var/log,dev}/*
  tar --create --file "$archive.unfinished" --directory "$root" --numeric-owner --one-file-system .
  rm -rf "$root"
  mv "$archive.unfinished" "$archive"
}

build() {
  local image=$1 started=$SECONDS name=$prefix/$1:$tag own=()
  if [[ $image == base ]]; then
    echo "$base"
    return
  fi
  if [[ $image == horovod ]]; then
    own=(--build-arg WHEEL=built --build-arg HOROVOD_NCCL=none) # also if it is the default: buildah would not find the stage
    give_wheel && own+=(--build-arg WHEEL=given)
  fi
  own+=(--tag "$name")
  run_build "$image" --file "images/$image/Dockerfile" \
    --build-arg "BASE_IMAGE=$base" --build-arg "VERSION=$version" \
    --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
    --build-arg "CREATED=$(git log -1 --format=%cI 2>/dev/null || echo unknown)" \
    "${own[@]}" ${arguments[@]+"${arguments[@]}"} .
  rm -f images/horovod/wheels/*.whl
  say "$image: $(size_of "$name") in $((SECONDS - started)) s, above a base of $(size_of "$base")"
  [[ -z $tar_folder ]] || push_tar "$image" "$name"
  [[ -z $into ]] || push_into "$image" "$name"
  echo "$name"
}

# Copies a wheel to the folder that the Dockerfile uses, if tools/frameworks.sh has built one for this base. Its folder has
# the name that build-wheel.sh --print-key would print in the image.
give_wheel() {
  local recipe key wheel
  [[ "${arguments[*]-}" != *HOROVOD_NCCL=* && "${arguments[*]-}" != *WHEEL=* ]] || return
  recipe=$(cat images/horovod/{build-wheel.sh,edit_source.py,source.txt} | sha256sum | cut -c 1-12)
  key=$(python_tag)-$(uname -m)-torch_$(pin torch pytorch)-tensorflow_$(pin tensorflow-cpu tensorflow)-mpi_yes-gpu_none-$recipe
  for wheel in "$cache/horovod-wheels/$key"/*.whl; do
    [[ -e $wheel ]] || return 1
    say "horovod: using the cached wheel, $key"
    cp --preserve=timestamps "$wheel" images/horovod/wheels/
  done
}

pin() { # PACKAGE IMAGE
  sed -n "s/^$1==\([^ ]*\).*/\1/p" "images/$2/requirements.txt"
}

python_tag() {
  local program='import sys; print("cp%d%d" % sys.version_info[:2])' container
  case $engine in
    buildah)
      container=$(buildah from --pull-never "$base")
      buildah run --isolation chroot "$container" -- python3 -c "$program"
      buildah rm "$container" >/dev/null
      ;;
    *) "$engine" run --rm "$base" python3 -c "$program" ;;
  esac
}

# run_build TITLE ARGUMENT...: runs the engine's build, with its output in a log file.
run_build() {
  local log command=("$engine" build)
  log=$(log_file "$1")
  # Behind a proxy with its own certificates, builds must trust the certificates of this machine.
  local trust=()
  [[ ! -e /etc/ssl/certs/ca-certificates.crt ]] || trust=(--volume /etc/ssl/certs:/etc/ssl/certs:ro)
  case $engine in
    podman) command+=(--layers ${trust[@]+"${trust[@]}"}) ;;
    buildah) command=(buildah bud --layers --force-rm --isolation chroot --network host ${trust[@]+"${trust[@]}"}) ;;
  esac
  "${command[@]}" "${@:2}" >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    rm -f images/horovod/wheels/*.whl
    fail "$1: the build failed, see above; the full log is in $log"
  }
}

size_of() {
  case $engine in
    buildah) buildah images --format '{{.Size}}' "$1" | head -n 1 ;;
    *) "$engine" image inspect --format '{{.Size}}' "$1" | numfmt --to si --suffix B ;;
  esac
}

push_tar() {
  local image=$1 name=$2 started=$SECONDS file=$tar_folder/$1.tar id
  mkdir -p "$tar_folder"
  id=$(case $engine in buildah) buildah images --quiet --no-trunc "$name" ;; *) "$engine" image inspect --format '{{.Id}}' "$name" ;; esac | head -n 1)
  if [[ -e $file && $(cat "$file.id" 2>/dev/null) == "$name $id" ]]; then
    say "$image: $file is up to date"
    return
  fi
  rm -f "$file" "$file.id" "$file.unfinished"
  case $engine in
    docker) docker save --output "$file.unfinished" "$name" ;;
    podman) podman save --quiet --format docker-archive --output "$file.unfinished" "$name" ;;
    buildah) buildah push --quiet "$name" "docker-archive:$file.unfinished:$name" ;;
  esac >&2
  mv "$file.unfinished" "$file"
  echo "$name $id" >"$file.id"
  say "$image: $file, $(du -h "$file" | cut -f 1), in $((SECONDS - started)) s"
}

push_into() {
  local image=$1 name=$2 started=$SECONDS
  case $engine in
    buildah) buildah push --quiet "$name" "docker-archive:/dev/stdout:$name" ;;
    *) "$engine" save "$name" ;;
  esac | bash -c "$into" >&2 || fail "$image: '$into' failed, see above"
  say "$image: piped in $((SECONDS - started)) s"
}

log_file() {
  mkdir -p "$cache/images"
  echo "$cache/images/$1.log"
}

say() { echo "images: $*" >&2; }

fail() {
  echo "images: error: $*" >&2
  exit 1
}

main "$@"
