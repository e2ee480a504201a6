#!/usr/bin/env bash
# Copies uPlot, which draws the curves of the web UI, into operator/allranks/ui/static, with its licence. For a new
# version, change the version and the hash here, and the name in operator/allranks/ui/app.py.
set -euo pipefail
version=1.6.32
sha256=4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d
command -v npm >/dev/null || { echo "npm is not installed: install Node.js 20 or newer (Debian: apt-get install npm)" >&2; exit 1; }
target=$(cd "$(dirname "$0")/.." && pwd)/operator/allranks/ui/static
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm pack --silent --pack-destination "$folder" "uplot@$version" >&2
echo "$sha256  $folder/uplot-$version.tgz" | sha256sum --check --quiet
tar -xzf "$folder/uplot-$version.tgz" -C "$folder"
rm -f "$target"/uplot-*
cp "$folder/package/dist/uPlot.iife.min.js" "$target/uplot-$version.min.js"
cp "$folder/package/dist/uPlot.min.css" "$target/uplot-$version.min.css"
cp "$folder/package/LICENSE" "$target/uplot-LICENSE.txt"
