#!/usr/bin/env bash
# Builds the images of tests/e2e/test_layouts.py above the test base with buildah, and prints their names, one per line.
# usage: tests/e2e/layouts/build.sh [PREFIX:TAG]; default ghcr.io/allranks:e2e
set -euo pipefail
cd "$(dirname "$0")"
images=${1:-ghcr.io/allranks:e2e}
base=$(../../../tools/images.sh --engine buildah --test-base base)
for layout in root user conda venv noshell; do
  name=${images%:*}/layout-$layout:${images##*:}
  buildah bud --layers --force-rm --isolation chroot --pull-never --quiet --build-arg "BASE_IMAGE=$base" \
    --target "$layout" --tag "$name" . >&2
  echo "$name"
done
