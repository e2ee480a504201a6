#!/usr/bin/env bash
# Installs openapi-python-client into an environment of its own, whose versions exclude those of the operator's image, and
# prints the folder of its programs. A second call takes a fraction of a second.
set -euo pipefail
version=0.29.1
cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
venv=$cache/openapi-client-$version
mkdir -p "$cache"
exec 9>"$cache/openapi-client.lock"
flock 9
if [[ ! -e $venv/.installed ]]; then
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv" >&2
  "$(dirname "$0")/uv.sh" "$venv" "openapi-python-client==$version" >&2
  touch "$venv/.installed"
fi
echo "$venv/bin"
