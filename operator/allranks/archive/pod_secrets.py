"""The values of Secrets that containers have as variables, for masking. They are never stored and never logged.

The archiver reads Secrets where its ServiceAccount has the permission. Elsewhere the answer is 403, and texts are
masked by names and forms only.
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
"""Time before a Secret that may not be read is requested again."""
TRIES = 5
FIRST_BACKOFF_SECONDS = 0.5
_MOST_FORBIDDEN = 10_000


class Reference(NamedTuple):
    """A Secret of the same namespace that is the source of variables."""

    secret: str
    key: str | None = None
    """None: all keys."""


def references(value: Any) -> Iterator[Reference]:
    """Yield the references of all containers in a manifest: `secretKeyRef` of a variable, and `secretRef` of `envFrom`.

    In a job also `secret` of its inputs and outputs: errors of transfers are in its status.
    """
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
                for transfer in item:
                    if isinstance(transfer, dict) and isinstance(transfer.get("secret"), str):
                        yield Reference(transfer["secret"])
            else:
                yield from references(item)


class SecretValues:
    """Reads the values of Secrets, without a cache. Remembers only which Secrets may not be read."""

    def __init__(self, cluster_of: Callable[[str], Cluster]) -> None:
        self._cluster_of = cluster_of
        self._forbidden: dict[tuple[str, str], float] = {}
        """(namespace, Secret) -> time from which it is requested again."""
        self._logged: set[str] = set()

    async def read(self, namespace: str, references: Collection[Reference]) -> set[str]:
        """Return the texts to mask. Secrets that do not exist or may not be read have none."""
        values: list[str] = []
        for name in sorted({reference.secret for reference in references}):
            data = await self._read(namespace, name)
            keys = {key for key in data if Reference(name, key) in references or Reference(name) in references}
            values += (value for key in keys if (value := _decoded(data[key])) is not None)
        return searchable(values)

    async def _read(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the data of a Secret; empty if it does not exist or cannot be read."""
        if time.monotonic() < self._forbidden.get((namespace, name), 0.0) or not _is_name(name):
            return {}
        backoff = FIRST_BACKOFF_SECONDS
        for left in reversed(range(TRIES)):
            try:
                secret = await self._cluster_of(namespace).get(core_path(namespace, "secrets", name))
            except ClusterError as error:
                if error.status == 404:
                    return {}
                if error.status == 403:
                    self._remember(namespace, name)
                    return {}
                if not left:
                    logger.warning("Secret %s/%s: its values are not masked by themselves: %s", namespace, name, error)
            else:
                data = secret.get("data")
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
        if namespace not in self._logged:
            self._logged.add(namespace)
            logger.info("Secrets of namespace %s may not be read: logs are masked by names and forms only", namespace)


def _is_name(name: str) -> bool:
    """Return whether the name is safe in the path of a request."""
    return name.replace("-", "").replace(".", "").isalnum() and name.isascii()


def _decoded(data: Any) -> str | None:
    """Return the text; None for binary data, which a program cannot have in a variable."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except (TypeError, ValueError, binascii.Error):
        return None
