"""Cache of TrainingSweeps, fed by a watch in each namespace and by the responses to our own writes.

Spec and status stay JSON text until they are needed: as Python objects they take up to sixty times their size.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from allranks.api.sweep import Sweep
from allranks.core.facts.model import Manifest
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.store import Store
from allranks.kube.sweep_codec import RawSweep
from allranks.kube.watch import PAGE_OF_LARGE_OBJECTS, Watch
from allranks.operator.cache import JobKey

logger = logging.getLogger(__name__)

MAX_DECODED_BYTES = 2**20
"""JSON text of all sweeps that are kept decoded: about 60 MB as Python objects."""


class SweepCache:
    """Calls `changed(key)` for each sweep that changes. An operator without the right to read sweeps serves none."""

    def __init__(
        self, client: Client, namespaces: Sequence[str | None], renewed_after: int, changed: Callable[[JobKey], None]
    ) -> None:
        self._sweeps: Store[JobKey, RawSweep] = Store(lambda sweep: sweep.version)
        self._changed = changed
        self._unavailable: set[str] = set()
        self.watches = {
            f"sweeps{f' in {namespace}' if namespace else ''}": self._watch(client, namespace, renewed_after)
            for namespace in namespaces
        }

    def __iter__(self) -> Iterator[JobKey]:
        return iter(self._sweeps)

    def __contains__(self, key: JobKey) -> bool:
        return key in self._sweeps

    def get(self, key: JobKey) -> Manifest | None:
        """Return the sweep, decoded. `spec` is None if it is larger than allowed."""
        raw = self._sweeps.get(key)
        return raw.manifest() if raw else None

    def upsert(self, sweep: RawSweep, deleted: bool = False) -> None:
        key = _key(sweep)
        if self._sweeps.delete(key, sweep.version) if deleted else self._sweeps.put(key, sweep.compact()):
            self._changed(key)

    def size(self, key: JobKey) -> int:
        """Bytes of the spec as JSON text."""
        raw = self._sweeps.get(key)
        return len(raw.spec) if raw else 0

    def forget(self, key: JobKey) -> None:
        """Remove a sweep that the API server does not find."""
        self._sweeps.forget(key)

    def _watch(self, client: Client, namespace: str | None, renewed_after: int) -> Watch[RawSweep]:
        def listed(sweeps: Sequence[RawSweep], version: int) -> None:
            present = {_key(sweep) for sweep in sweeps}
            for sweep in sweeps:
                self.upsert(sweep)
            for key, _ in self._sweeps.missing_from(present, version, lambda key: namespace in (None, key[0])):
                self._sweeps.delete(key, version)
                self._changed(key)

        def forbidden(message: str) -> None:
            logger.warning("this operator cannot read TrainingSweeps, and serves none: %s", message)

        return Watch(
            client,
            paths.sweeps(namespace),
            RawSweep,
            listed=listed,
            changed=self.upsert,
            renewed_after=renewed_after,
            forbidden=forbidden,
            page=PAGE_OF_LARGE_OBJECTS,
        )


class DecodedSweeps:
    """The sweeps that were decoded last, of at most `MAX_DECODED_BYTES` of JSON text together."""

    def __init__(self) -> None:
        self._kept: OrderedDict[JobKey, tuple[str, int, int, Sweep]] = OrderedDict()
        """(UID, generation, bytes, sweep); the one that was used last is the last one."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: JobKey, uid: str, generation: int) -> Sweep | None:
        kept = self._kept.get(key)
        if kept is None or kept[:2] != (uid, generation):
            return None
        self._kept.move_to_end(key)
        return kept[3]

    def keep(self, key: JobKey, uid: str, generation: int, size: int, sweep: Sweep) -> None:
        self.forget(key)
        self._kept[key] = uid, generation, size, sweep
        self._bytes += size
        while self._bytes > MAX_DECODED_BYTES:
            self.forget(next(iter(self._kept)))

    def forget(self, key: JobKey) -> None:
        if kept := self._kept.pop(key, None):
            self._bytes -= kept[2]


def _key(sweep: RawSweep) -> JobKey:
    return sweep.metadata.namespace, sweep.metadata.name
