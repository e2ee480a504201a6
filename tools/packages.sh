#!/usr/bin/env bash
# Installs the packages of a list of tools/packages, for tests: tools/packages.sh trackers|airflow|prefect|installers
# Prints the path of their virtual environment as the only line on stdout. A second call takes a fraction of a second.
set -euo pipefail
cd "$(dirname "$0")/.."
list=tools/packages/$1.txt python=${PYTHON:-python3}
cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
venv=$cache/$1-py$version-$(sha256sum "$list" | cut -c 1-16)

if [[ ! -e $venv/.installed ]]; then
  mkdir -p "$cache"
  exec 9>"$cache/$1.lock"
  flock 9
  if [[ ! -e $venv/.installed ]]; then
    echo "installing $1 into $venv" >&2
    rm -rf "$venv"
    "$python" -m venv "$venv"
    tools/uv.sh "$venv" --requirements "$list" >&2
    touch "$venv/.installed"
  fi
fi
echo "$venv"
