#!/usr/bin/env bash
# Builds what tests with real pods need and what is not there yet: programs of a node and of Argo, images, and the store
# that nodes take these from. Half an hour the first time, seconds afterwards.
set -euo pipefail
cd "$(dirname "$0")"
./system-packages.sh node images
# Beside one another: images wait for downloads, Go for the processor.
{ ./controlplane.sh && ./helm.sh && ./go-tools.sh node && ./go-tools.sh argo; } &
programs=$!
# As the tests do: with buildah and a base of Debian's, whatever else there is, so that all machines test the same. Each
# image is unpacked while the next one is built: Horovod's is compiled for minutes.
failed=0
./images.sh --engine buildah --test-base --tag e2e --build-arg TEST_ONLY_STUB_CUDA=1 |
  while read -r image; do ./image-store.sh "$image" </dev/null >/dev/null || exit; done || failed=1
wait "$programs" || failed=1
exit "$failed"
