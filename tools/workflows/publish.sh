#!/usr/bin/env bash
# Publishes and signs what tools/workflows/files.sh has built, in dist/files-ARCHITECTURE: images and chart to a registry,
# files and notes as a release of GitHub, the Python package to the package index.
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 tools/publish.py --registry ghcr.io/allranks --login dist/files-*
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/allranks/version.py)
python3 tools/release_notes.py >dist/notes.md
gh release create "v$version" --verify-tag --title "allranks $version" --notes-file dist/notes.md dist/files-amd64/*
python3 -m venv build/upload
build/upload/bin/pip install --quiet --require-hashes --only-binary :all: --requirement tools/dist/upload-requirements.txt
exec build/upload/bin/uv publish --trusted-publishing always "dist/files-amd64/allranks-$version"{-py3-none-any.whl,.tar.gz}
