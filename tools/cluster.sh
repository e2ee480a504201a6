#!/usr/bin/env bash
# A real Kubernetes cluster on this machine, with nodes that run containers: kind if Docker runs, otherwise programs from Go
# and Debian, with one set of namespaces per machine (tools/node/machine.sh). See docs/dev/cluster.md.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: tools/cluster.sh up [--nodes N] [--gpus N] [--gangs]   start the cluster unless it runs; prints settings for the
                                                    shell
       tools/cluster.sh load [--on NODE] IMAGE.tar...   load images of `docker save` or `buildah push` onto all nodes or
                                                    one; `-` reads an image from stdin, for one node
       tools/cluster.sh stop NODE...                simulate a power loss: everything on the node ends at once
       tools/cluster.sh start NODE...               start the node again
       tools/cluster.sh status                      list the nodes; fails if the cluster does not run
       tools/cluster.sh kubeconfig                  print the path of its kubeconfig
       tools/cluster.sh down                        stop the cluster, and check that nothing is left

  --nodes N   nodes to start, 1 to 9, default 1
  --gpus N    every node advertises N nvidia.com/gpu. They are fake: pods are only scheduled accordingly
  --gangs     serve PodGroups, and let the scheduler place their pods together (feature gate GenericWorkload). Not for kind
  --store S   start nodes with the images in this folder of tools/image-store.sh. Not for kind
  --dir D     folder of the cluster, default $ALLRANKS_CACHE/cluster: another folder is another cluster
  --with W    kind or node: the implementation; default kind if both Docker and kind are available

examples:
  eval "$(tools/cluster.sh up --nodes 2 --gpus 4)"; kubectl get nodes
  tools/cluster.sh load trainer.tar

environment:
  ALLRANKS_CACHE       folder of programs and clusters, default ~/.cache/allranks
  KUBERNETES_VERSION   1.36 (default) or 1.37. Not for kind
USAGE
}

main() {
  local command='' nodes='' gpus='' with='' on='' store='' gangs='' words=()
  repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  cache=${ALLRANKS_CACHE:-$HOME/.cache/allranks}
  kubernetes=${KUBERNETES_VERSION:-1.36}
  dir=$cache/cluster
  parse_arguments "$@"
  dir=$(realpath --canonicalize-missing "$dir")
  # Identifies its cgroups and its network interface without any other state.
  mark=$(sha256sum <<<"$dir" | cut -c 1-10)
  cgroup=allranks-$mark cable=ar-$mark
  users_kubectl=$(command -v kubectl || true)
  export KUBECONFIG=$dir/kubeconfig PATH=$dir/bin:$PATH:/usr/sbin:/sbin

  case $command in up | load | stop | start | down) lock ;; esac
  made_with
  "$command"
}

parse_arguments() {
  while (($#)); do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --gangs) gangs=yes ;;
      --nodes | --gpus | --dir | --with | --on | --store)
        [[ -n ${2-} ]] || fail "$1 needs a value"
        local -n option=${1#--}
        option=$2
        shift
        ;;
      -?*) usage >&2; fail "unknown option '$1'" ;;
      *) if [[ -z $command ]]; then command=$1; else words+=("$1"); fi ;;
    esac
    shift
  done
  [[ $command =~ ^(up|load|stop|start|status|kubeconfig|down)$ ]] || { usage >&2; fail "unknown command '$command'"; }
  [[ $nodes =~ ^[1-9]?$ ]] || fail "--nodes is 1 to 9, not '$nodes'"
  [[ $gpus =~ ^[0-9]{0,3}$ ]] || fail "--gpus is a number, not '$gpus'"
  [[ $with =~ ^(kind|node)?$ ]] || fail "--with is kind or node, not '$with'"
  case $command in
    load | stop | start) ((${#words[@]})) || { usage >&2; fail "$command needs an argument"; } ;;
    *) ((!${#words[@]})) || { usage >&2; fail "unexpected argument '${words[*]}'"; } ;;
  esac
  [[ -z $store || -d $store/containerd ]] || fail "--store '$store' is not a folder of tools/image-store.sh"
  [[ ! $dir =~ [[:space:]\"\'] ]] || fail "--dir '$dir': blanks and quotes are not allowed"
}

# One call at a time per cluster; only images may be loaded concurrently.
lock() {
  local kind=--exclusive
  [[ $command != load ]] || kind=--shared
  mkdir -p "$(dirname "$dir")"
  exec 9>"$dir.lock"
  flock $kind --nonblock 9 || {
    say "another call uses this cluster, waiting for it"
    flock $kind --timeout 1800 9 || fail "the other call has not finished after half an hour"
  }
}

# A cluster is stopped with the implementation that started it. A folder of something else is not touched.
made_with() {
  [[ ! -e $dir || -s $dir/with || (-d $dir && -z $(ls -A "$dir")) ]] ||
    fail "$dir exists and is not the folder of a cluster: choose another --dir"
  if [[ -s $dir/with ]]; then
    with=$(<"$dir/with")
  elif [[ -z $with ]]; then
    with=node
    [[ $command != up ]] || ! command -v kind >/dev/null || ! timeout 10 docker info >/dev/null 2>&1 || with=kind
  fi
}

up() {
  if "${with}_runs"; then
    local running
    running=$("${with}_count")
    [[ -z $nodes || $nodes == "$running" ]] ||
      fail "the cluster runs with $running node(s): for $nodes, call 'tools/cluster.sh down' first"
    nodes=$running
    say "already runs, with $nodes node(s), in $dir"
  else
    nodes=${nodes:-1}
    "${with}_check"
    if [[ -e $dir ]]; then
      say "$dir is a partial cluster: removing it and starting again"
      "${with}_down"
    fi
    mkdir -p "$dir"
    echo "$with" >"$dir/with"
    trap 'give_up' EXIT
    trap 'exit 130' INT TERM HUP PIPE
    "${with}_up"
    touch "$dir/complete"
    trap - EXIT INT TERM HUP PIPE
    say "up after $SECONDS s, in $dir"
  fi
  [[ -z $gpus ]] || step "$gpus fake GPUs on every node" fake_gpus $(kubectl get nodes --output=name)
  echo "export KUBECONFIG=$KUBECONFIG"
  [[ -n $users_kubectl ]] || echo "export PATH=\$PATH:$dir/bin"
}

give_up() {
  trap '' INT TERM HUP PIPE # neither further signals nor a closed pipe interrupt the clean-up
  set +e
  say "not up: stopping what was started. Logs are kept in $dir.failed"
  rm -rf "$dir.failed"
  mkdir -p "$dir.failed"
  cp "$dir"/*/log/*.log "$dir.failed/" 2>/dev/null || true
  "${with}_down" || true
}

down() {
  if [[ $with == node ]]; then root; fi
  "${with}_down"
  rm -rf "$dir.failed" "$dir.lock"
}

# The file that marks the folder as a cluster is removed last.
remove_folder() {
  [[ -e $dir ]] || return 0
  find "$dir" -mindepth 1 -maxdepth 1 ! -name with -exec rm -rf {} +
  rm -rf "$dir"
}

status() {
  if ! "${with}_runs"; then
    say "does not run"
    exit 1
  fi
  say "runs, with $with, in $dir"
  kubectl get nodes --output=wide
}

kubeconfig() {
  [[ -s $KUBECONFIG ]] || fail "the cluster does not run: 'tools/cluster.sh up' starts it"
  echo "$KUBECONFIG"
}

load() {
  local file where="on ${on:-every node}"
  must_run
  [[ -z $on ]] || must_be_node "$on"
  for file in "${words[@]}"; do
    if [[ $file == - ]]; then
      [[ -n $on ]] || fail "load - needs --on NODE: stdin can be read only once"
      step "image from stdin $where" "${with}_load" /dev/stdin
    else
      [[ -r $file ]] || fail "'$file' cannot be read"
      step "$file $where" "${with}_load" "$file"
    fi
  done
}

stop() {
  local node
  must_run
  for node in "${words[@]}"; do
    must_be_node "$node"
    step "$node is off" "${with}_stop" "$node"
  done
}

start() {
  local node since
  must_run
  for node in "${words[@]}"; do
    must_be_node "$node"
    if [[ $with == node ]] && process_of "$node" >/dev/null; then
      say "$node is on"
      continue
    fi
    since=$(ready_of "$node")
    step "$node is on" "${with}_start" "$node"
    step "$node is ready" wait_for 300 ready_since "$node" "${since#*@}"
    # The kubelet resets extended resources.
    gpus=$(kubectl get node "$node" --output='jsonpath={.metadata.labels.allranks\.dev/pretended-gpus}')
    [[ -z $gpus ]] || step "$gpus fake GPUs" fake_gpus "node/$node"
  done
}

must_run() { "${with}_runs" || fail "the cluster does not run: 'tools/cluster.sh up' starts it"; }

must_be_node() { kubectl get node "$1" >/dev/null 2>&1 || fail "no node '$1'; available: $(kubectl get nodes --output=name | xargs)"; }

# STATUS@TIME of the last heartbeat.
ready_of() {
  kubectl get node "$1" --output='jsonpath={.status.conditions[?(@.type=="Ready")].status}@{.status.conditions[?(@.type=="Ready")].lastHeartbeatTime}'
}

# ready_since NODE TIME: the node is Ready, with a heartbeat after this one, the last one before its power was off. The time of
# this machine would not do: the first heartbeat may come in the same second, and the next one five minutes later.
ready_since() {
  local condition
  condition=$(ready_of "$1")
  [[ $condition == True@* && ${condition#*@} > $2 ]]
}

# fake_gpus NODE...: patches the status, as Kubernetes documents it for extended resources without a device plugin.
fake_gpus() {
  local node
  for node in "$@"; do
    kubectl label --overwrite "$node" "allranks.dev/pretended-gpus=$gpus"
    kubectl patch "$node" --subresource=status --type=merge \
      --patch="{\"status\": {\"capacity\": {\"nvidia.com/gpu\": \"$gpus\"}, \"allocatable\": {\"nvidia.com/gpu\": \"$gpus\"}}}"
  done >/dev/null
}

### kind

kind_check() {
  command -v kind >/dev/null || fail "kind is not installed: go install sigs.k8s.io/kind@latest, or --with node"
  timeout 10 docker info >/dev/null 2>&1 || fail "Docker does not respond: start it, or --with node (as root)"
}

kind_up() {
  local node
  [[ -z $store ]] || fail "--store requires --with node"
  [[ -z $gangs ]] || fail "--gangs requires --with node"
  {
    printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n'
    for ((node = 2; node <= nodes; node++)); do echo '- role: worker'; done
  } >"$dir/kind.yaml"
  kind create cluster --name "$cgroup" --config "$dir/kind.yaml" --kubeconfig "$KUBECONFIG" --wait 300s >&2 ||
    fail "kind could not create the cluster, see above"
  # kind's provisioner supports ReadWriteMany only if configured for a shared folder, which a single node always has.
  ((nodes > 1)) || {
    kubectl patch configmap local-path-config --namespace=local-path-storage --type=merge \
      --patch='{"data": {"config.json": "{\"sharedFileSystemPath\": \"/var/local-path-provisioner\"}"}}' &&
      kubectl rollout restart deployment local-path-provisioner --namespace=local-path-storage
  } >/dev/null || say "unexpected volume provisioner of kind: claims with ReadWriteMany may stay Pending"
}

kind_runs() { [[ -e $dir/complete ]] && kubectl get --raw /readyz --request-timeout=5s >/dev/null 2>&1; }

kind_count() { kubectl get nodes --output=name | wc -l; }

kind_stop() { docker kill "$1"; }

kind_start() { docker start "$1"; }

# kind reads images only from files.
kind_load() {
  local file=$1
  if [[ $file == /dev/stdin ]]; then
    file=$dir/image.tar
    cat >"$file"
  fi
  kind load image-archive --name "$cgroup" ${on:+--nodes "$on"} "$file" >&2
  rm -f "$dir/image.tar"
}

kind_down() {
  kind delete cluster --name "$cgroup" --kubeconfig "$KUBECONFIG" >&2 || fail "kind could not delete the cluster, see above"
  remove_folder
}

### Cluster without kind

node_check() {
  local free hierarchy
  [[ $(uname -s) == Linux ]] || fail "without Docker and kind, Linux is required; this is $(uname -s)"
  root
  [[ ! $dir =~ ^/(run|var/lib|var/log|var/run|proc|sys|dev)/ ]] ||
    fail "$dir: the cluster's machines have their own folders at this path: choose another --dir"
  free=$(($(df --output=avail -k "$(dirname "$dir")" | tail -n 1) / 1024))
  ((free >= 2048)) || fail "$(dirname "$dir") has $free MB free, but 2 GB are needed: free some, or choose another --dir"
  if [[ ! -e /sys/fs/cgroup/cgroup.controllers ]]; then
    for hierarchy in cpu cpuset memory pids; do
      [[ -d /sys/fs/cgroup/$hierarchy ]] || fail "no cgroups for $hierarchy at /sys/fs/cgroup/$hierarchy, neither version 1 nor 2"
    done
  fi
}

root() { ((EUID == 0)) || fail "only root can create namespaces and run containers: sudo -E tools/cluster.sh $command"; }

node_up() {
  local name machines=(control-plane) node
  for ((node = 1; node <= nodes; node++)); do machines+=("node-$node"); done
  step "system packages" "$repository/tools/system-packages.sh" node
  step "programs" programs
  node_settings
  [[ -z $store ]] || step "images from $store" give_store
  step "${#machines[@]} machines connected" connect_machines
  step "API server" wait_for 300 kubectl get --raw /readyz
  step "accounts and storage" wait_for 300 kubectl apply --filename="$dir/cluster.yaml"
  step "image of busybox" busybox_image
  step "containerd" containerd_ready
  step "busybox on every node" node_load "$dir/busybox.tar"
  step "nodes" nodes_ready
  step "names and service accounts" services_ready
}

programs() {
  local name folder
  for name in containerd ctr runc nft iptables conntrack ip busybox openssl unshare nsenter; do
    command -v "$name" >/dev/null || fail "'$name' is not installed (Debian: tools/system-packages.sh node)"
  done
  mkdir -p "$dir/bin"
  for name in "controlplane $kubernetes" "node $kubernetes" addons; do
    # shellcheck disable=SC2086 # a name and a version
    folder=$("$repository/tools/go-tools.sh" $name)
    ln -sf "$folder"/* "$dir/bin/"
  done
}

# Writes the settings of machines and programs; they are created for every cluster, in its folder.
node_settings() {
  local user groups token server
  umask 077
  reserve_network
  server=https://$network.0.1:6443
  cat >"$dir/settings" <<SETTINGS
network=$network
nodes=$nodes
cgroup=$cgroup
cni_plugins=$(cni_plugins)
snapshotter=$(snapshotter)
gates=($(gang_gates))
served=($(gang_api))
$(declare -f address_of pods_of)
SETTINGS
  cp "$repository/tools/node/machine.sh" "$dir/" # later changes of the script do not affect a running cluster
  mkdir -p "$dir/kubeconfigs" "$dir/volumes"
  for name in admin kube-controller-manager kube-scheduler kube-proxy coredns local-path-provisioner "${machines[@]:1}"; do
    user=system:$name groups=
    case $name in
      admin) user=admin groups=system:masters ;;
      node-*) user=system:node:$name groups=system:nodes ;;
    esac
    token=$(openssl rand -hex 16)
    echo "$token,$user,$user,$groups" >>"$dir/tokens"
    write_kubeconfig "$dir/kubeconfigs/$name"
  done
  cp "$dir/kubeconfigs/admin" "$KUBECONFIG"
  openssl genrsa -out "$dir/service-accounts.key" 2048 2>/dev/null
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /O=system:masters/CN=kube-apiserver \
    -keyout "$dir/kubelet-client.key" -out "$dir/kubelet-client.crt" 2>/dev/null
  echo "nameserver $network.0.1" >"$dir/resolv.conf"
  cat >"$dir/Corefile" <<COREFILE
cluster.local in-addr.arpa ip6.arpa {
  bind $network.0.1
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig $dir/kubeconfigs/coredns
    pods insecure
  }
}
# The cluster has no access to other networks.
. {
  bind $network.0.1
  template ANY ANY . {
    rcode NXDOMAIN
  }
}
COREFILE
  # All nodes share this folder, so a volume can be used on several at once, as ReadWriteMany requires.
  sed "s|@VOLUMES@|$dir/volumes|" "$repository/tools/node/cluster.yaml" >"$dir/cluster.yaml"
  umask 022
}

# Options of the API server, the controller manager and the scheduler: native gangs are alpha in 1.36, and beta but off
# by default in 1.37.
gang_gates() {
  case ${gangs:+$kubernetes} in
    '') ;;
    1.36) echo --feature-gates=GenericWorkload=true,GangScheduling=true ;;
    *) echo --feature-gates=GenericWorkload=true ;;
  esac
}

# Option of the API server.
gang_api() {
  case ${gangs:+$kubernetes} in
    '') ;;
    1.36) echo --runtime-config=scheduling.k8s.io/v1alpha2=true ;;
    *) echo --runtime-config=scheduling.k8s.io/v1beta1=true ;;
  esac
}

write_kubeconfig() {
  cat >"$1" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: allranks, cluster: {server: "$server", certificate-authority: "$dir/control-plane/certificates/apiserver.crt"}}]
users: [{name: "$user", user: {token: "$token"}}]
contexts: [{name: allranks, context: {cluster: allranks, user: "$user"}}]
current-context: allranks
YAML
}

# Finds the first two numbers of an unused address range. The route reserves it for this cluster: the kernel rejects a
# second route for the same addresses.
reserve_network() {
  local i
  ip link add "$cable" type veth peer name "$cable-p"
  ip link set "$cable" up
  for ((i = 220; i < 236; i++)); do
    [[ -z $(ip -4 route show root "10.$i.0.0/16") ]] || continue
    network=10.$i
    ! ip route add "$network.0.0/24" dev "$cable" 2>/dev/null || return 0
  done
  fail "10.220.0.0/16 to 10.235.0.0/16 all have routes on this machine: stop another cluster"
}

# Address of a node, by number.
address_of() { echo "$network.0.$((10 + $1))"; }

# 4,094 addresses, because a pod's address is free again only when the whole pod is gone.
pods_of() { echo "$network.$((16 * $1)).0/20"; }

cni_plugins() {
  local folder
  for folder in /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do
    [[ ! -x $folder/ptp ]] || { echo "$folder"; return; }
  done
  fail "no CNI plugins in /usr/lib/cni or /opt/cni/bin (Debian: containernetworking-plugins)"
}

# An overlay cannot be mounted on an overlay: inside a container files are copied.
snapshotter() { if [[ $(stat --file-system --format=%T "$dir") == overlayfs ]]; then echo native; else echo overlayfs; fi; }

# Layers are read-only, so nodes share their files. Each node has its own copy of containerd's databases.
give_store() {
  local name file
  exec 8>"$store.lock"
  flock --shared 8
  for name in "${machines[@]:1}"; do
    mkdir -p "$dir/$name/lib"
    cp --archive --link "$store/containerd" "$dir/$name/lib/containerd" 2>/dev/null ||
      fail "$store and $dir must be on one file system: choose another --dir"
    find "$dir/$name/lib/containerd" -name '*.db' | while read -r file; do
      cp --archive "$file" "$file.own"
      mv "$file.own" "$file"
    done
  done
  exec 8>&-
}

# The control plane's machine has the bridge; this machine and the nodes are connected to it by veth pairs.
connect_machines() {
  local name node switch
  make_cgroups
  start_machine control-plane
  wait_for 300 test -e "$dir/control-plane/switch"
  switch=$(init_of control-plane)
  ip link set "$cable-p" netns "$switch" name host
  ip address add "$network.0.2/24" dev "$cable" noprefixroute
  in_network "$switch" ip link set host master switch up
  for name in "${machines[@]:1}"; do
    node=${name#node-}
    node_start "$name"
    ip route add "$(pods_of "$node")" via "$(address_of "$node")"
  done
}

node_start() {
  local name=$1 switch
  ! process_of "$name" >/dev/null || return 0
  switch=$(init_of control-plane)
  start_machine "$name"
  wait_for 300 init_of "$name"
  in_network "$switch" ip link add "$name" type veth peer name eth0 netns "$(init_of "$name")"
  in_network "$switch" ip link set "$name" master switch up
  rm -f "$dir/$name/stopped"
}

node_stop() {
  touch "$dir/$1/stopped"
  # The veth pair first: a machine without power closes no connections, and the kernel does not wait for open ones.
  in_network "$(init_of control-plane)" ip link delete "$1" 2>/dev/null || true
  end_machine "$1"
  # The kubelet would search for their containers, three seconds each.
  remove_cgroups "$cgroup/$1/"
}

# in_network PID COMMAND...: in the network namespace of a machine, with the processes of this one.
in_network() { nsenter --net --target "$@"; }

in_machine() { nsenter --mount --pid --net --uts --target "$(init_of "$1")" -- "${@:2}"; }

start_machine() {
  local name=$1
  mkdir -p "$dir/$name/log"
  # It writes its own PID file, because it may outlive this script.
  setsid bash -c 'read -r -a stat <"/proc/$$/stat"; echo "$$ ${stat[21]}" >"$1/pid"
      exec unshare --fork --kill-child --pid --mount --mount-proc --net --uts --ipc "${@:2}"' - \
    "$dir/$name" "$dir/machine.sh" "$dir" "$name" </dev/null >"$dir/$name/log/machine.log" 2>&1 9>&- &
}

# process_of MACHINE: the unshare process that holds it, if it runs. PIDs are reused; PID and start time are unique.
process_of() {
  local pid start stat
  { read -r pid start <"$dir/$1/pid" && read -r -a stat <"/proc/$pid/stat"; } 2>/dev/null || return 1
  [[ ${stat[21]} == "$start" && ${stat[2]} != Z ]] && echo "$pid"
}

# init_of MACHINE: its first process, with its PID on this machine.
init_of() {
  local pid init=''
  pid=$(process_of "$1") || return 1
  read -r init _ <"/proc/$pid/task/$pid/children" || true
  # The child exists before exec; only after exec does it have its namespaces.
  [[ -n $init && $(readlink "/proc/$init/exe") == */bash ]] && echo "$init"
}

make_cgroups() {
  local hierarchy name file
  if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
    for name in "${machines[@]:1}"; do mkdir -p "/sys/fs/cgroup/$cgroup/$name"; done
    for file in /sys/fs/cgroup/cgroup.subtree_control "/sys/fs/cgroup/$cgroup/cgroup.subtree_control"; do
      for name in cpu cpuset memory pids io hugetlb; do echo "+$name" >"$file" 2>/dev/null || true; done
    done
    return
  fi
  for hierarchy in /sys/fs/cgroup/*/; do
    for name in "$cgroup" "${machines[@]/#/$cgroup/}"; do
      mkdir -p "$hierarchy$name"
      # Empty in a new cgroup, in which nothing can run before they are set.
      for file in cpuset.cpus cpuset.mems; do
        [[ ! -e $hierarchy$file ]] || cat "$hierarchy$file" >"$hierarchy$name/$file"
      done
    done
  done
}

# An image with only busybox, under two names: the second one is the pause image.
busybox_image() {
  local work=$dir/busybox busybox applet architecture
  busybox=$(command -v busybox)
  ! ldd "$busybox" >/dev/null 2>&1 || fail "$busybox is not statically linked (Debian: busybox-static)"
  mkdir -p "$work"/root/{bin,etc,tmp}
  chmod 1777 "$work/root/tmp"
  cp "$busybox" "$work/root/bin/busybox"
  for applet in $("$busybox" --list); do [[ $applet == busybox ]] || ln -s busybox "$work/root/bin/$applet"; done
  tar --create --numeric-owner --owner=0 --group=0 --directory="$work/root" --file="$work/layer.tar" .
  case $(uname -m) in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) architecture=$(uname -m) ;;
  esac
  cat >"$work/config.json" <<JSON
{"architecture": "$architecture", "os": "linux", "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["sleep", "2147483647"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum <"$work/layer.tar" | cut -d ' ' -f 1)"]}}
JSON
  cat >"$work/manifest.json" <<'JSON'
[{"Config": "config.json", "RepoTags": ["localhost/busybox:1", "localhost/pause:1"], "Layers": ["layer.tar"]}]
JSON
  tar --create --directory="$work" --file="$dir/busybox.tar" manifest.json config.json layer.tar
  rm -r "$work"
}

node_load() {
  local name snapshotter output
  snapshotter=$(sed -n 's/^snapshotter=//p' "$dir/settings")
  for name in ${on:-$(node_names)}; do
    [[ ! -e $dir/$name/stopped ]] || { say "$name is off, skipped"; continue; }
    output=$(in_machine "$name" ctr --namespace k8s.io images import --snapshotter "$snapshotter" - <"$1" 2>&1) ||
      fail "containerd on $name did not import $1: $(tail -n 3 <<<"$output")"
  done
}

node_names() { (cd "$dir" && printf '%s\n' node-*); }

node_count() { node_names | wc -l; }

containerd_ready() {
  local name
  for name in "${machines[@]:1}"; do wait_for 300 in_machine "$name" ctr version; done
}

nodes_ready() { wait_for 300 kubectl wait --for=condition=Ready --timeout=1s node "${machines[@]:1}"; }

services_ready() {
  wait_for 300 busybox nslookup kubernetes.default.svc.cluster.local "$network.0.1"
  wait_for 300 kubectl get serviceaccount default
}

node_runs() {
  local name
  [[ -e $dir/complete ]] || return 1
  for name in control-plane $(node_names); do
    [[ -e $dir/$name/stopped ]] || init_of "$name" >/dev/null || return 1
  done
  kubectl get --raw /readyz --request-timeout=5s >/dev/null 2>&1
}

node_down() {
  local file left
  for file in "$dir"/*/pid; do
    [[ ! -e $file ]] || end_machine "$(basename "$(dirname "$file")")"
  done
  [[ ! -e /sys/class/net/$cable ]] || ip link delete "$cable" 2>/dev/null || true # the kernel may remove it concurrently
  remove_cgroups "$cgroup"
  left=$(leftovers)
  [[ -z $left ]] || fail "left over from the cluster in $dir: $left"
  say "the files of the nodes are removed"
  remove_folder
  say "down: no process, mount, network interface, cgroup or file is left"
}

# When the first process ends, the kernel ends all others of the machine; its parent waits for that.
end_machine() {
  local name=$1 pid init
  pid=$(process_of "$name") || return 0
  init=$(init_of "$name") || init=$pid
  kill -KILL "$init" 2>/dev/null || true
  for _ in {1..200}; do
    process_of "$name" >/dev/null || return 0
    sleep 0.1
  done
  fail "$name does not end: process $pid"
}

# remove_cgroups PREFIX
remove_cgroups() {
  for _ in {1..50}; do
    find /sys/fs/cgroup -depth -type d -path "*/$1*" -exec rmdir {} + 2>/dev/null || true
    [[ -n $(cgroups "$1") ]] || return 0
    sleep 0.1
  done
}

cgroups() { find /sys/fs/cgroup -maxdepth 4 -type d -path "*/$1*" 2>/dev/null || true; }

leftovers() {
  grep --files-with-matches --no-messages "/$cgroup" /proc/[0-9]*/cgroup || true
  grep --files-with-matches --no-messages --fixed-strings "$dir/" /proc/[0-9]*/mountinfo || true
  ip -oneline link show "$cable" 2>/dev/null || true
  cgroups "$cgroup"
}

### Helpers

# step TITLE COMMAND...: runs the command with its output on stderr, and prints how long it took.
step() {
  local title=$1 begun=${EPOCHREALTIME/[.,]/} took
  shift
  "$@" >&2
  took=$(((${EPOCHREALTIME/[.,]/} - begun) / 100000))
  printf 'cluster: %4d.%d s  %s\n' $((took / 10)) $((took % 10)) "$title" >&2
}

# wait_for SECONDS COMMAND...: repeats the command until it succeeds.
wait_for() {
  local deadline=$((SECONDS + $1)) log
  until "${@:2}" >"$dir/answer" 2>&1; do
    if ((SECONDS >= deadline)); then
      tail -n 2 "$dir"/*/log/*.log >&2
      fail "no success after $1 s: ${*:2}: $(tail -n 3 "$dir/answer")"
    fi
    sleep 0.1
  done
}

say() { echo "cluster: $*" >&2; }

fail() {
  echo "cluster: error: $*" >&2
  exit 1
}

main "$@"
