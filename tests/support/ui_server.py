"""`allranks ui` in a thread of the test, on a free port, and requests to it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from fastapi import FastAPI

from allranks.kube.cluster import Where
from allranks.ui.app import application
from allranks.ui.http_server import HttpServer
from allranks.ui.server import HOST, listen
from allranks.ui.sessions import private_host

TOKEN = "token-of-the-tests"
WAIT_SECONDS = 300


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class UiServer:
    """A context manager. `stop` and `start` play a server that ends and returns on the same port."""

    port: int

    def __init__(
        self,
        kubeconfig: Path | str,
        runs: Path,
        namespace: str | None = None,
        *,
        all_namespaces: bool = False,
        archive: str | None = None,
    ) -> None:
        self._where, self._archive = Where(namespace, None, str(kubeconfig)), archive
        self._runs, self._all = runs, all_namespaces

    @property
    def url(self) -> str:
        """For programs."""
        return f"http://{HOST}:{self.port}"

    @property
    def host(self) -> str:
        """The Host header of a browser, whose pages have a name of their own."""
        return f"{private_host(TOKEN)}:{self.port}"

    @property
    def site(self) -> str:
        """For browsers."""
        return f"http://{self.host}"

    def __enter__(self) -> Self:
        # Bound but never listening, so that no other program takes the port between stop and start.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind((HOST, 0))
        self.port = self._reserved.getsockname()[1]
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._reserved.close()

    def application(self) -> FastAPI:
        return application(self._where, all_namespaces=self._all, runs=self._runs, token=TOKEN, archive=self._archive)

    def start(self) -> None:
        self._socket = listen(self.port)
        self._server = HttpServer(self.application(), log_level="critical", timeout_graceful_shutdown=0)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self._socket.close()

    def request(self, verb: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Sends the token, unless `authorization` or `cookie` is given. Names of headers have _ for -."""
        with self.open(verb, path, body, **headers) as response:
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode())

    @contextmanager
    def open(self, verb: str, path: str, body: Any = None, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """The answer while it arrives."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if "authorization" not in sent and "cookie" not in sent:
            sent["authorization"] = f"Bearer {TOKEN}"
        if body is not None and not isinstance(body, str):
            body, sent["content-type"] = json.dumps(body), "application/json"
        connection = http.client.HTTPConnection(HOST, self.port, timeout=WAIT_SECONDS)
        try:
            connection.request(verb, path, body, sent)
            yield connection.getresponse()
        finally:
            # The response keeps the socket: without this, the server would not notice.
            if connection.sock:
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Server-sent events, as (name, data)."""
        with self.open("GET", path) as response:
            assert response.status == 200, response.read()
            yield _events(response)


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := response.readline():
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))
