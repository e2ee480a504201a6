"""The UI of a cluster in a thread of the test, and a browser without a screen that keeps cookies."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Mapping
from http.cookies import SimpleCookie
from urllib.parse import urlencode

import uvicorn

from allranks.kube.auth import Connection
from allranks.ui.app import in_cluster
from allranks.ui.command import HOST, listen, server_config
from support.ui_server import WAIT_SECONDS, Answer


class ClusterUi:
    """A context manager. `users` has those who use it."""

    def __init__(self, api: Connection, *namespaces: str) -> None:
        self._app = in_cluster(api, namespaces)

    def __enter__(self) -> ClusterUi:
        self._socket = listen(0)
        self.port = self._socket.getsockname()[1]
        config = server_config(self._app, log_level="critical", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self._socket.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._socket])

    def check(self) -> None:
        """What the server does once a minute."""
        asyncio.run_coroutine_threadsafe(self._app.state.users.check(), self._loop).result(WAIT_SECONDS)

    @property
    def origin(self) -> str:
        return f"http://{HOST}:{self.port}"

    def request(self, verb: str, path: str, headers: Mapping[str, str] | None = None, body: str = "") -> Answer:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=WAIT_SECONDS)
        try:
            connection.request(verb, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, token: str) -> Answer:
        """As a program, or through an OIDC proxy."""
        return self.request("GET", path, {"Authorization": f"Bearer {token}"})


class Browser:
    """Follows no redirections."""

    def __init__(self, ui: ClusterUi, **headers: str) -> None:
        self._ui, self.cookies = ui, SimpleCookie()
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def get(self, path: str) -> Answer:
        return self._keep(self._ui.request("GET", path, self._sent()))

    def post(self, path: str, origin: str | None = None, **form: str) -> Answer:
        sent = {"Origin": origin or self._ui.origin, "Content-Type": "application/x-www-form-urlencoded"}
        return self._keep(self._ui.request("POST", path, self._sent() | sent, urlencode(form)))

    def _sent(self) -> dict[str, str]:
        line = "; ".join(f"{name}={one.value}" for name, one in self.cookies.items() if one.value)
        return {**self._headers, **({"Cookie": line} if line else {})}

    def _keep(self, answer: Answer) -> Answer:
        self.cookies.load(answer.headers.get("set-cookie", ""))
        return answer
