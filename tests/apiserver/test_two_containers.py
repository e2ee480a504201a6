"""The operator and its frontend in two processes, on a real API server: the frontend has no credentials."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.operator.ports.socket_protocol import Count, request_frame
from allranks.operator.ports.socket_server import SocketLimits
from allranks.telemetry.server import PATH
from support.controlplane import ControlPlane
from support.frontend_process import frontend, get
from support.live import eventually, job, phase

from .test_reports import World


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str) -> World:
    return World(control_plane, namespace)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def report(port: int, token: str, **message: Any) -> int:
    return get(port, PATH, json.dumps(message).encode(), Authorization=f"Bearer {token}")[0]


def ready(ports: dict[str, int]) -> bool:
    return get(ports["probes"], "/readyz") == (200, b"ok\n")


def series(ports: dict[str, int]) -> list[str]:
    return get(ports["metrics"], "/metrics")[1].decode().splitlines()


def test_a_report_reaches_the_status_through_a_process_without_credentials(world: World, path: str) -> None:
    with frontend(path) as (process, ports):
        assert not ready(ports), "the operator does not run yet"
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"KUBE" not in environment
        with world.operator(socket=path) as operator:
            assert (operator.server, operator.probes, operator.reports) == (None, None, None)
            eventually(lambda: ready(ports))
            world.runs()
            assert report(ports["reports"], world.token(), rank=1, step=7, totalSteps=10) == 200
            eventually(lambda: world.progress().get("step") == 7)
            forged = world.token(audiences=("vault",))
            assert report(ports["reports"], forged, step=8) == 401
            eventually(lambda: 'allranks_reports_total{outcome="taken"} 1.0' in series(ports))
            eventually(lambda: 'allranks_reports_total{outcome="denied"} 1.0' in series(ports))


def test_the_frontend_survives_a_restart_of_the_operator(world: World, path: str) -> None:
    with frontend(path) as (process, ports):
        with world.operator(socket=path):
            eventually(lambda: ready(ports))
            world.runs()
            token = world.token()
            assert report(ports["reports"], token, step=5, totalSteps=10) == 200
            eventually(lambda: world.progress().get("step") == 5)
        assert report(ports["reports"], token, step=6, totalSteps=10) == 503
        assert not ready(ports)
        assert get(ports["probes"], "/livez") == (200, b"ok\n"), "the kubelet restarts the operator only"
        with world.operator(socket=path):
            eventually(lambda: ready(ports))
            assert report(ports["reports"], token, step=7, totalSteps=10) == 200
            eventually(lambda: world.progress().get("step") == 7)
        assert process.poll() is None


def test_a_frontend_that_is_killed_does_not_disturb_the_operator(world: World, path: str) -> None:
    with world.operator(socket=path) as operator:
        with frontend(path) as (process, ports):
            eventually(lambda: ready(ports))
            world.runs()
            token = world.token()
            assert report(ports["reports"], token, step=1, totalSteps=10) == 200
            session = operator.session
            process.send_signal(signal.SIGKILL)
        world.runs("other")
        with frontend(path) as (_, ports):
            eventually(lambda: ready(ports))
            assert report(ports["reports"], token, step=2, totalSteps=10) == 200
            eventually(lambda: world.progress().get("step") == 2)
        assert operator.session is session, "no session failed"
        assert phase(world.control_plane, world.namespace, "other") == "Running"


@contextlib.contextmanager
def flood(path: str, data: bytes, connections: int) -> Iterator[list[int]]:
    """Sends `data` again and again, reads nothing, and connects again. Yields the number of bytes sent by each."""
    over, sent = threading.Event(), [0] * connections

    def run(number: int) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
                wire.settimeout(0.5)
                wire.connect(path)
                while not over.is_set():
                    sent[number] += wire.send(data)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    try:
        yield sent
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def trains(world: World, ports: dict[str, int], name: str) -> None:
    """Runs a job and reports for it."""
    world.api.create(job(name), world.namespace)
    world.runs(name)
    assert report(ports["reports"], world.token(f"{name}-worker-0-0"), step=1, totalSteps=10) == 200
    eventually(lambda: world.progress(name).get("step") == 1)


def test_garbage_on_the_socket_stops_neither_the_operator_nor_the_next_frontend(world: World, path: str) -> None:
    with world.operator(socket=path) as operator:
        eventually(lambda: operator.session and operator.session.leading)
        session = operator.session
        garbage = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100
        with flood(path, garbage, 6) as sent:
            eventually(lambda: sum(sent) > 100_000)
            with frontend(path) as (_, ports):
                eventually(lambda: ready(ports))
                trains(world, ports, "calm")
        assert operator.session is session, "no session failed"


@pytest.mark.nightly
def test_a_flood_of_the_socket_does_not_stop_the_operator(world: World, path: str) -> None:
    with world.operator(socket=path) as operator, frontend(path) as (_, ports):
        began = time.monotonic()
        eventually(lambda: ready(ports))
        session = operator.session
        with flood(path, request_frame(Count(1, {200: 1})) * 1000, 6) as sent:
            eventually(lambda: sum(sent) > 1_000_000)
            trains(world, ports, "calm")
            assert ready(ports)
        assert operator.session is session, "no session failed"
        handled = operator.metrics.reports.labels("taken")._value.get()
        burst = rate = SocketLimits().rate
        assert handled <= burst + rate * (time.monotonic() - began)
