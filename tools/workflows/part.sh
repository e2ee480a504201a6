#!/usr/bin/env bash
# One part of `make test-all`: PART=unit-all tools/workflows/part.sh. A part that runs containers needs root, or sudo.
set -euo pipefail
cd "$(dirname "$0")/../.."
part=${PART:?name a part of tools/test.py --list}
make --no-print-directory .venv/.installed
command=(.venv/bin/python -E tools/test.py "$part")
if [[ $EUID != 0 ]] && .venv/bin/python -E tools/test.py --needs-root "$part"; then
  command=(sudo --preserve-env env "PATH=$PATH" "${command[@]}")
fi
exec "${command[@]}"
