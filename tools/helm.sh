#!/usr/bin/env bash
# Builds what `tools/go-tools.sh --help` says, and prints where it is.
exec "$(dirname "$0")/go-tools.sh" helm "$@"
