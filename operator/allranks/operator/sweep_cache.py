"""Cache of TrainingSweeps, fed by a watch in each namespace and by the responses to our own writes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from allranks.api.job import API_VERSION
from allranks.api.sweep import KIND
from allranks.core.model import Manifest
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.watch import Watch
from allranks.operator.cache import JobKey

logger = logging.getLogger(__name__)


class SweepCache:
    """Calls `changed(key)` for each sweep that changes. An operator without the right to read sweeps serves none."""

    def __init__(
        self, client: Client, namespaces: Sequence[str | None], renewed_after: int, changed: Callable[[JobKey], None]
    ) -> None:
        self._sweeps: dict[JobKey, Manifest] = {}
        self._changed = changed
        self._unavailable: set[str] = set()
        self.watches = {
            f"sweeps{f' in {namespace}' if namespace else ''}": self._watch(client, namespace, renewed_after)
            for namespace in namespaces
        }

    def __iter__(self) -> Iterator[JobKey]:
        return iter(list(self._sweeps))

    def get(self, key: JobKey) -> Manifest | None:
        return self._sweeps.get(key)

    def upsert(self, sweep: Manifest, deleted: bool = False) -> None:
        """Older versions never replace newer ones."""
        key = _key(sweep)
        cached = self._sweeps.get(key)
        if cached is not None and _version(sweep) < _version(cached):
            return
        if deleted:
            self._sweeps.pop(key, None)
        else:
            metadata = {name: value for name, value in sweep["metadata"].items() if name != "managedFields"}
            self._sweeps[key] = {**sweep, "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
        if cached is None or deleted or _version(sweep) > _version(cached):
            self._changed(key)

    def forget(self, key: JobKey) -> None:
        """The API server answered 404."""
        self._sweeps.pop(key, None)

    def _watch(self, client: Client, namespace: str | None, renewed_after: int) -> Watch[dict[str, Any]]:
        def listed(found: Sequence[Manifest], version: int) -> None:
            present = {_key(sweep) for sweep in found}
            for sweep in found:
                self.upsert(sweep)
            for key in self:
                stale = key not in present and namespace in (None, key[0])
                if stale and _version(self._sweeps[key]) <= version:
                    del self._sweeps[key]

        def forbidden(message: str) -> None:
            logger.warning("this operator cannot read TrainingSweeps, and serves none: %s", message)

        return Watch(
            client,
            paths.sweeps(namespace),
            dict[str, Any],
            listed=listed,
            changed=self.upsert,
            renewed_after=renewed_after,
            forbidden=forbidden,
        )


def _key(sweep: Manifest) -> JobKey:
    return sweep["metadata"].get("namespace", ""), sweep["metadata"]["name"]


def _version(sweep: Manifest) -> int:
    return int(sweep["metadata"].get("resourceVersion") or 0)
