"""An outage between the ranks and the operator, at the level of HTTP: nothing restarts. A hang afterwards does."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import socketserver
import threading
import time
from datetime import timedelta
from typing import Any, Literal

import pytest

from allranks.api.job import KIND
from allranks.core.diagnosis import hang_detection, report_loss
from allranks.telemetry import store
from allranks.telemetry.server import PATH
from apiserver.test_reports import World
from support.controlplane import ControlPlane
from support.live import eventually, job

Mode = Literal["pass", "refused", "503", "silent"]
OUTAGES: tuple[Mode, ...] = ("refused", "503", "silent")
TIMEOUT_SECONDS = 2
OUTAGE_SECONDS = 4.0
MESSAGE_SECONDS = 1.1
"""The server accepts one message a second of each rank."""


class Path:
    """What is between the ranks of a job and the report server: a TCP proxy on the loopback."""

    def __init__(self, port: int) -> None:
        self.mode: Mode = "pass"
        path = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                path.serve(self.request, port)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.port = self._server.server_address[1]

    def serve(self, near: socket.socket, port: int) -> None:
        near.settimeout(2)
        if self.mode == "refused":
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, as from a closed port
            return
        request = near.recv(65536)
        if self.mode == "silent":
            time.sleep(1)
        elif self.mode == "503":
            near.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as far:
                far.sendall(request)
                near.sendall(far.recv(65536))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(600)


class Rank:
    """Makes a step with each message until `hangs`; then its messages say for how long it has been idle."""

    def __init__(self, path: Path, token: str, number: int) -> None:
        self.hangs = False
        self.accepted = 0
        self._path, self._token, self._number = path, token, number
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        step, moved_at = 1, time.monotonic()
        while not self._over.wait(MESSAGE_SECONDS):
            if not self.hangs:
                step, moved_at = step + 1, time.monotonic()
            message = {"rank": self._number, "step": step, "idle": time.monotonic() - moved_at}
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.accepted += self._send(message) == 200

    def _send(self, message: dict[str, Any]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._path.port, timeout=0.5)
        try:
            # In one packet: the proxy reads once.
            body = json.dumps(message)
            head = {"Authorization": f"Bearer {self._token}", "Connection": "close", "Content-Length": str(len(body))}
            connection.request("POST", PATH, body.encode(), head)
            return connection.getresponse().status
        finally:
            connection.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join(600)


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(hang_detection, "STACK_DUMP_WAIT", timedelta(seconds=0.2))
    for module in (report_loss, store):
        monkeypatch.setattr(module, "SILENCE", timedelta(seconds=3))
    return World(control_plane, namespace)


@pytest.mark.nightly
def test_an_outage_of_the_report_path_restarts_nothing(world: World) -> None:
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(world.operator())
        eventually(lambda: operator.reports and operator.reports.port)
        assert operator.reports
        paths, ranks = {}, {}
        for outage in OUTAGES:
            name = f"path-{outage}"
            world.api.create(job(name, hang={"timeoutSeconds": TIMEOUT_SECONDS}), world.namespace)
            paths[name] = stack.enter_context(contextlib.closing(Path(operator.reports.port)))
        for name, path in paths.items():
            world.runs(name)
            tokens = [world.token(f"{name}-{role}-0-0") for role in ("master", "worker")]
            made = [Rank(path, token, number) for number, token in enumerate(tokens)]
            ranks[name] = [stack.enter_context(contextlib.closing(rank)) for rank in made]

        def status(name: str) -> Any:
            return world.api.get(KIND, world.namespace, name)["status"]

        def lost(name: str) -> str | None:
            return next((each["status"] for each in status(name)["conditions"] if each["type"] == "ReportsLost"), None)

        for name in paths:
            eventually(lambda name=name: status(name).get("progress", {}).get("reporting") == 2)
        for name, path in paths.items():
            path.mode = name.removeprefix("path-")  # type: ignore[assignment]
        time.sleep(OUTAGE_SECONDS)
        for name in paths:
            eventually(lambda name=name: lost(name) == "True")
        for path in paths.values():
            path.mode = "pass"
        for name in paths:
            eventually(lambda name=name: lost(name) == "False")
            assert (status(name)["phase"], status(name)["attempt"]) == ("Running", 0)
            assert status(name).get("lastFailure") is None
        for name in paths:
            for rank in ranks[name]:
                rank.hangs = True
        for name in paths:
            eventually(lambda name=name: status(name)["attempt"] == 1)
            assert status(name)["lastFailure"]["reason"] == "Hang"
