#!/usr/bin/env bash
# Adds the documentation of this commit to the branch gh-pages of this clone, as the version "dev", or on a tag vX.Y.Z as
# the version X.Y, which is then the latest; --push: also of the origin. `build/docs-venv/bin/mike serve` shows them.
set -euo pipefail
cd "$(dirname "$0")/../.."
push=()
[[ ${1-} != --push ]] || push=(--push)
make --no-print-directory docs
export NO_MKDOCS_2_WARNING=1
export PATH=$PWD/build/docs-venv/bin:$PATH
name="allranks" email=docs@allranks.dev
export GIT_AUTHOR_NAME=$name GIT_COMMITTER_NAME=$name GIT_AUTHOR_EMAIL=$email GIT_COMMITTER_EMAIL=$email
! git remote get-url origin >/dev/null 2>&1 || git fetch --quiet --depth 1 origin gh-pages:gh-pages 2>/dev/null || true
if [[ $(git tag --points-at HEAD) =~ ^v([0-9]+\.[0-9]+)\. ]]; then
  mike --quiet deploy "${push[@]}" --update-aliases "${BASH_REMATCH[1]}" latest
  mike --quiet set-default "${push[@]}" latest
else
  mike --quiet deploy "${push[@]}" dev
fi
