"""Notifications of jobs on a real API server, with an operator that dies while its receiver is away."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from allranks.api.job import API_VERSION, KIND
from allranks.api.sweep import KIND as SWEEP
from support import live
from support.controlplane import ControlPlane
from support.live import eventually


class Receiver(ThreadingHTTPServer):
    """Answers 503 until `works` is set. `accepted`: the events that it took."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.works = False
        self.tries = 0
        self.accepted: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.tries += 1
        if self.server.works:
            self.server.accepted.append(event)
        self.send_response(204 if self.server.works else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


@dataclass(frozen=True)
class World:
    control_plane: ControlPlane
    namespace: str
    receivers: Path
    """The file with the receivers of the operator."""

    def operator(self) -> contextlib.AbstractContextManager[Any]:
        connection = live.connection(self.control_plane)
        return live.operator(connection, self.namespace, receivers=str(self.receivers), pools=False)

    def reported(self, server: Receiver, kind: str, entry: str) -> dict[str, Any]:
        """The event about an object named demo, whose operator is killed between two tries of the delivery."""

        def entries() -> list[str]:
            found = self.control_plane.api.get(kind, self.namespace, "demo").get("status") or {}
            return found.get("notifications") or []

        with self.operator():
            eventually(lambda: entries() == [entry])
            eventually(lambda: server.tries > 0)
        server.works = True
        with self.operator():
            eventually(lambda: entries() == [f"{entry} sent"])
        with self.operator() as operator:
            eventually(lambda: operator.idle)
        [event] = server.accepted
        return event


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str, tmp_path: Path, server: Receiver) -> World:
    file = tmp_path / "receivers.yaml"
    url = f"http://127.0.0.1:{server.server_port}/in"
    file.write_text(json.dumps({"receivers": [{"name": "bus", "type": "CloudEvents", "url": url}]}))
    return World(control_plane, namespace, file)


NOTIFY = [{"receiver": "bus", "occasions": ["Failed"]}]


def test_a_failure_is_reported_once_although_the_operator_was_killed(world: World, server: Receiver) -> None:
    world.control_plane.api.create(live.job(activeDeadlineSeconds=1, notify=NOTIFY), world.namespace)
    event = world.reported(server, KIND, "Failed/0 bus")
    assert event["type"] == "dev.allranks.job.failed"
    assert event["subject"] == f"{world.namespace}/demo"
    assert "activeDeadlineSeconds" in event["data"]["details"]


def test_the_end_of_a_sweep_is_reported_once_although_the_operator_was_killed(world: World, server: Receiver) -> None:
    sweep = {
        "parameters": {"lr": {"values": [0.1, 0.2]}},
        "objective": {"metric": "loss", "goal": "Minimize"},
        "algorithm": "Grid",
        "parallel": 2,
        "template": {"spec": live.job(activeDeadlineSeconds=1)["spec"]},
        "notify": NOTIFY,
    }
    manifest = {"apiVersion": API_VERSION, "kind": SWEEP, "metadata": {"name": "demo"}, "spec": sweep}
    world.control_plane.api.create(manifest, world.namespace)
    event = world.reported(server, SWEEP, "Failed bus")
    assert event["type"] == "dev.allranks.sweep.failed"
    assert event["subject"] == f"{world.namespace}/demo"
    assert "Trials: 2/2 ended, 2 failed" in event["data"]["details"]
