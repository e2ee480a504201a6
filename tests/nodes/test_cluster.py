"""The cluster of tools/cluster.sh does what allranks needs from Kubernetes, and `down` leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import SCRIPT, Cluster, pod
from support.environment import USERS

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(os.geteuid() != 0, reason="only root may start nodes")]

# The programs of busybox resolve names differently; those of the node resolve like a training program.
FOLDERS = ("usr", "lib", "lib64")
NODES_PROGRAMS = {
    "volumes": [{"name": folder, "hostPath": {"path": f"/{folder}"}} for folder in FOLDERS],
    "volumeMounts": [{"name": folder, "mountPath": f"/{folder}", "readOnly": True} for folder in FOLDERS],
}


def machine() -> dict[str, set[str]]:
    """State that a cluster could leave on this machine, besides files."""

    def lines(*command: str) -> set[str]:
        return set(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.splitlines())

    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    settings = [*Path("/proc/sys/vm").glob("overcommit_memory"), *Path("/proc/sys/kernel").glob("panic*")]
    settings.append(Path("/proc/sys/net/ipv4/ip_forward"))
    return {
        "interfaces": {entry["ifname"] for entry in json.loads("".join(lines("ip", "-json", "link", "show")))},
        "routes": lines("ip", "route"),
        "mounts": {mount for mount in mounts if re.search("cluster|containerd|kubelet|netns", mount)},
        "packet filter": lines("nft", "list", "ruleset"),
        "settings": {f"{path} {path.read_text()}" for path in settings},
        "cgroups": {str(path) for path in Path("/sys/fs/cgroup").glob("**/allranks-*")},
    }


def of_another(entry: str, cluster: Cluster) -> bool:
    """Another cluster may start during the test."""
    return bool(re.search(r"\b(ar|allranks)-", entry)) and cluster.mark not in entry


def processes_of(folder: Path) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_text(errors="replace").split("\0")
        except OSError:
            continue
        if any(str(folder) in word for word in command):
            found.append(" ".join(command))
    return found


@pytest.fixture(scope="module")
def before() -> dict[str, set[str]]:
    subprocess.run([SCRIPT.parent / "system-packages.sh", "node"], check=True, timeout=600, env=USERS)
    return machine()


@pytest.fixture(scope="module")
def cluster(before: dict[str, set[str]], store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster") / "two-nodes")
    try:
        cluster.up("--with", "node", "--nodes", "2", "--gpus", "4", "--store", str(store))
        yield cluster
    finally:
        cluster.down()


STORED = "example.com/stored:1"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An archive of an image with a static busybox."""
    folder = tmp_path_factory.mktemp("store")
    shutil.copy(shutil.which("busybox", path="/bin:/usr/bin") or "", folder / "sh")
    (folder / "Dockerfile").write_text("FROM scratch\nENV PATH=/bin\nCOPY sh /bin/sh\n")
    build = ["buildah", "bud", "--isolation", "chroot", "--quiet", "--tag", STORED, str(folder)]
    subprocess.run(build, stdout=subprocess.DEVNULL, timeout=300, check=True)
    try:
        yield Path(stored(folder))
    finally:
        subprocess.run(["buildah", "rmi", STORED], stdout=subprocess.DEVNULL, timeout=300, check=True)


def stored(cache: Path) -> str:
    """The output of tools/image-store.sh."""
    env = {**USERS, "ALLRANKS_CACHE": str(cache)}
    command = [SCRIPT.parent / "image-store.sh", STORED]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    assert bool(done.stderr) != (cache / "imported").exists()  # imported once
    (cache / "imported").touch()
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        cluster = request.getfixturevalue("cluster")
        if (cluster.folder / "complete").exists():
            cluster.ask("delete", "pods", "--all", "--grace-period=0", "--force")


def test_a_second_up_is_the_same_cluster(cluster):
    asked = ("get", "namespace", "kube-system", "--output=jsonpath={.metadata.uid}")
    uid = cluster.kubectl(*asked)
    machines = {file: file.read_text() for file in cluster.folder.glob("*/pid")}
    assert machines
    assert f"export KUBECONFIG={cluster.folder}/kubeconfig\n" in cluster.up("--nodes", "2")
    assert {file: file.read_text() for file in cluster.folder.glob("*/pid")} == machines
    assert cluster.kubectl(*asked) == uid


def test_a_running_cluster_is_not_resized(cluster):
    done = cluster.script("up", "--nodes", "3")
    assert done.returncode == 1
    assert "the cluster runs with 2 node(s): for 3, call 'tools/cluster.sh down' first" in done.stderr


def test_status_and_kubeconfig_describe_the_cluster(cluster):
    done = cluster.script("status")
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["node-1", "Ready"], ["node-2", "Ready"]]
    assert cluster.script("kubeconfig").stdout == f"{cluster.folder}/kubeconfig\n"


def test_a_pod_runs_and_its_logs_are_read(cluster):
    cluster.apply(pod("hello", "echo hello from $HOSTNAME; exit 3"))
    cluster.wait("pod/hello", "--for=jsonpath={.status.phase}=Failed")
    assert cluster.kubectl("logs", "hello") == "hello from hello\n"
    code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
    assert cluster.kubectl("get", "pod", "hello", f"--output={code}") == "3"


def test_a_command_runs_in_a_pod(cluster):
    cluster.apply(pod("shell", "sleep 600"))
    cluster.wait("pod/shell", "--for=condition=Ready")
    assert cluster.kubectl("exec", "shell", "--stdin", "--", "tr", "a-z", "A-Z", input="through\n") == "THROUGH\n"


def test_pods_on_two_nodes_find_each_other_by_name_before_they_are_ready(cluster):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "job"},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "job"}},
    }
    never = {"exec": {"command": ["false"]}}
    pods = [
        pod(
            f"rank-{number}",
            "sleep 600",
            hostname=f"rank-{number}",
            subdomain="job",
            nodeName=f"node-{number + 1}",
            readinessProbe=never,
            **NODES_PROGRAMS,
        )
        for number in (0, 1)
    ]
    cluster.apply(service, *pods)
    cluster.wait("pod/rank-0", "pod/rank-1", "--for=jsonpath={.status.phase}=Running")
    address = cluster.kubectl("get", "pod", "rank-1", "--output=jsonpath={.status.podIP}")
    found = cluster.eventually("exec", "rank-0", "--", "getent", "hosts", "rank-1.job.default", contains=address)
    assert found.split() == [address, "rank-1.job.default.svc.cluster.local"]
    assert "1 packets received" in cluster.kubectl(
        "exec", "rank-0", "--", "busybox", "ping", "-c", "1", "-W", "5", address
    )
    ready = "jsonpath={.items[*].status.containerStatuses[0].ready}"
    assert cluster.kubectl("get", "pods", "--selector=app=job", f"--output={ready}") == "false false"


def test_an_unused_name_is_not_found_and_not_an_error(cluster):
    cluster.apply(pod("asking", "getent hosts missing.example.org", **NODES_PROGRAMS))
    cluster.wait("pod/asking", "--for=jsonpath={.status.phase}=Failed")
    code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
    assert cluster.kubectl("get", "pod", "asking", f"--output={code}") == "2"


def test_pods_reach_the_api_server_by_its_service(cluster):
    ask = 'curl --silent --cacert $D/ca.crt --header "Authorization: Bearer $(cat $D/token)" https://kubernetes.default/api'
    cluster.apply(pod("client", f"D=/var/run/secrets/kubernetes.io/serviceaccount; {ask}", **NODES_PROGRAMS))
    cluster.wait("pod/client", "--for=jsonpath={.status.phase}=Succeeded")
    assert json.loads(cluster.kubectl("logs", "client"))["kind"] == "APIVersions"


def test_a_volume_is_shared_by_nodes_survives_pods_and_is_deleted_with_its_claim(cluster):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volume = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    cluster.apply(claim, pod("writer", "echo kept >/data/file", **volume))
    cluster.wait("pod/writer", "--for=jsonpath={.status.phase}=Succeeded")
    assert cluster.kubectl("get", "pvc", "data", "--output=jsonpath={.status.phase}") == "Bound"
    writers_node = cluster.kubectl("get", "pod", "writer", "--output=jsonpath={.spec.nodeName}")
    cluster.delete_pods("writer")
    other_node = {"node-1": "node-2", "node-2": "node-1"}[writers_node]
    cluster.apply(pod("reader", "cat /data/file", nodeName=other_node, **volume))
    cluster.wait("pod/reader", "--for=jsonpath={.status.phase}=Succeeded")
    assert cluster.kubectl("logs", "reader") == "kept\n"
    assert len(list((cluster.folder / "volumes").iterdir())) == 1
    cluster.delete_pods("reader")
    cluster.kubectl("delete", "pvc", "data")
    deadline = time.monotonic() + 900
    while list((cluster.folder / "volumes").iterdir()):
        assert time.monotonic() < deadline, cluster.kubectl("get", "pv,events", "--all-namespaces")
        time.sleep(0.2)


def test_pods_are_scheduled_by_simulated_gpus(cluster):
    def trainer(name: str, gpus: int) -> dict:
        return pod(name, "sleep 600", resources={"limits": {"nvidia.com/gpu": gpus}})

    cluster.apply(trainer("first", 3), trainer("second", 3))
    cluster.wait("pod/first", "pod/second", "--for=condition=Ready")
    nodes = cluster.kubectl("get", "pods", "--output=jsonpath={.items[*].spec.nodeName}")
    assert sorted(nodes.split()) == ["node-1", "node-2"]
    cluster.apply(trainer("third", 2))
    message = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}"
    condition = cluster.eventually("get", "pod", "third", f"--output={message}", contains="nodes are available")
    assert "0/2 nodes are available: 2 Insufficient nvidia.com/gpu" in condition
    cluster.delete_pods("first")
    cluster.wait("pod/third", "--for=condition=Ready")


def test_an_image_from_a_file_runs_on_every_node(cluster, tmp_path):
    subprocess.run(["tar", "-xf", cluster.folder / "busybox.tar", "-C", tmp_path], check=True)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest[0]["RepoTags"] = ["example.com/trainer:7"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(tmp_path / "trainer.tar", "w") as archive:
        for name in ("manifest.json", "config.json", "layer.tar"):
            archive.add(tmp_path / name, name)
    done = cluster.script("load", str(tmp_path / "trainer.tar"))
    assert done.returncode == 0, done.stderr
    names = [f"trainer-{number}" for number in (1, 2)]
    cluster.apply(
        *(pod(name, "true", image="example.com/trainer:7", nodeName=name.replace("trainer", "node")) for name in names)
    )
    cluster.wait(*(f"pod/{name}" for name in names), "--for=jsonpath={.status.phase}=Succeeded")


def test_nodes_start_with_the_images_of_a_store_and_do_not_share_their_writes(cluster, store):
    assert stored(store.parent) == str(store)
    write = "test ! -e /bin/mine && echo mine > /bin/mine && exit 0"
    of_nodes = {f"stored-{number}": f"node-{number}" for number in (1, 2)}
    cluster.apply(*(pod(name, write, image=STORED, nodeName=node) for name, node in of_nodes.items()))
    cluster.wait(*(f"pod/{name}" for name in of_nodes), "--for=jsonpath={.status.phase}=Succeeded")
    assert not list(store.rglob("mine"))


def test_a_node_that_is_stopped_loses_its_pods_and_comes_back(cluster):
    names = ("here", "there")
    cluster.apply(*(pod(name, "sleep 600", nodeName=f"node-{number}") for number, name in enumerate(names, 1)))
    cluster.wait(*(f"pod/{name}" for name in names), "--for=condition=Ready")
    address = cluster.kubectl("get", "pod", "there", "--output=jsonpath={.status.podIP}")
    ping = ("exec", "here", "--", "busybox", "ping", "-c", "1", "-W", "2", address)
    assert "1 packets received" in cluster.kubectl(*ping)
    assert cluster.script("stop", "node-2").returncode == 0
    assert "0 packets received" in cluster.ask(*ping).stdout
    assert cluster.script("status").returncode == 0
    done = cluster.script("start", "node-2")
    assert done.returncode == 0, done.stderr
    cluster.wait("pod/there", "--for=jsonpath={.status.phase}=Failed")
    gpus = pod(
        "again",
        "sleep 600",
        nodeSelector={"kubernetes.io/hostname": "node-2"},
        resources={"limits": {"nvidia.com/gpu": 4}},
    )
    cluster.apply(gpus)
    cluster.wait("pod/again", "--for=condition=Ready")


def test_an_unknown_node_cannot_be_stopped(cluster):
    done = cluster.script("stop", "node-7")
    assert done.returncode == 1
    assert "no node 'node-7'; available: node/node-1 node/node-2" in done.stderr


def test_a_partial_cluster_is_removed_and_started_again(cluster, tmp_path):
    """A second cluster that does not affect the first."""
    other = Cluster(tmp_path / "other")
    try:
        with start_until(other, "machines connected") as process:
            process.kill()
        assert processes_of(other.folder)
        done = other.script("status")
        assert (done.returncode, done.stderr) == (1, "cluster: does not run\n")
        started = other.script("up")
        assert started.returncode == 0, started.stderr
        assert "is a partial cluster: removing it and starting again" in started.stderr
        assert "down: no process, mount, network interface, cgroup or file is left" in started.stderr
    finally:
        other.down()
    assert processes_of(other.folder) == []
    assert cluster.script("status").returncode == 0


def test_an_interrupted_up_leaves_only_logs(before, tmp_path):
    cluster = Cluster(tmp_path / "cluster")
    try:
        with start_until(cluster, "machines connected") as process:
            process.terminate()
            assert process.wait(timeout=300) == 130
        assert processes_of(cluster.folder) == []
        assert not cluster.folder.exists()
        assert (tmp_path / "cluster.failed" / "etcd.log").exists()
    finally:
        cluster.down()


@contextlib.contextmanager
def start_until(cluster: Cluster, words: str) -> Iterator[subprocess.Popen[str]]:
    command = [SCRIPT, "up", "--dir", cluster.folder]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=USERS) as process:
        assert process.stderr
        assert any(words in line for line in process.stderr)
        yield process


def test_without_a_cluster_there_is_no_status_no_kubeconfig_and_no_image_load(tmp_path):
    cluster = Cluster(tmp_path / "none")
    for command, words in {
        ("status",): "does not run",
        ("kubeconfig",): "'tools/cluster.sh up' starts it",
        ("load", "image.tar"): "'tools/cluster.sh up' starts it",
    }.items():
        done = cluster.script(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
    cluster.down()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["up", "down"])
def test_an_unrelated_folder_is_not_changed(tmp_path, command):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years")
    done = Cluster(tmp_path / "folder").script(command)
    assert done.returncode == 1
    assert "exists and is not the folder of a cluster: choose another --dir" in done.stderr
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "years"


def test_a_user_other_than_root_gets_an_error(tmp_path):
    command = ["unshare", "--user", "--map-user=65534", SCRIPT, "up", "--with", "node", "--dir", tmp_path / "cluster"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "only root can create namespaces and run containers: sudo -E tools/cluster.sh up" in done.stderr
    assert not (tmp_path / "cluster").exists()


def test_down_leaves_nothing(cluster, before):
    cluster.apply(pod("running", "sleep 600"))
    cluster.wait("pod/running", "--for=condition=Ready")
    assert "no process, mount, network interface, cgroup or file is left" in cluster.down()
    after = machine()
    left = {what: [entry for entry in after[what] - before[what] if not of_another(entry, cluster)] for what in after}
    assert {what: entries for what, entries in left.items() if entries} == {}
    assert processes_of(cluster.folder) == []
    assert list(cluster.folder.parent.iterdir()) == []
