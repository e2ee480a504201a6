#!/usr/bin/env bash
# Builds a wheel of Horovod, whose last release is older than the current frameworks and available only as source.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: images/horovod/build-wheel.sh [--mpi | --no-mpi] [OUTPUT_DIR]

Builds a wheel of Horovod 0.28.1 for the frameworks of $PYTHON (PyTorch, TensorFlow or both), with gloo and, if mpicxx and
mpirun are installed, with MPI. Prints the wheel's path as the only line on stdout. This takes 4 minutes on two cores. A
wheel with MPI cannot be loaded without libmpi.

With OUTPUT_DIR, always builds the wheel and puts it there. Otherwise the wheel is cached in
$ALLRANKS_CACHE/horovod-wheels, and built only if there is none for the same versions, scripts and options.

options:
  --mpi        build with MPI, and fail if it is not installed
  --no-mpi     build without MPI
  --print-key  print the cache key of the wheel, and build nothing

examples:
  PYTHON=.venv/bin/python images/horovod/build-wheel.sh
  pip install --no-deps "$(images/horovod/build-wheel.sh --no-mpi /wheels)"
  HOROVOD_GPU_OPERATIONS=NCCL images/horovod/build-wheel.sh /wheels

environment:
  PYTHON                  an interpreter with the frameworks and requirements.txt, default python3
  HOROVOD_GPU_OPERATIONS  NCCL for a GPU build; the CUDA toolkit is downloaded with pip if there is none
  ALLRANKS_CACHE          default ~/.cache/allranks
  MAKEFLAGS, CXX          as for make and cmake
USAGE
}

main() {
  folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  python=${PYTHON:-python3}
  mpi=auto output='' print_key=false
  parse_arguments "$@"
  find_frameworks
  settle_mpi
  if $print_key; then
    wheel_key
  elif [[ -n $output ]]; then
    build "$output"
  else
    build_into_cache
  fi
}

parse_arguments() {
  local argument
  for argument in "$@"; do
    case $argument in
      -h | --help) usage; exit 0 ;;
      --mpi) mpi=yes ;;
      --no-mpi) mpi=no ;;
      --print-key) print_key=true ;;
      -*) usage >&2; fail "unknown option '$argument'" ;;
      *) [[ -z $output ]] || fail "more than one output directory: '$output' and '$argument'"; output=$argument ;;
    esac
  done
}

# Sets `torch` and `tensorflow` to the versions in $PYTHON, empty for none, `tensorflow_wheel` to the name of TensorFlow's
# package, and `interpreter` to a tag.
find_frameworks() {
  local found
  found=$("$python" - <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version


def find(*names):
    for name in names:
        try:
            return name, version(name)
        except PackageNotFoundError:
            pass
    return "", ""


_, torch = find("torch")
print("cp%d%d" % sys.version_info[:2], torch, *find("tensorflow", "tensorflow-cpu"), sep="|")
PYTHON
  ) || fail "'$python' does not run: set PYTHON to an interpreter with PyTorch or TensorFlow"
  IFS='|' read -r interpreter torch tensorflow_wheel tensorflow <<<"$found"
}

settle_mpi() {
  local there=no
  command -v mpicxx >/dev/null && command -v mpirun >/dev/null && there=yes
  [[ $mpi != yes || $there == yes ]] ||
    fail "--mpi needs mpicxx and mpirun (Debian: apt-get install openmpi-bin libopenmpi-dev)"
  [[ $mpi != auto ]] || mpi=$there
}

# Everything that determines the wheel: the versions in readable form, and a hash of the build scripts.
wheel_key() {
  local recipe
  recipe=$(cat "$folder/build-wheel.sh" "$folder/edit_source.py" "$folder/source.txt" | sha256sum | cut -c 1-12)
  echo "$interpreter-$(uname -m)-torch_${torch:-none}-tensorflow_${tensorflow:-none}-mpi_$mpi-gpu_${HOROVOD_GPU_OPERATIONS:-none}-$recipe"
}

build_into_cache() {
  local cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}/horovod-wheels kept
  kept=$cache/$(wheel_key)
  mkdir -p "$cache"
  exec 8>"$cache/lock"
  flock --nonblock 8 || { say "another call is building, waiting for it"; flock 8; }
  if [[ ! -d $kept ]]; then
    rm -rf "$cache/unfinished"
    build "$cache/unfinished" >/dev/null
    mv --no-target-directory "$cache/unfinished" "$kept"
  fi
  echo "$kept"/*.whl
}

build() {
  local destination=$1 started=$SECONDS wheel
  check_tools
  mkdir -p "$destination"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  say "building against ${torch:+PyTorch $torch }${tensorflow:+TensorFlow $tensorflow }with gloo, MPI: $mpi, GPU: ${HOROVOD_GPU_OPERATIONS:-no}"
  fetch_source
  compile
  wheel=$(basename "$work"/source/dist/*.whl)
  cp "$work/source/dist/$wheel" "$destination/"
  say "built $wheel ($(du -h "$destination/$wheel" | cut -f 1)) in $((SECONDS - started)) s"
  echo "$destination/$wheel"
}

check_tools() {
  [[ -n $torch$tensorflow ]] ||
    fail "$python has neither PyTorch nor TensorFlow: Horovod is compiled against them. Install them first, or set PYTHON"
  "$python" -c 'import cffi, cloudpickle, packaging, psutil, setuptools, yaml' 2>/dev/null ||
    fail "$python does not have all packages for the build: $python -m pip install setuptools -r $folder/requirements.txt"
  [[ -z ${HOROVOD_GPU_OPERATIONS:-} || $tensorflow_wheel != tensorflow-cpu ]] ||
    fail "tensorflow-cpu has no GPU kernels for Horovod to link to: install tensorflow instead, or neither for PyTorch alone"
  command -v make >/dev/null || fail "make is not installed (Debian: apt-get install make)"
  "${CXX:-c++}" -std=c++20 -x c++ -fsyntax-only /dev/null 2>/dev/null ||
    fail "no C++ compiler with C++ 20 support (${CXX:-c++}; Debian: apt-get install g++)"
}

fetch_source() {
  # pip checks the hash in source.txt.
  "$python" -m pip download --disable-pip-version-check --quiet --no-deps --no-binary horovod --require-hashes \
    --requirement "$folder/source.txt" --dest "$work" >&2 || fail "pip could not download Horovod's source, see above"
  mkdir "$work/source"
  tar --extract --file "$work"/horovod-*.tar.gz --directory "$work/source" --strip-components 1
  "$python" "$folder/edit_source.py" "$work/source"
}

compile() {
  local log=$work/build.log
  find_cmake
  if [[ ${HOROVOD_GPU_OPERATIONS:-} == NCCL ]]; then
    find_cuda
    find_nccl
  fi
  export HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MXNET=1
  choose PYTORCH "$torch"
  choose TENSORFLOW "$tensorflow"
  choose MPI "${mpi/no/}"
  export CMAKE_POLICY_VERSION_MINIMUM=3.5 # cmake 4 rejects the minimum version of Horovod's third-party code
  export MAKEFLAGS=${MAKEFLAGS:--j$(parallel_compilers)}
  if ! (cd "$work/source" && "$python" setup.py bdist_wheel 2>&1) | tee "$log" | show_progress; then
    log=$(mktemp --tmpdir horovod-build-XXXXXX.log)
    cp "$work/build.log" "$log"
    grep --max-count 10 ' error: \|undefined reference\|multiple definition\|CMake Error\|Killed' "$log" >&2 || tail -n 20 "$log" >&2
    fail "the build failed, see above; the full log is in $log"
  fi
}

# choose FEATURE VALUE: enables and requires the feature, or disables it if the value is empty; no auto-detection by setup.py.
choose() {
  if [[ -n $2 ]]; then export "HOROVOD_WITH_$1=1"; else export "HOROVOD_WITHOUT_$1=1"; fi
}

find_cmake() {
  export HOROVOD_CMAKE
  HOROVOD_CMAKE=$(command -v cmake) && return
  say "cmake is not installed, downloading it with pip"
  "$python" -m pip install --disable-pip-version-check --quiet --target "$work/cmake" cmake==4.4.4 >&2 ||
    fail "pip could not fetch cmake, see above (Debian: apt-get install cmake)"
  export PYTHONPATH=$work/cmake${PYTHONPATH:+:$PYTHONPATH}
  HOROVOD_CMAKE=$work/cmake/bin/cmake
}

find_cuda() {
  if [[ -z ${HOROVOD_CUDA_HOME:-} ]] && ! command -v nvcc >/dev/null; then
    say "the CUDA toolkit is not installed, downloading it with pip"
    "$python" -m pip install --disable-pip-version-check --quiet --target "$work/cuda" "cuda-toolkit[nvcc,cccl]==13.2.2" >&2 ||
      fail "pip could not fetch the CUDA toolkit, see above; or set HOROVOD_CUDA_HOME to the folder of one"
    export HOROVOD_CUDA_HOME=$work/cuda/nvidia/cu13
    ln -s libcudart.so.13 "$HOROVOD_CUDA_HOME/lib/libcudart.so" # cmake and linkers search for this name
  fi
  [[ -z ${HOROVOD_CUDA_HOME:-} ]] || export CUDA_HOME=$HOROVOD_CUDA_HOME # read by PyTorch
}

# Uses the NCCL that the framework's wheel requires; without it, cmake searches the system's folders.
find_nccl() {
  local nccl
  [[ -z ${HOROVOD_NCCL_HOME:-} ]] || return 0
  nccl=$("$python" -c 'from importlib.util import find_spec; print(find_spec("nvidia.nccl").submodule_search_locations[0])' \
    2>/dev/null) || return 0
  export HOROVOD_NCCL_HOME=$work/nccl HOROVOD_NCCL_LINK=SHARED
  mkdir -p "$work/nccl/lib"
  ln -s "$nccl/include" "$work/nccl/include"
  ln -s "$nccl/lib/libnccl.so.2" "$work/nccl/lib/libnccl.so"
}

# A compiler needs up to 2 GB for PyTorch's headers.
parallel_compilers() {
  local by_memory cores
  by_memory=$(awk '/MemAvailable/ { print int($2 / 1024 / 1024 / 2) }' /proc/meminfo)
  cores=$(nproc)
  echo $((by_memory < 1 ? 1 : by_memory < cores ? by_memory : cores))
}

# Prints make's percentages in steps of ten.
show_progress() {
  local line next=10
  while IFS= read -r line; do
    if [[ $line =~ ^\[\ *([0-9]+)%\] ]] && ((BASH_REMATCH[1] >= next)); then
      say "${BASH_REMATCH[1]}% compiled after $SECONDS s"
      next=$((BASH_REMATCH[1] / 10 * 10 + 10))
    fi
  done
}

say() { echo "horovod: $*" >&2; }

fail() {
  echo "horovod: error: $*" >&2
  exit 1
}

main "$@"
