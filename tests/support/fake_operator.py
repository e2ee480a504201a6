"""A fake operator for one supervisor: it keeps the states that are sent to it, and answers polls with orders."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SOON = 300.0


class FakeOperator:
    """`orders` are given as the real one does: at once if they are due, and until they are carried out.

    `polls` counts polls. `answer` replaces the answers: (state) -> (HTTP status, body), or None to wait for an order.
    """

    def __init__(self, folder: Path) -> None:
        self.states: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.order: dict[str, Any] | None = None
        self.answer: Callable[[dict[str, Any]], tuple[int, Any] | None] = lambda state: None
        self.hold = 25.0
        self.code: Callable[[dict[str, Any]], tuple[int, Any]] = lambda request: (409, {})
        """Answers requests for code."""
        self._news = threading.Condition()
        self._newest = 0
        self._sockets: set[socket.socket] = set()
        self.token_file = folder / "token"
        self.token_file.write_text("secret\n")
        self._listen(0)

    def _listen(self, port: int) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.port}/v1/report"
        return {"ALLRANKS_REPORT_URL": url, "ALLRANKS_REPORT_TOKEN_FILE": str(self.token_file)}

    def say(self, order: dict[str, Any] | None) -> None:
        with self._news:
            self.order = order
            self._news.notify_all()

    def wait(self, **fields: Any) -> dict[str, Any]:
        """Wait until the newest state has these fields, and return it."""

        def arrived() -> bool:
            return bool(self.states) and fields.items() <= self.states[-1].items()

        with self._news:
            assert self._news.wait_for(arrived, SOON), (fields, self.states)
            return self.states[-1]

    def wait_for_polls(self, count: int) -> None:
        """Wait for this many messages in total."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.states) >= count, SOON), self.states

    def restart(self) -> None:
        """End all connections, as an operator that is killed, and listen again."""
        port = self.port
        self.stop()
        self.states.clear()
        self._listen(port)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        with self._news:
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()
            self._newest += 1
            self._news.notify_all()

    def _take(self, state: dict[str, Any]) -> tuple[int, Any]:
        with self._news:
            self._newest += 1
            number = self._newest
            self.states.append(state)
            self._news.notify_all()
            if (scripted := self.answer(state)) is not None:
                return scripted
            self._news.wait_for(lambda: self._newest > number or due(self.order, state), self.hold)
            body = self.order if self._newest == number and due(self.order, state) else {"order": None}
            self.answers.append(body or {})
            return 200, body

    def _handler(operator) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                operator._sockets.add(self.request)

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                content = self.rfile.read(size)
                if self.path == "/v1/code":
                    assert self.headers["Authorization"] == "Bearer secret"
                    status, body = operator.code(json.loads(content))
                elif self.path != "/v1/process":
                    status, body = 200, {"interval": 60.0, "stacks": "", "checkpoint": 0}
                else:
                    assert size <= 8192
                    assert self.headers["Authorization"] == "Bearer secret"
                    status, body = operator._take(json.loads(content))
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    self.close_connection = True

            def log_message(self, *ignored: object) -> None: ...

        return Handler


def due(order: dict[str, Any] | None, state: dict[str, Any]) -> bool:
    """As `_is_due` of the store."""
    if order is None or order["order"] == "Exit":
        return order is not None
    process, ordered = ((each["attempt"], each.get("restart", 0)) for each in (state, order))
    return process < ordered or (order["order"] == "Start" and process == ordered and state["state"] == "Down")


@contextmanager
def operator_in(folder: Path) -> Iterator[FakeOperator]:
    operator = FakeOperator(folder)
    try:
        yield operator
    finally:
        operator.stop()
