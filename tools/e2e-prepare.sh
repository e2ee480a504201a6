#!/usr/bin/env bash
# Builds what tests with real pods need and what is not there yet: programs of a node and of Argo, images, and the store
# that nodes take these from. Twenty minutes the first time, seconds afterwards.
set -euo pipefail
cd "$(dirname "$0")"
./system-packages.sh node images
# Beside one another: images wait for downloads, Go for the processor.
{ ./controlplane.sh && ./helm.sh && ./go-tools.sh node && ./go-tools.sh argo && ./go-tools.sh untt; } &
programs=$!
# As the tests do: with buildah and a base of Debian's, whatever else there is, so that all machines test the same.
failed=0
images=$(./images.sh --engine buildah --test-base --tag e2e --build-arg TEST_ONLY_STUB_CUDA=1) &&
  ./image-store.sh $images || failed=1
wait "$programs" || failed=1
exit "$failed"
