"""Inputs that the pods of ranks fetch, on the disks of their nodes. `tests/model/scenarios/data_in_pods.yaml` has the
course of events."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from allranks.api.data import InputStatus
from allranks.api.pool import InputCache, PoolSpec
from allranks.api.status import Status
from allranks.cache_key import cache_key
from allranks.core.facts import data_store
from allranks.core.facts.data_store import CacheUse, DataStore, Evictable, evictable
from allranks.core.facts.model import Exit, InitContainer, Platform, Pod
from allranks.core.objects import pods
from allranks.core.reconcile import reconcile
from allranks.core.transfers import input_cache
from allranks.core.transfers import manifests as transfers
from allranks.core.transfers.input_cache import Place
from support.builders import CLUSTER, Life, at, job, pending
from unit.core.test_code_in_pods import mount, trainer, volume
from unit.core.test_transfers import BIRDS, end, running

IMAGE = "allranks/data:1"
STORE = DataStore("", IMAGE, 10**9)
KEY = cache_key("s3://birds/penguins", "list:1")
FOUND = {"fetched": {"revision": "list:1", "bytes": 7}}
NVME = "/mnt/nvme/allranks"


def on(claim: str = "", host_path: str = "", pool: InputCache | None = None, size: int = 10**9) -> Platform:
    store = DataStore(claim, IMAGE, size, host_path)
    return replace(CLUSTER, data=store, pools={"gpu": PoolSpec(input_cache=pool)})


def ready(platform: Platform, **spec: Any) -> Life:
    """A job whose pod has found the revision."""
    life = Life(job(inputs=[BIRDS], **spec), platform=platform)
    life.settle(0)
    end(life, "job-fetch-birds", FOUND)
    life.settle(60)
    return life


def made(life: Life) -> dict[str, Any]:
    return pods.objects(life.job, life.status, life.platform).pods[0]


def request(container: dict[str, Any]) -> Any:
    return json.loads(next(each["value"] for each in container["env"] if each["name"] == transfers.REQUEST))


OF_NODES = InputCache(host_path=NVME)


@pytest.mark.parametrize(
    ("platform", "place"),
    [
        (on(), Place("Pod", 10**9)),
        (on(claim="data"), Place("Claim", 10**9)),
        (on(host_path="/disk"), Place("Node", 10**9, "/disk")),
        (on(claim="data", host_path="/disk"), Place("Node", 10**9, "/disk")),
        (on(claim="data", pool=OF_NODES), Place("Node", 10**9, NVME)),
        (on(host_path="/disk", pool=OF_NODES), Place("Node", 10**9, NVME)),
        (on(claim="data", pool=InputCache(size_limit="1Ki")), Place("Pod", 1024)),
        (on(host_path="/disk", pool=InputCache()), Place("Pod", 10**9)),
        (replace(on(pool=OF_NODES), data=None), None),
        (replace(on(pool=OF_NODES), local=True), None),
    ],
)
def test_the_pool_decides_where_inputs_are_fetched_then_the_settings(platform: Platform, place: Place | None) -> None:
    assert input_cache.place(job(pool="gpu", inputs=[BIRDS]), platform) == place


def test_a_job_without_a_pool_follows_the_settings() -> None:
    assert input_cache.place(job(inputs=[BIRDS]), on(pool=OF_NODES)) == Place("Pod", 10**9)


def test_a_namespace_that_was_made_again_does_not_see_the_data_of_the_earlier_one() -> None:
    paths = [
        volume(made(ready(replace(on(pool=OF_NODES), namespace_uid=uid), pool="gpu")), input_cache.VOLUME)["hostPath"]
        for uid in ("1111", "2222")
    ]
    assert [path["path"] for path in paths] == [f"{NVME}/team.1111", f"{NVME}/team.2222"]


def test_a_pod_mounts_only_the_directory_of_its_own_namespace_and_its_ranks_read_it() -> None:
    life = ready(on(claim="data", pool=OF_NODES), pool="gpu")
    pod = made(life)
    assert volume(pod, input_cache.VOLUME) == {
        "name": input_cache.VOLUME,
        "hostPath": {"path": f"{NVME}/team", "type": "DirectoryOrCreate"},
    }
    assert mount(trainer(pod), input_cache.VOLUME) == {
        "name": input_cache.VOLUME,
        "mountPath": "/data",
        "readOnly": True,
        "subPath": f"{KEY}/files",
    }
    assert volume(pod, transfers.VOLUME) is None
    assert NVME not in json.dumps(made(ready(on(), pool="gpu")))


def test_the_init_container_fetches_the_revision_of_the_status_with_the_secret_of_its_input() -> None:
    life = ready(on(pool=OF_NODES), pool="gpu", resources={"limits": {"cpu": 4, "nvidia.com/gpu": 8}})
    pod = made(life)
    [init] = pod["spec"]["initContainers"]
    assert (init["name"], init["image"]) == ("allranks-fetch-birds", IMAGE)
    assert init["envFrom"] == [{"secretRef": {"name": "aws"}}]
    assert "envFrom" not in trainer(pod)
    assert init["resources"] == {"limits": {"cpu": 4}}
    found = request(init)
    assert (found["act"], found["revision"]) == ("fetch-for-ranks", "list:1")
    assert init["securityContext"]["runAsUser"] == 0  # the kubelet makes the directory
    assert init["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_an_empty_dir_needs_no_rights_and_has_the_size_limit() -> None:
    pod = made(ready(on(pool=InputCache(size_limit="1Gi")), pool="gpu"))
    assert volume(pod, input_cache.VOLUME) == {"name": input_cache.VOLUME, "emptyDir": {"sizeLimit": str(2**30)}}
    [init] = pod["spec"]["initContainers"]
    assert init["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["spec"]["securityContext"]["runAsNonRoot"]


def test_pull_secrets_of_the_helper_are_those_of_the_image_that_fetches() -> None:
    platform = replace(on(), helper_pull_secrets=("mirror",))
    assert made(ready(platform))["spec"]["imagePullSecrets"] == [{"name": "mirror"}]


def test_a_pod_looks_the_revision_up_before_a_rank_exists() -> None:
    life = Life(job(inputs=[{**BIRDS, "sha256": "ab" * 32}]), platform=on())
    life.settle(0)
    assert list(life.pods) == ["job-fetch-birds"]
    [fetch] = reconcile(replace(life.look(0), pods=())).create
    [container] = fetch["spec"]["containers"]
    wanted = {"act": "resolve", "uri": "s3://birds/penguins", "revision": None, "sha256": "ab" * 32, "pin": True}
    assert request(container) == wanted
    assert fetch["spec"]["volumes"] == []


def test_restarts_fetch_the_same_revision() -> None:
    life = ready(on())
    first = request(made(life)["spec"]["initContainers"][0])
    life.run(61)
    life.put(replace(life.pods["job-worker-0-0"], phase="Failed", exit=Exit(1, at(100))))
    life.settle(100)
    life.settle(200)
    assert life.status.attempt == 1
    assert request(made(life)["spec"]["initContainers"][0]) == first


def test_inputs_that_do_not_fit_into_the_empty_dir_together_fail_the_job() -> None:
    two = {"name": "more", "from": "https://h/f", "path": "/more"}
    life = Life(job(inputs=[BIRDS, two]), platform=on(size=10))
    life.settle(0)
    end(life, "job-fetch-birds", FOUND)
    life.settle(60)
    assert life.status.phase == "Pending"
    end(life, "job-fetch-more", {"fetched": {"revision": "etag", "bytes": 4}}, after=70)
    life.settle(70)
    failed = life.status.condition("Failed")
    assert failed
    assert failed.reason == "InputFailed"
    assert failed.message.startswith(
        "spec.inputs[1]: 11 bytes do not fit into the emptyDir of a pod, which may hold 10"
    )


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (None, None),
        (CacheUse(("a", "b"), at(-9000)), Evictable(("a", "b"), int(at(-600).timestamp()))),
        (CacheUse(("a", "b", "c"), at(-9000)), Evictable((), int(at(-9600).timestamp()))),
        (CacheUse(("a", "b", "c")), None),
    ],
)
def test_a_pod_may_evict_only_what_no_unfinished_job_of_its_namespace_can_read(
    use: CacheUse | None, found: Evictable | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pods use their entries when they start. So if unfinished jobs have too many entries to list, what was used
    since the oldest of them was created stays."""
    monkeypatch.setattr(data_store, "_MOST_KEYS_IN_PODS", 2)
    assert evictable(use, at(0)) == found


def test_the_pods_of_a_look_have_what_may_be_evicted_then() -> None:
    life = Life(job(inputs=[BIRDS], pool="gpu"), platform=on(pool=OF_NODES))
    life.settle(0)
    end(life, "job-fetch-birds", FOUND)
    assert life.step(60).write_ahead
    look = replace(life.look(90), pods=(), cache_use=CacheUse((KEY,), at(-9000)))
    ranks = [each for each in reconcile(look).create if each["kind"] == "Pod"]
    assert len(ranks) == 2
    for each in ranks:
        found = request(each["spec"]["initContainers"][0])
        assert (found["used"], found["since"]) == ([KEY], int((at(90) - timedelta(minutes=10)).timestamp()))


def in_crash_loop(said: object, restarts: int = 3) -> Pod:
    last, init = Exit(1, at(70), "InitContainerFailed"), InitContainer("allranks-fetch-birds", 1, json.dumps(said))
    return replace(pending(), container_restarts=restarts, last_exit=last, waiting_reason="CrashLoopBackOff", init=init)


def test_a_kubelet_that_restarts_the_fetch_in_place_uses_no_restarts_of_the_job() -> None:
    """The template of the job has restartPolicy OnFailure."""
    life = ready(on(), restart={"maxRestarts": 0})
    life.put(in_crash_loop({"error": "the connection failed", "final": False}, restarts=50))
    life.settle(80)
    assert life.status.phase == "Pending"
    assert running(life) == ("FetchRetrying", "job-worker-0-0: spec.inputs[0]: the connection failed; try 51 follows")
    life.put(in_crash_loop({"error": "denied", "final": True}))
    life.settle(90)
    failed = life.status.condition("Failed")
    assert failed
    assert (failed.reason, failed.message.partition(" (")[0]) == ("InputFailed", "spec.inputs[0]: denied")


def test_a_kubelet_does_not_restart_the_fetch_for_ever() -> None:
    life = ready(on())
    life.put(in_crash_loop({"error": "the connection failed", "final": False}, restarts=300))
    life.settle(80)
    failed = life.status.condition("Failed")
    assert failed
    assert failed.reason == "InputFailed"
    assert "the connection failed; 300 tries have failed" in failed.message


def test_the_next_pods_prefer_other_nodes_than_one_whose_fetch_failed() -> None:
    life = ready(on(host_path="/disk"))
    broken = json.dumps({"error": "the disk is full", "final": False})
    init = InitContainer("allranks-fetch-birds", 1, broken)
    life.put(replace(pending(), phase="Failed", node="node-1", waiting_reason="InitContainerFailed", init=init))
    life.settle(80)
    assert life.status.last_failure
    assert life.status.last_failure.reason == "FetchFailed"
    assert life.status.avoided_nodes == ["node-1"]


def test_inputs_that_an_earlier_version_fetched_stay_in_the_claim() -> None:
    before = Status(inputs=[InputStatus(name="birds", state="Ready", revision="list:1")])
    of, platform = job(inputs=[BIRDS], pool="gpu"), on(claim="data", pool=OF_NODES)
    pod = pods.objects(of, before, platform).pods[0]
    assert "initContainers" not in pod["spec"]
    found = mount(trainer(pod), transfers.VOLUME)
    assert found
    assert found["subPath"] == f"inputs/{KEY}/files"
    # Without the claim they fetch the same revision.
    again = pods.objects(of, before, on(pool=OF_NODES)).pods[0]
    assert request(again["spec"]["initContainers"][0])["revision"] == "list:1"
