"""The API server's ConfigMaps in memory, as far as the operator uses them: create, get, delete, and refusals."""

from __future__ import annotations

import json
from typing import Any

from allranks.kube.errors import Conflict, NotFound

Manifest = dict[str, Any]


class ConfigMaps:
    """Stands in for a `Client`."""

    def __init__(self) -> None:
        self.items: dict[str, Manifest] = {}
        """By name."""
        self.requests = 0
        self.errors: list[Exception] = []
        """Raised by the next requests, one each."""

    async def request(self, verb: str, path: str, body: Any = None, *_: Any, **__: Any) -> bytes:
        if verb == "GET":
            return await self.get(path)
        self._count()
        assert verb == "POST"
        name = body["metadata"]["name"]
        if name in self.items:
            raise Conflict("it exists", 409, "AlreadyExists")
        self.items[name] = json.loads(json.dumps(body))
        self.items[name]["metadata"]["uid"] = f"uid of {name}"
        return json.dumps(self.items[name]).encode()

    async def get(self, path: str) -> bytes:
        self._count()
        name = path.rpartition("/")[2]
        if name not in self.items:
            raise NotFound("there is none", 404, "NotFound")
        return json.dumps(self.items[name]).encode()

    async def delete(self, path: str, uid: str) -> bytes:
        self._count()
        name = path.rpartition("/")[2]
        assert self.items[name]["metadata"]["uid"] == uid
        return json.dumps(self.items.pop(name)).encode()

    def _count(self) -> None:
        self.requests += 1
        if self.errors:
            raise self.errors.pop(0)
