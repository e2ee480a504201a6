"""Optional kinds: discovery, a watch that starts and ends with its API group, and what the operator changes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from allranks.core.facts.model import ObjectPatch
from allranks.core.facts.optional_kinds import LOCAL_QUEUE, WORKLOAD, OptionalKind
from allranks.kube import pod_codec
from allranks.kube.client import Client
from allranks.operator.apply import Executor
from allranks.operator.cache import PodCache
from allranks.operator.job_state import Rejections
from allranks.operator.optional_apis import OptionalApis
from allranks.operator.settings import Settings
from allranks.operator.timing import Timing
from support.fake_api import KueueGroup
from support.scripted import client_of, says, status

UID = "6d9ce3a2-0000-4000-8000-000000000001"


def workload(version: int, uid: str = UID) -> dict[str, Any]:
    owner = {"kind": "DistributedTraining", "name": "demo", "uid": uid, "controller": True}
    metadata = {"name": "dt-demo", "namespace": "team", "uid": "w", "resourceVersion": str(version)}
    pod_sets = [{"name": "worker", "count": 2, "template": {"spec": {"containers": []}}}]
    return {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": {"podSets": pod_sets}}


def api_of(*versions: str) -> KueueGroup:
    return KueueGroup([workload(5)], *versions)


@asynccontextmanager
async def running(api: Any, *kinds: OptionalKind) -> AsyncIterator[tuple[OptionalApis, list[Any]]]:
    changes: list[Any] = []
    async with client_of(api, retry_timeout=0.0) as (client, _), asyncio.timeout(60):
        apis = OptionalApis(
            client, kinds, Settings(), lambda kind, one: changes.append((kind.id, one)), Timing(optional_apis=0.01)
        )
        run = asyncio.create_task(apis.run())
        await apis.synced.wait()
        try:
            yield apis, changes
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_the_preferred_version_that_the_cluster_serves_is_used_and_large_fields_are_dropped() -> None:
    async def scenario() -> None:
        async with running(api_of("v1beta1", "v1beta2"), WORKLOAD) as (apis, _):
            objects = apis.observe(UID)
            assert objects.api_version(WORKLOAD) == "kueue.x-k8s.io/v1beta2"
            [found] = objects.owned(WORKLOAD)
            assert found["apiVersion"] == "kueue.x-k8s.io/v1beta2"
            assert found["spec"]["podSets"] == [{"name": "worker", "count": 2}]
            assert apis.observe("another").owned(WORKLOAD) == ()
        async with running(api_of("v1beta1"), WORKLOAD) as (apis, _):
            assert apis.observe(UID).api_version(WORKLOAD) == "kueue.x-k8s.io/v1beta1"

    asyncio.run(scenario())


def test_a_kind_that_is_not_served_is_named_until_it_appears_and_again_when_it_goes() -> None:
    async def scenario() -> None:
        api = api_of()
        async with running(api, WORKLOAD, LOCAL_QUEUE) as (apis, changes):
            assert "does not serve workloads.kueue.x-k8s.io" in apis.observe(UID).problems[WORKLOAD.id]
            api.versions = ("v1beta2",)
            await until(lambda: apis.observe(UID).owned(WORKLOAD))
            assert WORKLOAD.id not in apis.observe(UID).problems
            assert LOCAL_QUEUE.id in apis.observe(UID).problems, "the group is served, and this kind of it is not"
            assert (WORKLOAD.id, None) in changes
            changes.clear()
            api.versions = ()
            await until(lambda: not apis.observe(UID).api_version(WORKLOAD))  # its watch may fail before
            assert apis.observe(UID).owned(WORKLOAD) == ()
            assert (WORKLOAD.id, None) in changes

    asyncio.run(scenario())


def test_a_missing_right_is_named_and_blocks_nothing() -> None:
    async def scenario() -> None:
        api = api_of("v1beta2")
        api.forbidden = True
        async with running(api, WORKLOAD) as (apis, _):
            assert "cannot read workloads.kueue.x-k8s.io (no right to list)" in apis.observe(UID).problems[WORKLOAD.id]

    asyncio.run(scenario())


def test_an_older_version_never_replaces_a_newer_one() -> None:
    async def scenario() -> None:
        async with running(api_of("v1beta2"), WORKLOAD) as (apis, _):
            newer = {**workload(7), "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "status": {"a": 1}}
            apis.remember(newer)
            apis.remember({**newer, "metadata": {**newer["metadata"], "resourceVersion": "6"}, "status": {}})
            assert apis.observe(UID).owned(WORKLOAD)[0]["status"] == {"a": 1}

    asyncio.run(scenario())


def test_no_request_is_sent_if_no_kind_is_enabled() -> None:
    async def scenario() -> None:
        async with client_of(api_of(), retry_timeout=0.0) as (client, asked):
            apis = OptionalApis(client, (), Settings(), lambda *_: None, Timing(), {WORKLOAD.id: "off"})
            assert apis.synced.is_set()
            run = asyncio.create_task(apis.run())
            await asyncio.sleep(0)
            assert apis.observe(UID).problems == {WORKLOAD.id: "off"}
            assert not asked.asked
            run.cancel()

    asyncio.run(scenario())


def executor(client: Client, remembered: list[Any]) -> Executor:
    return Executor(client, PodCache(lambda *_: None), pod_codec.to_cached_pod, remembered.append)


def test_a_patch_names_the_observed_version_and_a_rejected_one_is_kept_until_it_succeeds() -> None:
    found = {**workload(5), "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
    patch = ObjectPatch(found, {"status": {"conditions": []}}, "status")

    async def scenario() -> None:
        remembered: list[Any] = []
        async with client_of(status(500, "", "failed calling webhook: away"), says(found)) as (client, asked):
            rejections = Rejections()
            await executor(client, remembered).change([found], [patch], rejections)
            [rejected] = rejections.changes.values()
            assert "away" in rejected.message
            assert asked.asked[0][:2] == ("DELETE", "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/dt-demo")
            verb, path, _, body = asked.asked[1]
            assert (verb, path.rpartition("/")[2]) == ("PATCH", "status")
            assert body["metadata"] == {"uid": "w", "resourceVersion": "5"}
            assert remembered == [found]
            await executor(client, remembered).change([], [patch], rejections)
            assert rejections.changes == {}

    asyncio.run(scenario())


def test_a_conflict_asks_for_a_retry_and_is_not_a_rejection() -> None:
    found = {**workload(5), "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
    patch = ObjectPatch(found, {"status": {"conditions": []}}, "status")

    async def scenario() -> None:
        for removals, patches in (([], [patch]), ([found], [])):
            async with client_of(status(409, "Conflict", "the object has been modified"), says(found)) as (client, _):
                rejections = Rejections()
                await executor(client, []).change(removals, patches, rejections)
                assert rejections.conflicts
                assert rejections.changes == {}
                await executor(client, []).change(removals, patches, rejections)
                assert not rejections.conflicts

    asyncio.run(scenario())


def test_an_object_of_an_optional_kind_is_created_in_its_api_group_and_cached() -> None:
    made = {**workload(5), "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
    job = {"metadata": {"name": "demo", "namespace": "team", "uid": UID}}

    async def scenario() -> None:
        remembered: list[Any] = []
        async with client_of(says(made)) as (client, asked):
            await executor(client, remembered).create(job, [made], Rejections())
            assert asked.asked[0][1] == "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads"
            assert json.dumps(remembered) == json.dumps([made])

    asyncio.run(scenario())
