"""Code in ConfigMaps of a real API server: who owns it, what interruptions leave behind, and when it is deleted."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.api.status import Status
from allranks.client.submission import Session
from allranks.code import ship
from allranks.code.bundle import Bundle, collect
from allranks.core.objects import pods
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Where
from allranks.sdk.job import job as find
from support.api import path
from support.builders import CLUSTER, manifest
from support.builders import job as parsed
from support.commands import text
from unit.code.test_bundle import committed

SECONDS = 300.0


def document(name: str = "penguins", **spec: Any) -> dict[str, Any]:
    made = manifest(name=name, **spec)
    made["metadata"] = {"name": name}
    return made


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


class World:
    """The namespace, by the API and by the functions of the client."""

    def __init__(self, control_plane: Any, namespace: str, code: Path) -> None:
        self.api, self.namespace, self.kubeconfig = control_plane.api, namespace, str(control_plane.kubeconfig)
        self.bundle = collect(code)

    def stored(self) -> dict[str, dict[str, Any]]:
        found = self.api.list("ConfigMap", self.namespace, labelSelector=ship.LABEL)
        return {one["metadata"]["name"]: one for one in found}

    def owners(self) -> list[str]:
        [config_map] = self.stored().values()
        return sorted(owner["name"] for owner in config_map["metadata"].get("ownerReferences", []))

    def job(self, name: str) -> dict[str, Any]:
        """A job with the code whose client was interrupted before it became an owner."""
        return self.api.create(document(name, code=self.bundle.spec), self.namespace)

    def run(self, work: Callable[[Cluster], Awaitable[None]]) -> None:
        async def connected() -> None:
            where = Where(namespace=self.namespace, kubeconfig=self.kubeconfig)
            async with Cluster.connect(where) as cluster, asyncio.timeout(SECONDS):
                await work(cluster)

        asyncio.run(connected())

    def submit(self, *names: str, bundle: Bundle | None = None) -> None:
        """All jobs at the same time."""
        bundle = bundle or self.bundle

        async def work(cluster: Cluster) -> None:
            session = Session(cluster, False, {bundle.config_map: bundle})
            await asyncio.gather(*(session.apply(document(name, code=bundle.spec)) for name in names))

        self.run(work)


@pytest.fixture
def world(control_plane, namespace, code) -> World:
    return World(control_plane, namespace, code)


async def unreachable() -> dict[str, Any]:
    raise AssertionError("the job must not be created")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.2)


def test_submit_stores_the_code_in_a_config_map_that_the_job_owns(allranks, world, code) -> None:
    result = allranks("submit", "-", "--code", str(code), stdin=text(document()))
    assert (result.exit_code, result.stdout) == (0, "distributedtraining.allranks.dev/penguins created\n")
    [(name, config_map)] = world.stored().items()
    job = world.api.get("DistributedTraining", world.namespace, "penguins")
    assert job["spec"]["code"] == {"configMap": name, "sha256": world.bundle.sha256, "path": "/workspace"}
    assert config_map["immutable"]
    archive = base64.b64decode(config_map["binaryData"]["code.tar.gz"])
    assert hashlib.sha256(gzip.decompress(archive)).hexdigest() == world.bundle.sha256
    [owner] = config_map["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("DistributedTraining", job["metadata"]["uid"])
    again = allranks("submit", "-", "--code", str(code), stdin=text(document()))
    assert again.stdout == "distributedtraining.allranks.dev/penguins unchanged\n"
    assert world.stored()[name]["metadata"]["ownerReferences"] == [owner]


def test_the_report_reads_the_differences_of_the_code_from_the_config_map(allranks, world, code) -> None:
    committed(code, {})
    (code / "train.py").write_text("print(2)\n")
    assert allranks("submit", "-", "--code", str(code), stdin=text(document())).exit_code == 0
    result = allranks("report", "penguins", "-o", "diff")
    assert result.exit_code == 0
    assert result.stdout.startswith("# differences from commit ")
    assert result.stdout.endswith("\n-print(1)\n+print(2)\n")
    where = {"namespace": world.namespace, "kubeconfig": world.kubeconfig}
    assert find("penguins", **where).report().diff == result.stdout


def test_the_api_server_keeps_the_volume_of_code_in_an_image(world) -> None:
    """Kubernetes drops a field that it does not know."""
    spec = {"code": {"image": "registry.example.com/me/code:7", "subPath": "src"}}
    created = world.api.create(document("pulled", **spec), world.namespace)
    [pod, *_] = pods.objects(parsed(name="pulled", **created["spec"]), Status(), CLUSTER).pods
    pod["metadata"] = {**pod["metadata"], "namespace": world.namespace}
    query = "?dryRun=All&fieldValidation=Strict"
    stored = world.api.request("POST", path("Pod", world.namespace) + query, json.loads(json.dumps(pod)))
    [volume] = [one for one in stored["spec"]["volumes"] if one["name"] == "allranks-code"]
    assert volume["image"] == {"reference": "registry.example.com/me/code:7", "pullPolicy": "IfNotPresent"}
    [mount] = [one for one in stored["spec"]["containers"][0]["volumeMounts"] if one["name"] == "allranks-code"]
    assert (mount["mountPath"], mount["subPath"], mount["readOnly"]) == ("/workspace", "src", True)


def test_a_dry_run_stores_nothing(allranks, world, code) -> None:
    result = allranks("submit", "-", "--dry-run", "--code", str(code), stdin=text(document()))
    assert (result.exit_code, world.stored()) == (0, {})


def test_code_of_the_largest_size_is_accepted_and_larger_code_is_not_sent(allranks, world, code) -> None:
    (code / "data.bin").write_bytes(os.urandom(2**20 - 20_000))
    assert allranks("submit", "-", "--code", str(code), stdin=text(document())).exit_code == 0
    (code / "more.bin").write_bytes(os.urandom(50_000))
    result = allranks("submit", "-", "--code", str(code), stdin=text(document("other")))
    assert result.exit_code == 2
    assert (
        "and a ConfigMap takes 1.0 MiB. The largest files: data.bin (1004.5 KiB), more.bin (48.8 KiB)" in result.stderr
    )
    assert world.api.find("DistributedTraining", world.namespace, "other") is None


def test_jobs_that_are_submitted_at_once_share_the_code_and_the_last_one_takes_it_away(world) -> None:
    world.submit(*(f"trial-{number}" for number in range(8)))
    assert world.owners() == [f"trial-{number}" for number in range(8)]
    for number in range(7):
        world.api.delete("DistributedTraining", world.namespace, f"trial-{number}", propagation="Background")
    wait_for(lambda: world.owners() == ["trial-7"])
    world.api.delete("DistributedTraining", world.namespace, "trial-7", propagation="Background")
    wait_for(lambda: world.stored() == {})


def test_a_job_that_is_rejected_leaves_no_code(allranks, world, code) -> None:
    allranks("submit", "-", "--code", str(code), stdin=text(document()))
    before = world.stored()
    (code / "train.py").write_text("print(2)\n")
    result = allranks("submit", "-", "--code", str(code), stdin=text(document(image="example.org/other:1")))
    assert result.exit_code == 1
    assert "already exists and differs: spec.image: cannot be changed in an existing job" in result.stderr
    assert world.stored() == before


def test_a_job_whose_client_was_interrupted_becomes_an_owner_when_it_is_submitted_again(world) -> None:
    world.api.create(ship.manifest(world.bundle, world.namespace))
    world.job("penguins")
    assert world.owners() == []
    world.submit("penguins")
    assert world.owners() == ["penguins"]


def test_it_becomes_an_owner_when_another_job_with_the_same_code_is_submitted(world) -> None:
    """Otherwise the code would be deleted with the other job."""
    world.api.create(ship.manifest(world.bundle, world.namespace))
    world.job("interrupted")
    world.submit("other")
    assert world.owners() == ["interrupted", "other"]


def test_code_that_disappears_before_the_job_owns_it_is_stored_again(world) -> None:
    """The garbage collector deletes it with the last other job."""

    async def work(cluster: Cluster) -> None:
        async def create() -> dict[str, Any]:
            world.api.delete("ConfigMap", world.namespace, world.bundle.config_map)
            return world.job("penguins")

        await ship.create_with_code(cluster, world.namespace, world.bundle, create)

    world.run(work)
    assert world.owners() == ["penguins"]


def test_abandoned_code_is_deleted_by_the_next_submission_but_not_what_is_used_or_new(world, code, monkeypatch) -> None:
    def other(content: str) -> Bundle:
        return world.bundle.with_file("train.py", content.encode())

    abandoned, used = other("abandoned"), other("used")
    for bundle in (abandoned, used):
        world.api.create(ship.manifest(bundle, world.namespace))
    world.api.create(document("interrupted", code=used.spec), world.namespace)
    world.submit("first")  # both are new
    assert world.stored().keys() == {one.config_map for one in (world.bundle, abandoned, used)}
    monkeypatch.setattr(ship, "_SWEEP_AGE", timedelta(seconds=-10))
    world.submit("second", bundle=other("3"))
    assert world.stored().keys() == {one.config_map for one in (world.bundle, used, other("3"))}


def test_a_client_that_is_interrupted_before_the_job_leaves_nothing(world) -> None:
    async def work(cluster: Cluster) -> None:
        def check() -> None:
            if world.stored():
                raise asyncio.CancelledError

        await ship.create_with_code(cluster, world.namespace, world.bundle, unreachable, check=check)

    with pytest.raises(asyncio.CancelledError):
        world.run(work)
    assert world.stored() == {}


def test_a_quota_of_config_maps_rejects_the_code_before_the_job(allranks, world, code) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    world.api.create({**quota, "spec": {"hard": {"count/configmaps": "0"}}}, world.namespace)

    def rejected() -> bool:
        return allranks("submit", "-", "--code", str(code), stdin=text(document())).exit_code == 1

    # A quota is enforced as soon as the API server has it, with or without its controller.
    wait_for(rejected)
    result = allranks("submit", "-", "--code", str(code), stdin=text(document()))
    assert "the code cannot be stored in a ConfigMap: " in result.stderr
    assert world.api.find("DistributedTraining", world.namespace, "penguins") is None


def test_the_api_server_accepts_the_pods_with_code(world) -> None:
    golden = Path(__file__).parents[1] / "model" / "golden" / "manifests" / "code.yaml"
    for number, one in enumerate(yaml.safe_load_all(golden.read_text())):
        job = parsed(name=f"job-{number}", **{key: one["spec"][key] for key in one["spec"] if key != "framework"})
        for pod in pods.objects(job, Status(), CLUSTER).pods:
            pod["metadata"] = {**pod["metadata"], "namespace": world.namespace}
            query = "?dryRun=All&fieldValidation=Strict"
            stored = world.api.request("POST", path("Pod", world.namespace) + query, json.loads(json.dumps(pod)))
            assert stored["spec"]["volumes"][1]["name"] in ("checkpoint", "allranks-code")


def test_the_api_server_applies_the_rules_of_code_and_packages(world) -> None:
    def refused(**spec: Any) -> str:
        with pytest.raises(Exception) as error:  # noqa: PT011
            world.api.create(document("bad", **spec), world.namespace)
        return str(error.value)

    assert "spec.code: set exactly one of configMap, claim and image" in refused(code={})
    assert "does not lead upwards" in refused(code={"claim": "a", "subPath": "../b"})
    assert "without options of pip" in refused(packages=["-r x"])
    world.api.create(document("good", code={"claim": "a"}, packages=["timm==1.0"]), world.namespace)
    with pytest.raises(Exception, match=r"spec\.code\.path: cannot be changed in an existing job"):
        world.api.patch("DistributedTraining", world.namespace, "good", {"spec": {"code": {"path": "/other"}}})


def test_without_the_right_to_store_code_the_message_names_the_ways_out(world) -> None:
    class Refusing:
        async def request(self, *_: object, **__: object) -> None:
            raise ClusterError("configmaps is forbidden", 403, "Forbidden")

    async def work(_: Cluster) -> None:
        await ship.create_with_code(Refusing(), world.namespace, world.bundle, unreachable)  # type: ignore[arg-type]

    with pytest.raises(
        ClusterError, match="rights to create and patch ConfigMaps, or use code from a claim or an image"
    ):
        world.run(work)
