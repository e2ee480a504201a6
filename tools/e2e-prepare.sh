#!/usr/bin/env bash
# Builds what the end-to-end tests need, unless it exists: the programs of a node, of Argo, Kueue and coscheduling, the
# images, and the image store of the nodes. Half an hour the first time, seconds afterwards.
set -euo pipefail
cd "$(dirname "$0")"
kubernetes=${KUBERNETES_VERSION:-1.36} # as in cluster.sh
./system-packages.sh horovod node images shutdown
# In parallel: image builds wait for downloads, Go for the CPU.
{
  ./controlplane.sh "$kubernetes" && ./helm.sh && ./go-tools.sh node "$kubernetes" &&
    for name in addons argo kueue coscheduling; do ./go-tools.sh "$name" || exit; done
} &
programs=$!
# Always with buildah and a Debian base, so that all machines test the same. Each image is unpacked while the next one is
# built. Compiling Horovod takes minutes: its image uses the wheel that the tests with frameworks need as well.
failed=0
{
  ./frameworks.sh horovod >/dev/null &&
    ./images.sh --engine buildah --test-base --tag e2e --build-arg TEST_ONLY_STUB_CUDA=1 &&
    ../tests/e2e/layouts/build.sh
} |
  while read -r image; do ./image-store.sh "$image" </dev/null >/dev/null || exit; done || failed=1
wait "$programs" || failed=1
exit "$failed"
