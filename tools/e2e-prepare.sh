#!/usr/bin/env bash
# Builds what tests with real pods need and what is not there yet: programs of a node and of Argo, images. Half an hour the
# first time, seconds afterwards.
set -euo pipefail
cd "$(dirname "$0")"
./system-packages.sh node images
./controlplane.sh
./helm.sh
./go-tools.sh node
./go-tools.sh argo
# As the tests do: with buildah and a base of Debian's, whatever else there is, so that all machines test the same.
./images.sh --engine buildah --test-base --tag e2e --build-arg TEST_ONLY_STUB_CUDA=1
