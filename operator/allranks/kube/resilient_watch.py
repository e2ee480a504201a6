"""A list and everything that happens to it afterwards, whatever happens to the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal, NamedTuple

from allranks.errors import ClusterError
from allranks.kube.login import JSON, TABLE, Cluster, Manifest, Query

MOST_SECONDS = 10.0
"""Between tries to reach a server that is away."""


class Change(NamedTuple):
    """`item` is an object, or a row of a table."""

    kind: Literal["added", "changed", "deleted"]
    item: Manifest


class Watch:
    """The objects at a path of the API. `await listed()` first, then read `changes()`.

    A watch that is cut begins again where it was. Where the server has forgotten that place (410), everything is
    listed again and compared, so that no change is lost and none is told twice. After `listed()` nothing but a refusal
    ends it: an API server that is away for an upgrade is waited for.
    """

    def __init__(
        self,
        cluster: Cluster,
        path: str,
        query: Query,
        *,
        table: bool = False,
        told: Callable[[str], None] | None = None,
    ) -> None:
        """`told`: is given a sentence when the connection is lost."""
        self._cluster, self._path, self._query = cluster, path, query
        self._accept = TABLE if table else JSON
        self._told = told or (lambda _text: None)
        self._known: dict[str, Manifest] = {}
        self._version = ""
        self.columns: list[Manifest] = []
        """Of a table."""

    async def listed(self) -> list[Manifest]:
        """The objects, or rows, that there are. Raises ClusterError."""
        answer = await self._cluster.get(self._path, self._query, self._accept)
        self.columns = answer.get("columnDefinitions") or self.columns
        self._version = answer["metadata"]["resourceVersion"]
        found = answer.get("rows") if answer.get("kind") == "Table" else answer.get("items")
        self._known = {metadata(item)["uid"]: item for item in found or ()}
        return list(self._known.values())

    async def changes(self) -> AsyncGenerator[Change]:
        """Every change after `listed()`, without end. Raises ClusterError for a refusal."""
        failures, forgotten = 0, False
        while True:
            try:
                if forgotten:
                    for change in await self._relisted():
                        yield change
                    forgotten = False
                query = {**self._query, "resourceVersion": self._version}
                async for event in self._cluster.watch(self._path, query, self._accept):
                    failures = 0
                    if event["type"] == "ERROR":
                        forgotten = True
                        break
                    for change in self._taken(event):
                        yield change
            except ClusterError as error:
                if error.status == 410:
                    forgotten = True
                elif error.status in (401, 403, 404, 422) or (error.status == 400 and failures > 2):
                    raise
                else:
                    if not failures:
                        self._told(f"{error}; trying again")
                    failures += 1
            # A server that ends every watch at once is not to be asked in a loop.
            await asyncio.sleep(min(0.25 * 2**failures, MOST_SECONDS) if failures else 0.1)

    async def _relisted(self) -> list[Change]:
        before = self._known
        now = {metadata(item)["uid"]: item for item in await self.listed()}
        gone = [Change("deleted", item) for uid, item in before.items() if uid not in now]
        new = [Change("changed" if uid in before else "added", item) for uid, item in now.items()]
        return gone + [
            c for c in new if c.kind == "added" or _version(c.item) != _version(before[metadata(c.item)["uid"]])
        ]

    def _taken(self, event: Manifest) -> list[Change]:
        what = event["object"]
        rows = what.get("rows") or [] if what.get("kind") == "Table" else [what]
        if what.get("kind") == "Table":
            self._version = what["metadata"].get("resourceVersion") or self._version
        changes: list[Change] = []
        for item in rows:
            self._version = _version(item) or self._version
            if event["type"] == "BOOKMARK":
                continue
            uid = metadata(item)["uid"]
            if event["type"] == "DELETED":
                self._known.pop(uid, None)
                changes.append(Change("deleted", item))
            else:
                changes.append(Change("changed" if uid in self._known else "added", item))
                self._known[uid] = item
        return changes


def metadata(item: Manifest) -> dict[str, Any]:
    """Of an object, or of a table's row."""
    found: dict[str, Any] = item["object"]["metadata"] if "cells" in item else item["metadata"]
    return found


def _version(item: Manifest) -> str:
    return str(metadata(item).get("resourceVersion") or "")
