from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RendezvousHandler(BaseHTTPRequestHandler):
    server: RendezvousHTTPServer

    def do_GET(self) -> None:
        with self.server.lock:
            value = self.server.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.values[self.path] = value
        self._answer(200)

    def _answer(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


class RendezvousHTTPServer(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], handler: type[RendezvousHandler], verbose: bool) -> None:
        super().__init__(address, handler)
        self.lock = threading.Lock()
        self.values: dict[str, bytes] = {}

    def init(self, plan: list[Any]) -> None:
        assert plan, "the helper tells which hosts there are"
