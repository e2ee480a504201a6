#!/usr/bin/env bash
# Installs Azurite, Microsoft's server for tests with Azure's storage, by npm, and prints the folder of its programs. A
# second call takes a fraction of a second.
set -euo pipefail
version=3.35.0 # newer ones need Node 22
cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
target=$cache/azurite-$version
mkdir -p "$cache"
exec 9>"$cache/azurite.lock"
flock 9
if [[ ! -e $target ]]; then
  command -v npm >/dev/null || { echo "npm is not installed: install Node.js 20 or newer (Debian: apt-get install npm)" >&2; exit 1; }
  rm -rf "$target.unfinished"
  mkdir "$target.unfinished"
  npm install --silent --no-audit --no-fund --prefix "$target.unfinished" "azurite@$version" >&2
  mv "$target.unfinished" "$target"
fi
echo "$target/node_modules/.bin"
