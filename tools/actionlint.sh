#!/usr/bin/env bash
# Checks the workflows of GitHub Actions.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "$(tools/go-tools.sh actionlint)/actionlint" -shellcheck= -pyflakes=
