#!/usr/bin/env bash
# The first process of one machine of the cluster: the control plane or a node, in PID, mount, network and host name
# namespaces of its own. `tools/cluster.sh` starts it with unshare, and connects it to the network. When it is killed,
# the kernel ends everything that runs in it and removes its mounts, its network and its packet filter.
set -euo pipefail

usage='usage: machine.sh DIR NAME     (by tools/cluster.sh only)'

main() {
  dir=${1:?$usage} name=${2:?$usage} home=$1/$2
  # shellcheck source=/dev/null # network, nodes, cgroup, cni_plugins, snapshotter, gates, served, address_of, pods_of
  source "$dir/settings"
  number=${name#node-}
  export PATH=$dir/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$home
  cd "$home"
  hostname "$name"
  own_folders
  ip link set lo up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  if [[ $name == control-plane ]]; then
    switch
    control_plane
  else
    connect
    node
  fi
  wait # forever: `keep` does not end
}

# Redirects these folders to folders of this machine.
own_folders() {
  local setting file
  mount --make-rshared / # within this namespace only; required by the kubelet
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/netns /run/lock "$home"/{lib,log}
  mount --bind "$home/lib" /var/lib
  mount --bind "$home/log" /var/log
  # The kubelet sets these kernel-wide, unless they already have the values that it needs.
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/sysctl/${setting%=*}
    mkdir -p "${file%/*}"
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
  done
}

# All machines are connected to a bridge in the control plane's namespace, so that the host has one interface and no bridge.
switch() {
  local node
  ip link add switch address 02:00:00:00:00:01 type bridge
  ip address add "$network.0.1/24" dev switch
  ip link set switch up
  for ((node = 1; node <= nodes; node++)); do
    ip route add "$(pods_of "$node")" via "$(address_of "$node")"
  done
  touch "$home/switch"
}

control_plane() {
  local certificates=$home/certificates
  # --enable-aggregator-routing: webhooks are called at their pod addresses, because there is no kube-proxy here.
  keep etcd --data-dir="$home/etcd" --unsafe-no-fsync --log-level=warn
  keep kube-apiserver \
    --etcd-servers=http://127.0.0.1:2379 \
    --bind-address=0.0.0.0 \
    --advertise-address="$network.0.1" \
    --cert-dir="$certificates" \
    --token-auth-file="$dir/tokens" \
    --kubelet-client-certificate="$dir/kubelet-client.crt" \
    --kubelet-client-key="$dir/kubelet-client.key" \
    --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$dir/service-accounts.key" \
    --service-account-signing-key-file="$dir/service-accounts.key" \
    --authorization-mode=Node,RBAC \
    --service-cluster-ip-range=10.96.0.0/16 \
    --enable-aggregator-routing \
    --allow-privileged \
    "${gates[@]}" "${served[@]}"
  wait_for test -s "$certificates/apiserver.crt"
  keep kube-controller-manager \
    --kubeconfig="$dir/kubeconfigs/kube-controller-manager" \
    --use-service-account-credentials \
    --root-ca-file="$certificates/apiserver.crt" \
    --service-account-private-key-file="$dir/service-accounts.key" \
    --leader-elect=false \
    "${gates[@]}"
  keep kube-scheduler --kubeconfig="$dir/kubeconfigs/kube-scheduler" --leader-elect=false "${gates[@]}"
  keep coredns -conf "$dir/Corefile"
  POD_NAMESPACE=local-path-storage keep local-path-provisioner start \
    --kubeconfig "$dir/kubeconfigs/local-path-provisioner" --service-account-name default
}

connect() {
  local node
  wait_for ip link show eth0
  ip address add "$(address_of "$number")/24" dev eth0
  ip link set eth0 up
  ip route add default via "$network.0.1"
  for ((node = 1; node <= nodes; node++)); do
    ((node == number)) || ip route add "$(pods_of "$node")" via "$(address_of "$node")"
  done
}

node() {
  write_settings
  keep containerd --config "$home/containerd.toml"
  wait_for test -s "$dir/control-plane/certificates/apiserver.crt"
  keep kubelet \
    --config "$home/kubelet.yaml" \
    --kubeconfig "$dir/kubeconfigs/$name" \
    --hostname-override "$name" \
    --node-ip "$(address_of "$number")"
  keep kube-proxy --config "$home/kube-proxy.yaml"
}

write_settings() {
  mkdir -p /run/cni
  # Each pod has its own veth pair to the node. On a bridge, responses between pods of the same node would bypass
  # kube-proxy.
  cat >/run/cni/allranks.conflist <<JSON
{
  "cniVersion": "0.4.0",
  "name": "allranks",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/addresses",
        "ranges": [[{"subnet": "$(pods_of "$number")"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
JSON
  cat >containerd.toml <<TOML
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  # If root may not lower the OOM score of a process (no CAP_SYS_RESOURCE), runc would otherwise fail:
  # "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "$cni_plugins"
  conf_dir = "/run/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "$snapshotter"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
TOML
  cat >kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(address_of "$number")
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $dir/kubelet-client.crt}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup/$name
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [$network.0.1]
resolvConf: $dir/resolv.conf
maxPods: 200
# The disk belongs to the host, and other programs may fill it. Images cannot be pulled again.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
YAML
  cat >kube-proxy.yaml <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: $name
clusterCIDR: $network.0.0/16
clientConnection: {kubeconfig: $dir/kubeconfigs/kube-proxy}
# These settings are kernel-wide, not per machine.
conntrack: {maxPerCore: 0, min: 0}
YAML
}

# keep PROGRAM ARGUMENT...: runs it in the background and restarts it, like a service manager.
keep() {
  {
    while :; do
      "$@" && code=0 || code=$?
      echo "machine.sh: $1 ended with code $code"
      sleep 1
    done
  } >>"/var/log/$1.log" 2>&1 </dev/null &
}

# wait_for COMMAND...: repeats the command for up to 300 s until it succeeds.
wait_for() {
  local deadline=$((SECONDS + 300))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { echo "machine.sh: no success after 300 s: $*" >&2; exit 1; }
    sleep 0.05
  done
}

main "$@"
