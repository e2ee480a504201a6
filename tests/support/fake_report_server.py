"""A fake report server: keeps every message and gives scripted responses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "operator"
SOON = 300.0

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, str], dict[str, Any]]]


def ok(interval: float = 60.0, stacks: str = "", checkpoint: int = 0) -> Answer:
    return lambda message: (200, {}, {"interval": interval, "stacks": stacks, "checkpoint": checkpoint})


class FakeReportServer:
    """Records `messages`, `tokens` and `connections`. Gives the `answers` in order, the last one forever."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.connections: list[Any] = []
        self.at: list[float] = []
        self.answers: list[Answer] = [ok()]
        self._news = threading.Condition()
        self.token_file = folder / "token"
        self.token_file.write_text("secret-1\n")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1/report"

    @property
    def environment(self) -> dict[str, str]:
        return {"ALLRANKS_REPORT_URL": self.url, "ALLRANKS_REPORT_TOKEN_FILE": str(self.token_file)}

    def wait(self, ready: Callable[[list[dict[str, Any]]], Any], within: float = SOON) -> dict[str, Any]:
        """Waits until `ready(messages)`. Returns the newest message."""
        with self._news:
            assert self._news.wait_for(lambda: ready(self.messages), within), self.messages
            return self.messages[-1]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _take(self, message: dict[str, Any], token: str, connection: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
        with self._news:
            self.messages.append(message)
            self.tokens.append(token)
            self.connections.append(connection)
            self.at.append(time.monotonic())
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self._news.notify_all()
        return answer(message)

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                assert size <= 8192
                assert self.path == "/v1/report"
                message = json.loads(self.rfile.read(size))
                token = self.headers["Authorization"].removeprefix("Bearer ")
                status, headers, content = hub._take(message, token, self.connection)
                body = json.dumps(content).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = "X-Closes" in headers  # without announcing it, as after a long idle time

            def log_message(self, *ignored: object) -> None: ...

        return Handler


@contextmanager
def hub_in(folder: Path) -> Iterator[FakeReportServer]:
    hub = FakeReportServer(folder)
    try:
        yield hub
    finally:
        hub.close()


def program(hub: FakeReportServer | None, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program as a rank."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-c", text],
        env=ours | {"PYTHONPATH": str(SOURCE)} | (hub.environment if hub else {}) | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
