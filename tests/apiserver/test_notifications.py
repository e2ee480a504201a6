"""Notifications of jobs on a real API server, with an operator that dies while its receiver is away."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from allranks.api.job import KIND
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


def test_a_failure_is_reported_once_although_the_operator_was_killed(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api, connection = control_plane.api, live.connection(control_plane)

    def entries() -> list[str]:
        found = api.get(KIND, namespace, "demo").get("status") or {}
        return found.get("notifications") or []

    with receiver() as server:
        url = f"http://127.0.0.1:{server.server_port}/in"
        file = tmp_path / "receivers.yaml"
        file.write_text(json.dumps({"receivers": [{"name": "bus", "type": "CloudEvents", "url": url}]}))
        settings = {"receivers": str(file), "pools": False}
        with live.operator(connection, namespace, **settings):
            wanted = [{"receiver": "bus", "occasions": ["Failed"]}]
            api.create(live.job(activeDeadlineSeconds=1, notify=wanted), namespace)
            eventually(lambda: entries() == ["Failed/0 bus"])
            eventually(lambda: server.tries > 0)
        # It was killed between two tries.
        server.works = True
        with live.operator(connection, namespace, **settings):
            eventually(lambda: entries() == ["Failed/0 bus sent"])
        with live.operator(connection, namespace, **settings) as operator:
            eventually(lambda: operator.idle)
        [event] = server.accepted
        assert event["type"] == "dev.allranks.job.failed"
        assert event["subject"] == f"{namespace}/demo"
        assert "activeDeadlineSeconds" in event["data"]["details"]
