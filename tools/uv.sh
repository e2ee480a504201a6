#!/usr/bin/env bash
# Installs Python packages with uv, which takes about a tenth of pip's time: tools/uv.sh ENVIRONMENT OPTION|REQUIREMENT...
# The options are those of `uv pip install`. uv itself is installed once, into ~/.cache/allranks ($ALLRANKS_CACHE). pip's
# settings for indexes, local wheels and certificates (PIP_*, pip.conf) apply; those of uv (UV_*) come first.
set -euo pipefail
version=0.13.9
environment=$1
shift
cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
uv=$cache/uv-$version

if [[ ! -e $uv/.installed ]]; then
  mkdir -p "$cache"
  exec 9>"$uv.lock"
  flock 9
  if [[ ! -e $uv/.installed ]]; then
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --upgrade --target "$uv" \
      "uv==$version"
    touch "$uv/.installed"
  fi
  exec 9>&-
fi

# Lines such as :env:.find-links='/opt/wheels', those of the environment first.
while IFS='=' read -r option value; do
  value=${value#\'} value=${value%\'}
  case ${option##*.} in
    index-url) export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$value} ;;
    extra-index-url) export UV_INDEX=${UV_INDEX:-$value} ;;
    find-links) export UV_FIND_LINKS=${UV_FIND_LINKS:-${value// /,}} ;;
    no-index) export UV_NO_INDEX=${UV_NO_INDEX:-$value} ;;
    trusted-host) export UV_INSECURE_HOST=${UV_INSECURE_HOST:-$value} ;;
    cert) export SSL_CERT_FILE=${SSL_CERT_FILE:-$value} ;;
    default-timeout | timeout) export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-$value} ;;
  esac
done < <("$environment/bin/python" -m pip config list)

# Like pip, it takes the best version of all indexes.
exec "$uv/bin/uv" pip install --quiet --no-progress --python "$environment/bin/python" --index-strategy unsafe-best-match "$@"
