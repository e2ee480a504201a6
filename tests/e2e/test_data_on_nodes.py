"""Inputs that pods fetch into a directory of their node, or into an emptyDir: no claim is needed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.data_servers import Behaviour, http_server

from .cluster import IMAGE, KEPT_FREE, PATIENCE, REPOSITORY, Cluster
from .jobs import Team, training

pytestmark = pytest.mark.nightly
SIZE = 1_000_000


def on(node: str) -> dict[str, Any]:
    """A pod template for this node."""
    there = {"key": KEPT_FREE, "value": node, "effect": "NoSchedule"}
    return {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "tolerations": [there]}}


@pytest.fixture
def nodes(cluster: Cluster, team: Team) -> Iterator[str]:
    """The pool of nodes whose folder /var/lib is their own, in a namespace that admits hostPath volumes."""
    name = f"nodes-{uuid.uuid4().hex[:8]}"
    assert cluster.folder  # /var/lib goes with it
    team.cluster.kubectl(
        "label", "namespace", team.namespace, "pod-security.kubernetes.io/enforce=privileged", "--overwrite"
    )
    yield from pool(cluster, name, {"hostPath": f"/var/lib/{name}"})


@pytest.fixture
def plain(cluster: Cluster) -> Iterator[str]:
    """A pool whose pods fetch into an emptyDir."""
    yield from pool(cluster, f"plain-{uuid.uuid4().hex[:8]}", {"sizeLimit": "10M"})


def pool(cluster: Cluster, name: str, cache: dict[str, Any]) -> Iterator[str]:
    kind = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingPool", "metadata": {"name": name}}
    cluster.apply({**kind, "spec": {"inputCache": cache}})
    yield name
    cluster.kubectl("delete", "trainingpool", name)


def reading(name: str, pool: str, source: dict[str, Any], **spec: Any) -> list[dict[str, Any]]:
    """A job whose pods check the size of the table, and that they cannot write."""
    command = f"test $(stat -c %s /data/table) = {SIZE} && ! touch /data/here"
    template = {"spec": {"securityContext": {"runAsUser": 1000}}}
    fields = {"image": IMAGE, "pool": pool, "inputs": [source], "template": template, **spec}
    return training(name, "sh", "-c", command, **fields)


def downloads(web: Behaviour) -> int:
    return sum(wanted != "bytes=0-0" for _, wanted in web.requests)


def table() -> Behaviour:
    return Behaviour(files={"/table": b"p" * SIZE})


def test_pods_of_a_node_fetch_once_and_another_node_fetches_once_more(team: Team, cluster: Cluster, nodes: str) -> None:
    web = table()
    roles = {"master": {"template": on("node-1")}, "worker": {"replicas": 2, "template": on("node-2")}}
    with http_server(web, cluster.our_address) as url:
        source = {"name": "table", "from": f"{url}/table", "path": "/data"}
        status = team.completes(team.start(reading("first", nodes, source, roles=roles)))
        [found] = status["inputs"]
        assert (found["state"], found["location"], found["bytes"]) == ("Ready", "Node", SIZE)
        assert downloads(web) == 2, web.requests
        pods = ("first-worker-0-0", "first-worker-1-0")
        logs = [team.kubectl("logs", pod, "-c", "allranks-fetch-table") for pod in pods]
        assert sorted('"cached": true' in log for log in logs) == [False, True]
        assert status["times"]["starting"] > 0
        # The nodes have the data of the next job already: only its revision is looked up.
        team.completes(team.start(reading("second", nodes, source, roles=roles)))
    assert downloads(web) == 2, web.requests


def test_restricted_pods_without_a_claim_fetch_into_an_empty_dir(team: Team, cluster: Cluster, plain: str) -> None:
    web = table()
    with http_server(web, cluster.our_address) as url:
        source = {"name": "table", "from": f"{url}/table", "path": "/data"}
        status = team.completes(team.start(reading("plain", plain, source, roles={"master": {}, "worker": {}})))
        assert status["inputs"][0]["location"] == "Pod"
        assert downloads(web) == 2, web.requests
        wrong = reading("wrong", plain, {**source, "sha256": "ab" * 32})
        job = team.start(wrong)
        team.wait(f"dt/{job}", "--for=jsonpath={.status.completionTime}")
    failed = next(each for each in team.status(job)["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "InputFailed"
    assert failed["message"].startswith("spec.inputs[0]: ")
    assert "SHA-256" in failed["message"]
    assert team.status(job)["restarts"].get("counted", 0) == 0


def test_a_namespace_that_admits_no_host_path_says_so(team: Team, cluster: Cluster, nodes: str) -> None:
    team.cluster.kubectl(
        "label", "namespace", team.namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite"
    )
    with http_server(table(), cluster.our_address) as url:
        source = {"name": "table", "from": f"{url}/table", "path": "/data"}
        team.reports(team.start(reading("refused", nodes, source)), "violates PodSecurity")


def test_the_policy_of_the_example_admits_only_the_directory_of_the_own_namespace(team: Team, cluster: Cluster) -> None:
    label = f"example.com/{team.namespace}"
    text = (REPOSITORY / "examples" / "data" / "inputs-on-nodes.yaml").read_text()
    text = text.replace("example.com/inputs-on-nodes", label).replace(
        "name: inputs-on-nodes", f"name: {team.namespace}"
    )
    text = text.replace("policyName: inputs-on-nodes", f"policyName: {team.namespace}")
    _, *policy = list(yaml.safe_load_all(text))
    team.cluster.kubectl(
        "label", "namespace", team.namespace, "pod-security.kubernetes.io/enforce=privileged", f"{label}=true",
        "--overwrite",
    )  # fmt: skip
    uid = team.cluster.kubectl("get", "namespace", team.namespace, "-o", "jsonpath={.metadata.uid}").strip()
    own, init = f"/mnt/nvme/allranks/{team.namespace}.{uid}", {"runAsUser": 0, "capabilities": {"drop": ["ALL"]}}

    def created(path: str, **security: Any) -> str:
        """What the API server says of such a pod."""
        volume = {"name": "disk", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        container = {"name": "c", "image": IMAGE, "securityContext": {**init, **security}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
        body = {**pod, "spec": {"containers": [container], "volumes": [volume]}}
        arguments = ("create", "--dry-run=server", "-f", "-", "-n", team.namespace)
        done = cluster.ask(*arguments, input=json.dumps(body))
        return done.stdout + done.stderr

    try:
        for each in policy:
            cluster.apply(each)
        deadline = time.monotonic() + PATIENCE
        while f"the only hostPath of this namespace is /mnt/nvme/allranks/{team.namespace}.UID" not in (
            said := created("/etc")
        ):
            assert time.monotonic() < deadline, said
            time.sleep(0.5)  # the API server compiles the policy
        for path in (
            "other",
            f"other.{uid}",
            team.namespace,
            f"{team.namespace}.{uid}/inputs",
            f"x/{team.namespace}.{uid}",
        ):
            assert "the only hostPath" in created(f"/mnt/nvme/allranks/{path}"), path
        assert "must not contain '..'" in created(f"{own}/../other")  # of Kubernetes itself
        assert "must not be privileged" in created(own, privileged=True)
        assert "AppArmor must not" in created(own, appArmorProfile={"type": "Unconfined"})
        assert "SELinux must have" in created(own, seLinuxOptions={"type": "spc_t"})
        assert "created" in created(own, seLinuxOptions={"type": "container_t", "level": "s0:c1,c2"})
        assert "created" in created(own)
    finally:
        for each in policy:
            cluster.kubectl("delete", each["kind"].lower(), team.namespace, "--ignore-not-found")
