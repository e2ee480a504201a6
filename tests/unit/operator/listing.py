"""Mirrors that list everything at an address once, for `test_listing_memory`, which runs them in a process of their
own."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

from allranks.archive.archiver import pods_watch
from allranks.archive.job_attempts import JobAttempts
from allranks.archive.pod_logs import PodLogs
from allranks.core.facts.optional_kinds import COSCHEDULING_POD_GROUP
from allranks.kube import paths
from allranks.kube.auth import Connection
from allranks.kube.client import Client
from allranks.kube.pod_codec import to_cached_pod
from allranks.kube.watch import PAGE_OF_LARGE_OBJECTS
from allranks.operator import job_watch
from allranks.operator.cache import JobCache, PodCache
from allranks.operator.node_watch import NodeProblems
from allranks.operator.optional_apis import OptionalApis
from allranks.operator.platform_cache import Pools
from allranks.operator.pod_watch import pod_watch
from allranks.operator.settings import Settings
from allranks.operator.sweep_controller import SweepCache
from allranks.operator.timing import Timing

nothing: Any = Mock()


async def pods(client: Client) -> None:
    cache = PodCache(lambda key, urgent: None)
    await pod_watch(client, None, cache, nothing, set(), decode=to_cached_pod, renewed_after=60).list_all()
    assert len(cache) >= 150


async def archived_pods(client: Client) -> None:
    how: Any = {"spool": Path(), "log_bytes": 1, "most": 1, "lost": nothing}
    await pods_watch(client, None, PodLogs(*[nothing] * 5, JobAttempts(), **how)).list_all()


async def jobs(client: Client) -> None:
    """List as kopf does, which keeps the items of all pages."""
    cache, items, further = JobCache(), [], ""
    async with client.session(response_class=job_watch._CompactResponse) as session:
        while True:
            query = {"limit": str(PAGE_OF_LARGE_OBJECTS), "continue": further}
            async with session.get(client.connection.url + paths.job_path(None), params=query) as response:
                page = await response.json()
            items += page["items"]
            if not (further := page["metadata"]["continue"]):
                break
    for item in items:
        cache.upsert(item)
    assert len(cache) >= 150


async def sweeps(client: Client) -> None:
    cache = SweepCache(client, [None], 60, lambda key: None)
    [watch] = cache.watches.values()
    await watch.list_all()
    assert len(list(cache)) >= 150


async def pools(client: Client) -> None:
    watch = Pools(client, Settings(), lambda name: None).watch
    assert watch
    await watch.list_all()


async def nodes(client: Client) -> None:
    watch = NodeProblems(client, Settings(node_conditions=("Unhealthy",)), lambda node: None).watch
    assert watch
    await watch.list_all()


async def pod_groups(client: Client) -> None:
    kind = COSCHEDULING_POD_GROUP
    apis = OptionalApis(client, [kind], Settings(), lambda kind, item: None, Timing())
    apis._start(kind, kind.versions[0])
    [(_, watch)] = apis.watches()
    await watch.list_all()
    assert len(apis.objects()) >= 150


async def main(mirror: str, url: str) -> None:
    client = Client(Connection(url))
    try:
        await globals()[mirror](client)
    finally:
        await client.close()
