#!/usr/bin/env bash
# Builds what tests with real pods need and what is not there yet: programs of a node and of Argo, images. A quarter of an
# hour the first time, seconds afterwards. `tools/e2e-prepare.sh operator pytorch`: only these images, and what the tests
# that need no others need.
set -euo pipefail
cd "$(dirname "$0")"
./system-packages.sh node images
# Beside one another: images wait for downloads, Go for the processor.
{ ./controlplane.sh && ./helm.sh && ./go-tools.sh node && { (($#)) || { ./go-tools.sh argo && ./go-tools.sh untt; }; }; } &
programs=$!
# As the tests do: with buildah and a base of Debian's, whatever else there is, so that all machines test the same.
failed=0
./images.sh --engine buildah --test-base --tag e2e --build-arg TEST_ONLY_STUB_CUDA=1 "$@" || failed=1
wait "$programs" || failed=1
exit "$failed"
