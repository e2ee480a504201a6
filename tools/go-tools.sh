#!/usr/bin/env bash
# Builds programs for tests that are not on PyPI from source with Go: the same versions on every machine, without other
# downloads. Most of them are listed as tools in tools/programs/go.mod.
set -euo pipefail

usage() {
  cat <<USAGE
usage: tools/go-tools.sh controlplane | scheduler | node [VERSION]
       tools/go-tools.sh kueue | coscheduling | addons | helm | helm3 | untt | argo | bench | peers | gcs | actionlint | signing
       (controlplane, helm, helm3: tools/controlplane.sh [VERSION], tools/helm.sh [3] as well)

Builds the programs into a directory of \$ALLRANKS_CACHE, and prints that directory as the only line on stdout:
  controlplane  etcd, kube-apiserver, kube-controller-manager, kubectl. VERSION of Kubernetes: one of $(versions),
                default $(usual)
  scheduler     kube-scheduler
  node          kube-scheduler, kubelet, kube-proxy; not of 1.30
  addons        coredns, local-path-provisioner
  kueue         kueue, the manager of Kueue, and the manifests that install it
  coscheduling  coscheduling, a kube-scheduler with the plugins of scheduler-plugins, and their CRDs
  helm          helm 4
  helm3         helm 3, for tests of the chart
  untt          the test runner of helm-unittest, for the chart's own tests
  argo          workflow-controller, argoexec, and the manifests that install them
  bench         raw, which posts objects as fast as the API server accepts them
  peers         training-operator for comparison in benchmarks, and its CRDs
  gcs           fake-gcs-server, which answers like Google Cloud Storage
  actionlint    actionlint, which checks workflows of GitHub Actions
  signing       cosign, and crane, which copies images between files and registries
Programs that were built before are reused. On two idle cores the control plane takes 4 to 8 minutes, and after it helm, untt
and scheduler less than a minute together (they share packages), kueue, node, argo and peers 3 to 4 minutes each. Go needs
4 GB of disk.

environment:
  ALLRANKS_CACHE       folder of the programs, default ~/.cache/allranks
  KUBEBUILDER_ASSETS   a directory with etcd, kube-apiserver and kubectl, as created by setup-envtest: these are used,
                       and only missing programs are built (controlplane and scheduler without VERSION)
  GOPROXY, GOFLAGS...  Go's own settings apply
USAGE
}

main() {
  repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  case ${1-} in
    -h | --help) usage; exit 0 ;;
    controlplane | scheduler | node | kueue | coscheduling | addons | helm | helm3 | untt | argo | bench | peers | gcs | \
      actionlint | signing)
      name=$1 kubernetes=${2-} ;;
    *) usage >&2; exit 2 ;;
  esac
  assets=
  if [[ $name =~ ^(controlplane|scheduler|node)$ ]]; then
    [[ -n $kubernetes || $name == node ]] || assets=${KUBEBUILDER_ASSETS:-}
    kubernetes=${kubernetes:-$(usual)}
    [[ " $(versions) " == *" $kubernetes "* ]] || fail "there is no Kubernetes '$kubernetes': name one of $(versions)"
  elif [[ -n $kubernetes ]]; then
    usage >&2
    exit 2
  fi
  [[ -z $assets || -d $assets ]] || fail "KUBEBUILDER_ASSETS is not a directory: '$assets'"
  cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
  target=$cache/$name${kubernetes:+-$kubernetes}-$(fingerprint)

  if [[ ! -d $target ]]; then
    mkdir -p "$cache"
    # One call at a time for each module: it compiles packages that the next one shares.
    exec 9>"$cache/$(module | tr / -).lock"
    flock --nonblock 9 || { say "another call is building, waiting for it"; flock 9; }
    [[ -d $target ]] || build # the other call may have built it
  fi
  echo "$target"
}

# Versions of Kubernetes whose control plane can be built.
versions() {
  local files=("$repository"/tools/kubernetes/*/go.mod) names
  names=("${files[@]%/go.mod}")
  printf '%s\n' "${names[@]##*/}" "$(usual)" | sort -V | xargs
}

# The version of Kubernetes that tests run on.
usual() { sed -n 's|^\tk8s.io/kubernetes v\(.*\)\.[0-9]*$|\1|p' "$repository/tools/programs/go.mod"; }

# Hash of everything that determines the programs.
fingerprint() {
  {
    cat "$repository/tools/$(module)"/{go.mod,*.go} 2>/dev/null || true # not all have both
    declare -f "build_$name" kubernetes_version compile modules
    uname -sm
    echo "$assets"
  } | sha256sum | cut -c 1-16
}

# The folder below tools/ with the go.mod.
module() {
  case $name in
    controlplane | scheduler | node) [[ $kubernetes == "$(usual)" ]] && echo programs || echo "kubernetes/$kubernetes" ;;
    helm | helm3 | untt) echo programs ;;
    addons) echo kubernetes/1.36 ;; # of which nodes are by default
    kueue | coscheduling) echo queueing ;;
    actionlint | signing) echo release ;;
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
  # Renamed when complete, so that an existing directory is always complete.
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

build_scheduler() {
  if [[ -n $assets && -x $assets/kube-scheduler ]]; then
    ln -s "$(cd "$assets" && pwd)/kube-scheduler" "$work/bin/kube-scheduler"
  else
    compile "$(kubernetes_version)" k8s.io/kubernetes/cmd/kube-scheduler
  fi
}

# Its visibility server needs a pod: it listens at a fixed port on all addresses, reads certificates from fixed folders, and
# finds the API server as in a pod. Kueue is built from a copy that listens on loopback, at the port of an environment
# variable, reads certificates from a folder of the working directory, and uses $KUBECONFIG.
build_kueue() {
  local copy=$work/kueue server=pkg/visibility/server.go
  cp -r --no-preserve=mode "$(source_of sigs.k8s.io/kueue)" "$copy"
  sed -i -e 's/^\t"net"$/&\n\t"os"\n\t"strconv"/' -e 's/^\to.SecureServing.BindPort = 8082$/\
	o.SecureServing.BindPort, _ = strconv.Atoi(os.Getenv("VISIBILITY_PORT"))\
	o.SecureServing.BindAddress = net.IPv4(127, 0, 0, 1)\
	o.Authentication.RemoteKubeConfigFile = os.Getenv("KUBECONFIG")\
	o.Authorization.RemoteKubeConfigFile = os.Getenv("KUBECONFIG")\
	o.CoreAPI.CoreAPIKubeconfigPath = os.Getenv("KUBECONFIG")/' "$copy/$server"
  sed -i 's|"/etc/kueue/metrics/certs"|"certificates"|' "$copy/cmd/kueue/main.go"
  grep --quiet VISIBILITY_PORT "$copy/$server" && grep --quiet '"certificates"' "$copy/cmd/kueue/main.go" ||
    fail "Kueue's source has changed"
  "$go" mod edit -replace "sigs.k8s.io/kueue=$copy" "$work/module/go.mod"
  compile '-X sigs.k8s.io/kueue/pkg/version.GitVersion=v0.15.1 -X sigs.k8s.io/kueue/pkg/visibility.certDir=certificates' \
    sigs.k8s.io/kueue/cmd/kueue
  mv "$copy/config" "$work/bin/manifests"
}

build_coscheduling() {
  compile "$(kubernetes_version)" sigs.k8s.io/scheduler-plugins/cmd/scheduler
  mv "$work/bin/scheduler" "$work/bin/coscheduling"
  cp -r --no-preserve=mode "$(source_of sigs.k8s.io/scheduler-plugins)/config/crd/bases" "$work/bin/crds"
}

build_helm() {
  compile '-X helm.sh/helm/v4/internal/version.version=v4.2.4' helm.sh/helm/v4/cmd/helm
}

build_helm3() {
  # `helm template` renders for this version of Kubernetes; without it, for v1.20, which the chart does not support.
  local package flags=
  for package in chartutil lint/rules; do
    flags+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=37"
  done
  compile "-X helm.sh/helm/v3/internal/version.version=v3.22.0$flags" helm.sh/helm/v3/cmd/helm
}

build_untt() {
  compile '-X github.com/helm-unittest/helm-unittest/internal/build.version=1.1.2' \
    github.com/helm-unittest/helm-unittest/cmd/helm-unittest
  mv "$work/bin/helm-unittest" "$work/bin/untt"
}

build_gcs() {
  compile '' github.com/fsouza/fake-gcs-server
}

build_actionlint() {
  compile '' github.com/rhysd/actionlint/cmd/actionlint
}

build_signing() {
  compile '' github.com/sigstore/cosign/v3/cmd/cosign github.com/google/go-containerregistry/cmd/crane
}

build_node() {
  compile "$(kubernetes_version)" k8s.io/kubernetes/cmd/{kube-scheduler,kubelet,kube-proxy}
}

build_addons() {
  compile '' github.com/coredns/coredns
  # Compiled separately: it imports logrus by its old module name, which conflicts with the current one.
  compile '' github.com/rancher/local-path-provisioner
}

# A file is missing in the published module, so it does not compile (`undefined: Setpgid`). It is built from a copy with
# the file added; go build -overlay does not work for files in the module cache.
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

# Built twice: with its client's default throttle, and without. Both without webhooks, which the API server would have to
# reach, and which would cost time.
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

# Linker flags. Without these the version is v0.0.0-master, which Helm and kubectl reject.
kubernetes_version() {
  local version major minor package
  version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$repository/tools/$(module)/go.mod")
  IFS=. read -r major minor _ <<<"${version#v}"
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf ' -X %s' "$package".{gitVersion="$version",gitMajor="$major",gitMinor="$minor",gitTreeState=clean}
  done
}

# compile LINKER_FLAGS PACKAGE...
compile() {
  say "compiling ${*:2}"
  (
    modules
    # Debug information would take a tenth of the build time. Kubernetes 1.30 contains cloud providers, which no test needs.
    "$go" build -v -tags providerless -gcflags=all=-dwarf=false -ldflags "-s -w $1" -o "$work/bin/" "${@:2}" 2> >(count) ||
      fail "Go could not compile them, see above; run the same command to retry"
  )
}

# Enters a folder with a copy of go.mod that Go may extend, so that it downloads only what it compiles.
modules() {
  mkdir -p "$work/module"
  cd "$work/module"
  # The repository has no go.sum: Go's checksum database verifies the proxy's downloads.
  export GOWORK=off GOFLAGS="${GOFLAGS:-} -mod=mod" CGO_ENABLED=0 GOTMPDIR=$work
  [[ -e go.mod ]] || cp "$repository/tools/$(module)/go.mod" .
}

# Downloads a module of go.mod, and prints the folder with its source.
source_of() {
  (modules && "$go" mod download "$1" && "$go" list -m -f '{{.Dir}}' "$1")
}

# Counts the packages that Go prints when compiled, and drops its downloads; passes all other lines on.
count() {
  awk -v name="$name${kubernetes:+ $kubernetes}" '
    /^go: (downloading|finding|found|added) / { next }
    /^[^ ]+\/[^ ]+$|^[a-z0-9]+$/ { if (++n % 200 == 0) { print name ": " n " packages"; fflush() } next }
    { print }' >&2
}

find_go() {
  local version
  for go in "$(command -v go || true)" /usr/local/go/bin/go; do
    [[ -x $go ]] && break
  done
  [[ -x $go ]] ||
    fail "Go is not installed: install Go 1.21 or newer (go.dev/doc/install, Debian: apt-get install golang-go)"
  version=$("$go" env GOVERSION)
  # Since 1.21, Go downloads a newer Go that go.mod requires.
  [[ $(printf '%s\n' go1.21 "$version" | sort -V | head -n 1) == go1.21 ]] ||
    fail "$go is $version: 1.21 or newer is needed (go.dev/doc/install)"
  # Its compiler spends a fifth of its time on garbage collection, which is unnecessary below this limit.
  export GOGC=${GOGC:-off} GOMEMLIMIT=${GOMEMLIMIT:-2GiB}
}

say() { echo "$name${kubernetes:+ $kubernetes}: $*" >&2; }

fail() {
  echo "${name-go-tools}: error: $*" >&2
  exit 1
}

main "$@"
