#!/usr/bin/env bash
# Runs the tests that failed in the last run again, and writes which of them are flaky: on the page of the workflow as well.
set -euo pipefail
cd "$(dirname "$0")/../.."
.venv/bin/python -E tools/flakes.py ${PART:+"$PART"} | tee --append "${GITHUB_STEP_SUMMARY:-/dev/null}"
