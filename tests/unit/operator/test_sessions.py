"""Sessions of the operator: how they wait for the API server, and how they stop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import generate_latest

from allranks.kube.auth import Connection
from allranks.operator.app import Operator
from allranks.operator.session import Dependencies, Session
from allranks.operator.settings import Settings
from allranks.operator.timing import Timing
from support.scripted import Answer, Scripted, hangs, says, server, status


def lived(answer: Answer, enough: int, timing: Timing | None = None, **settings: Any) -> tuple[Scripted, str, float]:
    """(API server, what was unhealthy, seconds until it stopped). Stops the operator after `enough` requests."""

    async def scenario() -> tuple[Scripted, str, float]:
        async with server(answer) as api, asyncio.timeout(300):
            operator = Operator(Settings(address="127.0.0.1", port=0, **settings), Connection(api.url), timing=timing)
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            run = asyncio.create_task(operator.run(stop))
            while len(api.asked) < enough:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            wrong = operator.unhealthy()
            stop.set()
            stopped_at = loop.time()
            await run
            return api, wrong, loop.time() - stopped_at

    return asyncio.run(scenario())


def test_the_operator_is_healthy_while_the_crds_are_missing() -> None:
    _, wrong, took = lived(status(404), 1, Timing(watch_margin=-5.0), watch_timeout=5)
    assert not wrong, "a restart would not install the CRDs"
    assert took < 5


@pytest.mark.parametrize(
    "shape", [{"spec": [], "status": 5}, {"spec": "x"}, {"spec": None}, {}, {"status": {"conditions": [5]}}]
)
def test_an_invalid_job_affects_neither_metrics_nor_pools(shape: dict[str, Any]) -> None:
    async def scenario() -> None:
        settings, connection = Settings(), Connection("http://127.0.0.1:1")
        operator = Operator(settings, connection)
        session = operator.session = Session(Dependencies(settings, connection, operator.metrics), None)
        metadata = {"name": "demo", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
        session.controller.on_job_event({"metadata": metadata, **shape}, deleted=False)
        session.enqueue_users(None)
        page = generate_latest(operator.metrics.registry).decode()
        assert 'allranks_jobs{framework="",job_namespace="ns",phase="Pending"} 1.0' in page
        await session.client.close()

    asyncio.run(scenario())


def test_a_change_of_a_pool_wakes_the_jobs_whose_roles_use_it() -> None:
    async def scenario() -> None:
        settings, connection = Settings(default_pool="usual"), Connection("http://127.0.0.1:1")
        operator = Operator(settings, connection)
        session = Session(Dependencies(settings, connection, operator.metrics), None)
        specs: dict[str, dict[str, Any]] = {
            "whole": {"pool": "gpu"},
            "role": {"pool": "gpu", "roles": {"worker": {}, "ps": {"pool": "cpu"}}},
            "none": {"roles": {"worker": {}}},
        }
        for name, spec in specs.items():
            metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
            session.controller.on_job_event({"metadata": metadata, "spec": spec}, deleted=False)
        woken: list[str] = []
        session.queue.enqueue = lambda key, *_: woken.append(key[1])  # type: ignore[method-assign]
        for pool, expected in {"gpu": ["whole", "role"], "cpu": ["role"], "usual": ["none"], "x": []}.items():
            woken.clear()
            session.enqueue_users(pool)
            assert woken == expected
        await session.client.close()

    asyncio.run(scenario())


def test_jobs_whose_reports_are_lost_are_counted() -> None:
    async def scenario() -> None:
        settings, connection = Settings(), Connection("http://127.0.0.1:1")
        operator = Operator(settings, connection)
        session = operator.session = Session(Dependencies(settings, connection, operator.metrics), None)
        for name, state in (("a", "True"), ("b", "False"), ("c", "True")):
            metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
            status = {"phase": "Running", "conditions": [{"type": "ReportsLost", "status": state}]}
            session.controller.on_job_event({"metadata": metadata, "status": status}, deleted=False)
        assert "allranks_jobs_reports_lost 2.0" in generate_latest(operator.metrics.registry).decode()
        await session.client.close()

    asyncio.run(scenario())


def test_jobs_on_unhealthy_hardware_and_jobs_that_avoid_a_node_are_counted() -> None:
    async def scenario() -> None:
        settings, connection = Settings(), Connection("http://127.0.0.1:1")
        operator = Operator(settings, connection)
        session = operator.session = Session(Dependencies(settings, connection, operator.metrics), None)
        for name, phase in (("a", "Running"), ("b", "Restarting"), ("c", "Failed")):
            metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
            conditions = [{"type": "HardwareUnhealthy", "status": "False" if phase == "Failed" else "True"}]
            status = {"phase": phase, "avoidedNodes": ["gpu-7"], "conditions": conditions}
            session.controller.on_job_event({"metadata": metadata, "status": status}, deleted=False)
        page = generate_latest(operator.metrics.registry).decode()
        assert "allranks_jobs_hardware_unhealthy 2.0" in page
        assert 'allranks_node_avoiding_jobs{node="gpu-7"} 2.0' in page
        await session.client.close()

    asyncio.run(scenario())


def test_shutdown_does_not_wait_for_an_api_server_that_does_not_respond() -> None:
    _, _, took = lived(hangs, 1)
    assert took < 5


def test_a_lease_that_cannot_be_decoded_is_not_held() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    asked, _, _ = lived(answer, 2, leader_election=True, lease_namespace="ns")
    assert all("leases" in path for _, path, *_ in asked.asked), "it acted without the lease"


def test_while_the_crds_are_missing_the_lease_is_renewed() -> None:
    leases: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if "leases" not in request.path:
            return await status(404)(request)
        if request.method != "GET":
            leases.append(json.loads(await request.text()))
            leases[-1]["metadata"]["resourceVersion"] = str(len(leases))
        return await (says(leases[-1]) if leases else status(404))(request)

    lived(answer, 8, leader_election=True, lease_seconds=3, lease_namespace="ns")
    holders = [lease["spec"]["holderIdentity"] for lease in leases]
    assert len(holders) > 2
    assert len(set(holders[:-1])) == 1
    assert holders[-1] == "", "the lease is released"


@pytest.mark.parametrize(
    ("listed", "unreadable", "ready"),
    [
        (["a", "b"], [], True),
        (["a"], [], False),
        (["a"], ["b"], True),
        ([], ["a", "b"], False),
        ([], [], False),
    ],
)
def test_readiness_needs_every_namespace_that_can_be_read_and_at_least_one(
    listed: list[str], unreadable: list[str], ready: bool
) -> None:
    """A deleted namespace must not keep the others from reporting."""

    async def scenario() -> None:
        settings, connection = (
            Settings(namespaces=("a", "b"), pools=False, node_conditions=(), node_taints=()),
            Connection("http://127.0.0.1:1"),
        )
        operator = Operator(settings, connection)
        session = operator.session = Session(Dependencies(settings, connection, operator.metrics), None)
        for namespace in listed:
            session.controller.on_job_list(set(), 1, namespace)
            session.watches[f"pods in {namespace}"].synced.set()
        session.unreadable.update(unreadable)
        assert session.synced is session.leading is ready
        assert bool(operator.unready()) is not ready
        shown = generate_latest(operator.metrics.registry).decode()
        assert f"allranks_unreadable_namespaces {len(unreadable)}.0" in shown
        await session.client.close()

    asyncio.run(scenario())
