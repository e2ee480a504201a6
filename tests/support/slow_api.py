"""An API server with jobs and ConfigMaps, from memory, that holds one request until the test releases it."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from .some_api import SomeApi, _Handler

Manifest = dict[str, Any]
JOBS, CONFIG_MAPS, SECRETS = "distributedtrainings", "configmaps", "secrets"


@dataclass(frozen=True)
class Step:
    """A request, and what happens to it the first time."""

    verb: str
    plural: str
    how: Literal["before", "after", "lost", "forbidden"] = "before"
    """Held before or after it is carried out; carried out without an answer; rejected."""


class SlowApi(SomeApi):
    """`reached` is set when the request of `step` has come, and it is answered after `release`."""

    def __init__(self, folder: Path, step: Step | None = None) -> None:
        super().__init__(folder)
        self._server.RequestHandlerClass = type("Handler", (_SlowHandler,), {"api": self})
        self.step = step
        self.config_maps: dict[str, Manifest] = {}
        self.secrets: dict[str, Manifest] = {}
        self.reached, self._released = threading.Event(), threading.Event()
        self.asked: list[tuple[str, str]] = []
        """(verb, plural) of each request."""

    def release(self) -> None:
        self._released.set()

    def __exit__(self, *_: object) -> None:
        self.release()
        super().__exit__(*_)

    def take(self, verb: str, plural: str) -> str:
        """What happens to this request: `how` of the step for its first one."""
        self.asked.append((verb, plural))
        if self.step is None or (verb, plural) != (self.step.verb, self.step.plural) or self.reached.is_set():
            return ""
        self.reached.set()
        return self.step.how

    def hold(self) -> None:
        assert self._released.wait(120)


class _SlowHandler(_Handler):
    api: SlowApi

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PATCH = do_DELETE = do_GET

    def _handle(self) -> None:
        url = urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        at = parts.index("namespaces") + 2
        plural, name = parts[at], (parts[at + 1 :] or [""])[0]
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        how = self.api.take(self.command, plural)
        if how == "forbidden":
            self._answer(403, {"kind": "Status", "reason": "Forbidden", "message": f"{plural}: no", "details": {}})
            return
        if how == "before":
            self.api.hold()
        dry = "dryRun" in parse_qs(url.query)
        objects = {JOBS: self.api.jobs, SECRETS: self.api.secrets}.get(plural, self.api.config_maps)
        status, answer = self._carry_out(objects, name, body, parts[at - 1], dry)
        if how == "after":
            self.api.hold()
        if how == "lost":
            self.close_connection = True
            return
        with contextlib.suppress(OSError):  # the client has gone
            self._answer(status, answer)

    def _carry_out(
        self, objects: dict[str, Manifest], name: str, body: Manifest, namespace: str, dry: bool
    ) -> tuple[int, Manifest]:
        if self.command == "POST":
            metadata = body["metadata"]
            metadata.setdefault("name", f"{metadata.get('generateName')}x7k2p")
            if metadata["name"] in objects:
                return 409, {"kind": "Status", "reason": "AlreadyExists", "message": "exists", "details": {}}
            metadata |= {"namespace": namespace, "uid": f"uid-of-{metadata['name']}", "resourceVersion": "1"}
            if not dry:
                objects[metadata["name"]] = body
            return 201, body
        if not name:
            return 200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": list(objects.values())}
        if name not in objects:
            message = f'{name} "{name}" not found'
            return 404, {"kind": "Status", "reason": "NotFound", "message": message, "details": {"name": name}}
        if self.command == "PATCH":  # the only one is that of owners
            owners = objects[name]["metadata"].setdefault("ownerReferences", [])
            owners += body["metadata"]["ownerReferences"]
        return 200, objects.pop(name) if self.command == "DELETE" else objects[name]
