#!/usr/bin/env bash
# Programs that tests need and that no package registry for Python has, built from source by Go: the same versions on
# every machine, and nothing else to download. tools/programs/go.mod names most of them as tools.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/go-tools.sh controlplane | helm | untt | node | argo | bench | peers     (the first two: tools/controlplane.sh, tools/helm.sh as well)

Makes sure that the programs are in a directory of $ALLRANKS_CACHE, and prints that directory as the only line on stdout:
  controlplane  etcd, kube-apiserver, kube-controller-manager, kubectl
  helm          helm
  untt          the runner of helm-unittest, for the chart's own tests
  node          kube-scheduler, kubelet, kube-proxy, coredns, local-path-provisioner
  argo          workflow-controller, argoexec, and the manifests to install them with
  bench         raw, which posts objects as fast as the API server takes them
  peers         training-operator, which the benchmarks can run beside ours, and its CRDs
What was built already is there at once. On two idle cores the control plane takes 4 minutes, helm, untt and node 2 minutes more
(they share what they are made of), argo and peers 3 to 4 minutes each. Go needs 4 GB of disk for it.

environment:
  ALLRANKS_CACHE       where they are kept, default ~/.cache/allranks
  KUBEBUILDER_ASSETS   a directory with etcd, kube-apiserver and kubectl, as `setup-envtest` makes one: they come first,
                       and only what is missing there is built (controlplane)
  GOPROXY, GOFLAGS...  Go's own settings are respected
USAGE
}

main() {
  repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  case ${1-} in
    -h | --help) usage; exit 0 ;;
    controlplane | helm | untt | node | argo | bench | peers) name=$1 ;;
    *) usage >&2; exit 2 ;;
  esac
  assets=
  [[ $name != controlplane ]] || assets=${KUBEBUILDER_ASSETS:-}
  [[ -z $assets || -d $assets ]] || fail "KUBEBUILDER_ASSETS is '$assets', which is no directory"
  cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
  target=$cache/$name-$(fingerprint)

  if [[ ! -d $target ]]; then
    mkdir -p "$cache"
    exec 9>"$cache/$name.lock"
    flock --nonblock 9 || { say "another call is building, waiting for it"; flock 9; }
    [[ -d $target ]] || build # the call that we waited for may have built it
  fi
  echo "$target"
}

# Of all that decides what is built.
fingerprint() {
  {
    cat "$repository/tools/$(module)"/{go.mod,*.go} 2>/dev/null || true # not all have both
    declare -f "build_$name" kubernetes_version compile modules
    uname -sm
    echo "$assets"
  } | sha256sum | cut -c 1-16
}

# The folder below tools/ that says what is compiled.
module() {
  case $name in
    controlplane | helm | untt | node) echo programs ;;
    *) echo "$name" ;;
  esac
}

build() {
  local started=$SECONDS
  find_go
  work=$target.unfinished
  rm -rf "$work"
  mkdir -p "$work/bin"
  "build_$name"
  # The directory appears whole, so that one which is there is finished.
  mv "$work/bin" "$target"
  rm -rf "$work"
  say "took $((SECONDS - started)) s; $target has $(du -sh "$target" | cut -f 1)"
}

build_controlplane() {
  local program tools=()
  for program in kube-apiserver kube-controller-manager kubectl etcd; do
    if [[ -n $assets && -x $assets/$program ]]; then
      ln -s "$(cd "$assets" && pwd)/$program" "$work/bin/$program"
    elif [[ $program == etcd ]]; then
      tools+=(go.etcd.io/etcd/server/v3)
    else
      tools+=("k8s.io/kubernetes/cmd/$program")
    fi
  done
  ((!${#tools[@]})) || compile "$(kubernetes_version)" "${tools[@]}"
  [[ ! -e $work/bin/server ]] || mv "$work/bin/server" "$work/bin/etcd"
}

build_helm() {
  compile '-X helm.sh/helm/v4/internal/version.version=v4.2.4' helm.sh/helm/v4/cmd/helm
}

build_untt() {
  compile '-X github.com/helm-unittest/helm-unittest/internal/build.version=1.1.2' \
    github.com/helm-unittest/helm-unittest/cmd/helm-unittest
  mv "$work/bin/helm-unittest" "$work/bin/untt"
}

build_node() {
  compile "$(kubernetes_version)" k8s.io/kubernetes/cmd/{kube-scheduler,kubelet,kube-proxy}
  compile '' github.com/coredns/coredns
  # By itself: it imports logrus by the name that it had once, which Go does not take together with the one of today.
  compile '' github.com/rancher/local-path-provisioner
}

# The published module lacks a file, and does not compile (`undefined: Setpgid`). It is built from a copy that has ours:
# go build -overlay does not do it, in the cache of modules it replaces nothing.
build_argo() {
  local module=github.com/argoproj/argo-workflows/v3 version=v3.6.10 source copy=$work/argo-workflows
  source=$(cd "$work" && GOWORK=off "$go" mod download -json "$module@$version" | awk -F '"' '$2 == "Dir" { print $4 }')
  cp -r "$source" "$copy"
  chmod -R u+w "$copy"
  cp "$repository/tools/argo/signal_linux.go" "$copy/workflow/executor/os-specific/"
  compile "-X $module.version=$version" "$module"/cmd/{argoexec,workflow-controller}
  mkdir "$work/bin/manifests"
  cp -r "$copy"/manifests/{base,cluster-install} "$work/bin/manifests/"
}

build_bench() {
  CGO_ENABLED=0 "$go" build -C "$repository/tools/bench" -o "$work/bin/raw" .
}

# Twice: as it comes, with its client's throttle, and without that. Both without its webhooks, for which an API server
# would need a way to it, and which would cost it time.
build_peers() {
  local module=github.com/kubeflow/training-operator version=v1.8.1 source copy=$work/training-operator main
  main=$copy/cmd/training-operator.v1/main.go
  source=$(cd "$work" && GOWORK=off "$go" mod download -json "$module@$version" | awk -F '"' '$2 == "Dir" { print $4 }')
  cp -r "$source" "$copy"
  chmod -R u+w "$copy"
  sed -i -e 's/if err = cert.ManageCerts(mgr, certGenerationConfig, certsReady)/_, _ = cert.ManageCerts, certGenerationConfig\
	go func() { certsReady <- struct{}{} }()\
	if err = error(nil)/' -e 's/if err := setupWebhookFunc(mgr)/_ = setupWebhookFunc\
		if err := error(nil)/' "$main"
  say "compiling $module $version"
  (
    cd "$copy"
    export CGO_ENABLED=0 GOWORK=off GOTMPDIR=$work
    "$go" build -o "$work/bin/training-operator" ./cmd/training-operator.v1
    sed -i 's/mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(),/client := ctrl.GetConfigOrDie()\
	client.QPS, client.Burst = 10000, 20000\
	mgr, err := ctrl.NewManager(client,/' "$main"
    "$go" build -o "$work/bin/training-operator-unthrottled" ./cmd/training-operator.v1
  )
  cp -r "$copy/manifests/base/crds" "$work/bin/crds"
}

# For the linker. Without these a server says v0.0.0-master, which Helm and kubectl do not take for a version.
kubernetes_version() {
  local package
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf ' -X %s' "$package".{gitVersion=v1.36.3,gitMajor=1,gitMinor=36,gitTreeState=clean}
  done
}

# compile LINKER_FLAGS PACKAGE...
compile() {
  say "compiling ${*:2}"
  (
    modules
    # What debuggers need takes Go a tenth of the time.
    "$go" build -v -gcflags=all=-dwarf=false -ldflags "-s -w $1" -o "$work/bin/" "${@:2}" 2> >(count) ||
      fail "Go could not compile them, see above: the same command again goes on from there"
  )
}

# Goes to a copy of the go.mod, where Go may write its long form, and downloads what that names.
modules() {
  mkdir -p "$work/module"
  cd "$work/module"
  # No go.sum is kept in the repository: Go's checksum database vouches for what the proxy hands out.
  export GOWORK=off GOFLAGS="${GOFLAGS:-} -mod=mod" CGO_ENABLED=0 GOTMPDIR=$work
  [[ ! -e go.mod ]] || return 0
  cp "$repository/tools/$(module)/go.mod" .
  "$go" mod tidy 2>"$work/log" || { tail -n 30 "$work/log" >&2; fail "Go could not load the modules, see above"; }
}

# Go names every package that it has compiled: counted, and all else is let through.
count() {
  awk -v name="$name" '
    /^[^ ]+\/[^ ]+$|^[a-z0-9]+$/ { if (++n % 200 == 0) print name ": " n " packages"; next }
    { print }' >&2
}

find_go() {
  local version
  for go in "$(command -v go || true)" /usr/local/go/bin/go; do
    [[ -x $go ]] && break
  done
  [[ -x $go ]] ||
    fail "no Go on this machine: install Go 1.21 or newer (go.dev/doc/install, Debian: apt-get install golang-go)"
  version=$("$go" env GOVERSION)
  # From 1.21 on Go fetches the newer Go that a go.mod asks for.
  [[ $(printf '%s\n' go1.21 "$version" | sort -V | head -n 1) == go1.21 ]] ||
    fail "$go is $version: 1.21 or newer is needed (go.dev/doc/install)"
  # Its compiler spends a fifth of its time collecting garbage, which it need not before it has this much.
  export GOGC=${GOGC:-off} GOMEMLIMIT=${GOMEMLIMIT:-2GiB}
}

say() { echo "$name: $*" >&2; }

fail() {
  echo "${name-go-tools}: error: $*" >&2
  exit 1
}

main "$@"
