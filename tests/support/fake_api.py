"""API servers for tests of controllers: each keeps what its controller reads and writes, for `scripted.client_of`."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web

from allranks.kube import merge_patch

from .scripted import says, status, streams

Object = dict[str, Any]
JOB: Object = {
    "metadata": {"name": "demo", "namespace": "ns"},
    "spec": {"framework": "pytorch", "image": "x", "command": ["a"], "roles": {"worker": {"replicas": 2}}},
}


class OneObject:
    """Keeps one object and its status; answers each creation of another one, without keeping it.

    `refusal`: the creation of pods is rejected with this message. `unknown`: a field of the status that it drops.
    """

    def __init__(self, document: Object = JOB, refusal: Callable[[], str] | None = None, unknown: str = "") -> None:
        self.refusal, self.unknown = refusal, unknown
        self.versions = itertools.count(2)
        metadata = {**document["metadata"], "uid": "u", "generation": 1, "resourceVersion": "1"}
        self.object: Object = {**document, "metadata": metadata}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        if request.path.endswith("/status"):
            body["status"].pop(self.unknown, None)
            self.write_status(body["status"])
            return await says(self.object)(request)
        if request.path.endswith("/pods") and self.refusal:
            return await status(403, "Forbidden", self.refusal())(request)
        body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": str(next(self.versions))}
        return await says(body)(request)

    def write_status(self, change: Object) -> None:
        after = merge_patch.apply(change, self.object.get("status", {}))
        if after != self.object.get("status"):
            version = {"resourceVersion": str(next(self.versions))}
            self.object = self.object | {"status": after, "metadata": self.object["metadata"] | version}


class Objects(OneObject):
    """Keeps a job and the objects of it. `quota` is the number of pods, `frozen` rejects deletions."""

    def __init__(self, workers: int, quota: int = 10_000) -> None:
        super().__init__({**JOB, "spec": {**JOB["spec"], "roles": {"worker": {"replicas": workers}}}})
        self.quota, self.frozen = quota, False
        self.objects: dict[str, Object] = {}
        """By path."""
        self.refused: Counter[str] = Counter()
        """By verb."""
        self.events: list[Object] = []

    @property
    def pods(self) -> list[Object]:
        return [kept for path, kept in self.objects.items() if "/pods/" in path]

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/status"):
            return await super().__call__(request)
        text = await request.text()
        body = json.loads(text) if text else {}
        if request.path.endswith("/events"):
            self.events.append(body)
            return await says(body)(request)
        if request.method == "POST":
            return await self._create(request, body)
        kept = self.objects.get(request.path)
        if kept is None:
            return await status(404, "NotFound")(request)
        if request.method == "DELETE":
            if self.frozen:
                self.refused["DELETE"] += 1
                return await status(403, "Forbidden", "change freeze")(request)
            times = {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": str(next(self.versions))}
            kept = self.objects[request.path] = kept | {"metadata": kept["metadata"] | times}
        return await says(kept)(request)

    async def _create(self, request: web.Request, body: Object) -> web.StreamResponse:
        path = f"{request.path}/{body['metadata']['name']}"
        if path in self.objects:
            return await status(409, "AlreadyExists")(request)
        if request.path.endswith("/pods") and len(self.pods) >= self.quota:
            self.refused["POST"] += 1
            return await status(403, "Forbidden", "exceeded quota: pods")(request)
        body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": str(next(self.versions))}
        self.objects[path] = body
        return await says(body)(request)


class KueueGroup:
    """Serves Kueue in `versions`, with `workloads`. A test changes both."""

    def __init__(self, workloads: list[Object], *versions: str) -> None:
        self.versions: tuple[str, ...] = versions
        self.workloads = workloads
        self.forbidden = False

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if parts == ["apis"]:
            versions = [{"version": version} for version in self.versions]
            groups = [{"name": "kueue.x-k8s.io", "versions": versions}] if versions else []
            return await says({"groups": groups})(request)
        if len(parts) == 3:
            return await says({"resources": [{"name": "workloads"}, {"name": "workloads/status"}]})(request)
        if self.forbidden:
            return await status(403, "Forbidden", "no right to list")(request)
        if parts[2] not in self.versions:
            return await status(404, "NotFound", "not here")(request)
        if "watch" in request.query:
            return await streams(then="hang")(request)
        return await says({"metadata": {"resourceVersion": "9"}, "items": self.workloads})(request)
