#!/usr/bin/env bash
# `make demo`: examples/penguins-pytorch.yaml with 3 workers, real PyTorch ranks on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

frameworks=$(tools/frameworks.sh pytorch)
PATH="$frameworks/bin:$PATH" .venv/bin/allranks run examples/penguins-pytorch.yaml "$@"
cat <<'NEXT'
This was `allranks run examples/penguins-pytorch.yaml`. To use allranks from here:
  export PATH="$PWD/.venv/bin:$PATH"
The page of this run, with its curves, ranks and logs:
  allranks ui --path /runs/penguins-pytorch
NEXT
