#!/usr/bin/env bash
# Builds the files of a release for the architecture of this machine. BASE: the base of the images, with its digest.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec make dist ARGS="--images operator ui data archiver pytorch tensorflow horovod jax ray mpi --bundle 3.11 3.12 3.13 ${BASE:+--base $BASE}"
