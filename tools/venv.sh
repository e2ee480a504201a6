#!/usr/bin/env bash
# Creates a virtual environment with allranks (editable) and one of its extras: tools/venv.sh DIRECTORY [PYTHON [EXTRA]]
# The default extra, dev, holds what the tests need but no framework: tools/frameworks.sh installs those.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 python=${2:-python3} extra=${3:-dev}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { echo "allranks needs Python 3.11 or newer; $python is $("$python" --version). Try: make PYTHON=python3.12" >&2; exit 1; }

echo "setting up $venv" >&2
start=$SECONDS
"$python" -m venv "$venv"
# The versions of the operator's image, so that the tests test what the image holds. With its hashes pip would ask for
# the hash of every package.
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
sed -n 's/^\([^ #]*==[^\\]*\).*/\1/p' images/operator/requirements.txt >"$pins"
tools/uv.sh "$venv" --constraint "$pins" --editable ".[$extra]"
touch "$venv/.installed"
echo "setting up $venv: done in $((SECONDS - start)) s" >&2
