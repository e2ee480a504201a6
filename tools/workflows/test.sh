#!/usr/bin/env bash
# What every change must pass; with SINCE=COMMIT, what the changes since this commit need.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec make test SINCE="${SINCE-}"
