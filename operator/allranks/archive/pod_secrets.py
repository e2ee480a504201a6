"""The values of Secrets that containers have as variables, for masking. They are never stored and never logged.

The archiver may read Secrets only where its ServiceAccount was given the right. Elsewhere the answer is 403, and texts
are masked by names and forms only.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster
from allranks.kube.paths import core_path
from allranks.masking import searchable

logger = logging.getLogger("allranks.archiver")

FORBIDDEN_SECONDS = 300.0
"""So long after the answer that a Secret may not be read, it is not asked for again."""
TRIES = 5
FIRST_BACKOFF_SECONDS = 0.5
_MOST_FORBIDDEN = 10_000


class Reference(NamedTuple):
    """A Secret of the same namespace that is the source of variables."""

    secret: str
    key: str | None = None
    """None: all keys."""


def references(value: Any) -> Iterator[Reference]:
    """Those of all containers in a manifest: `secretKeyRef` of a variable, and `secretRef` of `envFrom`. In a job also
    `secret` of its inputs and outputs: errors of transfers are in its status."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "secretKeyRef" and isinstance(item, dict):
                if isinstance(item.get("name"), str) and isinstance(item.get("key"), str):
                    yield Reference(item["name"], item["key"])
            elif name == "envFrom" and isinstance(item, list):
                for source in item:
                    secret = source.get("secretRef") if isinstance(source, dict) else None
                    if isinstance(secret, dict) and isinstance(secret.get("name"), str):
                        yield Reference(secret["name"])
            elif name in ("inputs", "outputs") and isinstance(item, list):
                for each in item:
                    if isinstance(each, dict) and isinstance(each.get("secret"), str):
                        yield Reference(each["secret"])
            else:
                yield from references(item)


class SecretValues:
    """`of` reads them, each time again: nothing is kept here."""

    def __init__(self, cluster_of: Callable[[str], Cluster]) -> None:
        self._cluster_of = cluster_of
        self._forbidden: dict[tuple[str, str], float] = {}
        """(namespace, Secret) -> until when it is not asked for."""
        self._said: set[str] = set()

    async def of(self, namespace: str, wanted: Collection[Reference]) -> set[str]:
        """The texts to mask, without those of Secrets that do not exist or may not be read."""
        values: list[str] = []
        for name in sorted({reference.secret for reference in wanted}):
            data = await self._read(namespace, name)
            keys = {key for key in data if Reference(name, key) in wanted or Reference(name) in wanted}
            values += (value for key in keys if (value := _decoded(data[key])) is not None)
        return searchable(values)

    async def _read(self, namespace: str, name: str) -> dict[str, Any]:
        """The data of a Secret; empty without it."""
        if time.monotonic() < self._forbidden.get((namespace, name), 0.0) or not _is_name(name):
            return {}
        backoff = FIRST_BACKOFF_SECONDS
        for left in reversed(range(TRIES)):
            try:
                found = await self._cluster_of(namespace).get(core_path(namespace, "secrets", name))
            except ClusterError as error:
                if error.status == 404:
                    return {}
                if error.status == 403:
                    self._remember(namespace, name)
                    return {}
                if not left:
                    logger.warning("Secret %s/%s: its values are not masked by themselves: %s", namespace, name, error)
            else:
                data = found.get("data")
                return data if isinstance(data, dict) else {}
            if left:
                await asyncio.sleep(random.uniform(0.5, 1.0) * backoff)
                backoff *= 2
        return {}

    def _remember(self, namespace: str, name: str) -> None:
        now = time.monotonic()
        if len(self._forbidden) >= _MOST_FORBIDDEN:
            self._forbidden = {key: until for key, until in self._forbidden.items() if until > now}
        self._forbidden[namespace, name] = now + FORBIDDEN_SECONDS
        if namespace not in self._said:
            self._said.add(namespace)
            logger.info("Secrets of namespace %s may not be read: logs are masked by names and forms only", namespace)


def _is_name(name: str) -> bool:
    """Whether the name leads to no other path."""
    return name.replace("-", "").replace(".", "").isalnum() and name.isascii()


def _decoded(data: Any) -> str | None:
    """None for what is no text: a program cannot have it in a variable."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except (TypeError, ValueError, binascii.Error):
        return None
