#!/usr/bin/env bash
# Builds the programs of `tools/go-tools.sh controlplane [VERSION]`, and prints their folder.
exec "$(dirname "$0")/go-tools.sh" controlplane "$@"
