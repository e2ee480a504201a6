#!/usr/bin/env bash
# Creates one virtual environment with the frameworks, for tests and for jobs on one machine without containers. The images
# install the same files (images/*/requirements.txt), so the versions are the same.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/frameworks.sh [pytorch] [tensorflow] [horovod] [jax] [ray] [mpi] [libraries]

Installs the given frameworks (default: all) into the virtual environment
$ALLRANKS_CACHE/frameworks-py<version>, and prints its path as the only line on stdout. Installed frameworks are not
changed: a second call takes a fraction of a second. Horovod is compiled (4 minutes) against the other two, which are
installed as well. `libraries`, which "all" does not include, are Lightning and those of Hugging Face, with PyTorch.

examples:
  tools/frameworks.sh pytorch
  "$(tools/frameworks.sh pytorch tensorflow)/bin/python" my_training.py
  PYTHON=python3.12 ALLRANKS_CACHE=/big/disk tools/frameworks.sh

environment:
  ALLRANKS_CACHE  folder of environments and wheels, default ~/.cache/allranks
  PYTHON          the interpreter for the environment, 3.11 or newer, default python3
  PIP_*, UV_*     the settings of pip and uv apply, PIP_EXTRA_INDEX_URL for example
USAGE
}

all=(pytorch tensorflow horovod jax ray mpi) # those of allranks.frameworks.FRAMEWORKS with an image

main() {
  local wanted=()
  parse_arguments "$@"
  repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  python=${PYTHON:-python3}
  cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
  venv=$cache/frameworks-py$(python_version)
  stamps=$venv/.allranks
  unfinished=$stamps/unfinished

  if ! all_installed; then
    mkdir -p "$cache"
    exec 9>"$venv.lock"
    flock --nonblock 9 || { say "another call is installing, waiting for it"; flock 9; }
    all_installed || install_missing # the other call may have installed them
  fi
  echo "$venv"
}

parse_arguments() {
  local argument
  for argument in "$@"; do
    case $argument in
      -h | --help) usage; exit 0 ;;
      pytorch | tensorflow | jax | ray | mpi) wanted+=("$argument") ;;
      horovod) wanted+=(pytorch tensorflow horovod) ;; # it is built against the other two
      libraries) wanted+=(pytorch libraries) ;;
      *) usage >&2; fail "unknown argument '$argument'" ;;
    esac
  done
  ((${#wanted[@]})) || wanted=("${all[@]}")
}

python_version() {
  command -v "$python" >/dev/null || fail "'$python' is not installed: install Python 3.11 or newer, or set PYTHON"
  "$python" -c 'import sys; print("%d%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: Python 3.11 or newer is needed. Set PYTHON, for example PYTHON=python3.12"
}

all_installed() {
  [[ -x $venv/bin/python && ! -e $unfinished ]] || return 1
  local framework
  for framework in "${wanted[@]}"; do
    is_installed "$framework" || return 1
  done
}

# The stamp is a hash of everything that determines the installation, so that a changed pin or build script reinstalls.
is_installed() {
  [[ $(cat "$stamps/$1" 2>/dev/null) == "$(fingerprint "$1")" ]]
}

fingerprint() {
  case $1 in
    horovod)
      cat "$repository/images/horovod/requirements.txt"
      PYTHON=$venv/bin/python "$repository/images/horovod/build-wheel.sh" --print-key
      ;;
    *) cat "$repository/images/$1"/requirements*.txt ;;
  esac | sha256sum | cut -d ' ' -f 1
}

install_missing() {
  local framework started intended
  # uv writes files in place, and a package left behind by a killed uv looks installed to the next one.
  if [[ -e $unfinished ]]; then
    say "an earlier installation of $(cat "$unfinished") was interrupted: starting with a new environment"
    rm -rf "$venv"
  fi
  [[ -x $venv/bin/python ]] || make_environment
  for framework in "${wanted[@]}"; do
    is_installed "$framework" && continue
    started=$SECONDS
    say "installing $framework into $venv"
    intended=$(fingerprint "$framework") # MPI may be installed while Horovod is compiled without it
    "install_$framework"
    say "$framework took $((SECONDS - started)) s; the environment now has $(du -sh "$venv" | cut -f 1)"
  done
}

make_environment() {
  rm -rf "$venv"
  mkdir -p "$stamps"
  echo "the environment itself" >"$unfinished"
  "$python" -m venv "$venv" >&2 ||
    fail "$python could not create a virtual environment, see above (Debian: apt-get install python3-venv)"
  rm "$unfinished"
}

install_pytorch() {
  check_disk 10
  pip_install_requirements pytorch
  verify pytorch torch
}

install_tensorflow() {
  check_disk 4
  pip_install_requirements tensorflow
  verify tensorflow tensorflow tf_keras
}

install_jax() {
  check_disk 2
  pip_install_requirements jax
  verify jax jax optax
}

install_ray() {
  check_disk 2
  pip_install_requirements ray
  verify ray ray.train.torch
}

install_libraries() {
  check_disk 2
  pip_install_requirements libraries
  verify libraries lightning transformers accelerate peft trl
}

install_mpi() {
  check_disk 1
  command -v mpirun >/dev/null || say "MPI is not installed: mpi4py will find none (tools/system-packages.sh installs MPI)"
  pip_install_requirements mpi
  verify mpi mpi4py # mpi4py.MPI needs the system's libmpi
}

install_horovod() {
  check_disk 2
  local wheel
  command -v mpirun >/dev/null || say "MPI is not installed: Horovod will support only gloo (tools/system-packages.sh installs MPI)"
  pip_install_requirements horovod
  wheel=$(PYTHON=$venv/bin/python ALLRANKS_CACHE=$cache "$repository/images/horovod/build-wheel.sh")
  pip_install horovod --no-deps --reinstall "$wheel"
  verify horovod horovod.torch horovod.tensorflow
}

pip_install_requirements() {
  local framework=$1 folder=$repository/images/$1 other
  for other in "${all[@]}"; do # a framework must not change the versions of another one
    cat "$repository/images/$other/requirements.txt"
  done | sed 's/^\([a-zA-Z0-9_-]*\)\[[^]]*\]/\1/' >"$stamps/constraints" # constraints must not have extras
  pip_install "$framework" --requirement "$folder/requirements.txt" --constraint "$stamps/constraints"
  [[ ! -e $folder/requirements-no-deps.txt ]] ||
    pip_install "$framework" --no-deps --requirement "$folder/requirements-no-deps.txt"
}

pip_install() {
  echo "$1" >"$unfinished"
  # Downloads go to the disk that was checked for space; /tmp may be a small tmpfs.
  mkdir -p "$stamps/tmp"
  TMPDIR=$stamps/tmp "$repository/tools/uv.sh" "$venv" --no-cache "${@:2}" >&2 ||
    fail "uv could not install $1 into $venv, see above; run the same command to retry"
  rm -r "$unfinished" "$stamps/tmp"
}

# verify FRAMEWORK MODULE...: checks that the modules can be imported, which also compiles them to bytecode, and writes the
# stamp.
verify() {
  local module output
  for module in "${@:2}"; do
    output=$(env --unset=PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c "import $module" 2>&1) || {
      echo "$output" >&2
      fail "$1 is installed in $venv, but $module does not import, see above"
    }
  done
  echo "$intended" >"$stamps/$1"
}

# check_disk GB: checks the space for packages and downloads.
check_disk() {
  local needed=$1 free
  free=$(($(df --output=avail -k "$cache" | tail -n 1) / 1024 / 1024))
  ((free >= needed)) ||
    fail "$cache has $free GB free, but $needed GB are needed: free some, or set ALLRANKS_CACHE to a folder on a larger disk"
}

say() { echo "frameworks: $*" >&2; }

fail() {
  echo "frameworks: error: $*" >&2
  exit 1
}

main "$@"
