"""The UI of a cluster in a thread of the test, and a browser without a screen that keeps cookies."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI

from allranks.kube.auth import Connection
from allranks.ui.app import in_cluster
from allranks.ui.sessions import HOST
from support.ui_server import Answer, UiServer


class ClusterUi(UiServer):
    """`allranks ui-server`."""

    def __init__(self, api: Connection, *namespaces: str, archive: str | None = None) -> None:
        self._api, self._namespaces, self._archive = api, namespaces, archive

    def application(self) -> FastAPI:
        return in_cluster(self._api, self._namespaces, self._archive)

    @property
    def host(self) -> str:
        return f"{HOST}:{self.port}"

    def by(self, token: str, verb: str, path: str, body: Any = None) -> Answer:
        """As a program, or through an OIDC proxy."""
        return self.request(verb, path, body, authorization=f"Bearer {token}")


class Browser:
    """Follows no redirections."""

    def __init__(self, ui: ClusterUi) -> None:
        self._ui, self.cookies = ui, SimpleCookie()

    def get(self, path: str) -> Answer:
        return self._keep(self._ui.get(path, cookie=self._sent(), host=self._ui.host))

    def post(self, path: str, origin: str | None = None, **form: str) -> Answer:
        sent = {"origin": origin or self._ui.site, "content_type": "application/x-www-form-urlencoded"}
        sent["host"] = self._ui.host
        return self._keep(self._ui.request("POST", path, urlencode(form), cookie=self._sent(), **sent))

    def _sent(self) -> str:
        return "; ".join(f"{name}={one.value}" for name, one in self.cookies.items() if one.value)

    def _keep(self, answer: Answer) -> Answer:
        self.cookies.load(answer.headers.get("set-cookie", ""))
        return answer
