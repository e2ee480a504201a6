#!/usr/bin/env bash
# Builds Helm and prints its folder: `tools/helm.sh` for Helm 4, `tools/helm.sh 3` for Helm 3.
case ${1-4} in
  3) name=helm3 ;;
  4) name=helm ;;
  *) echo "usage: tools/helm.sh [3 | 4]" >&2; exit 2 ;;
esac
exec "$(dirname "$0")/go-tools.sh" "$name"
