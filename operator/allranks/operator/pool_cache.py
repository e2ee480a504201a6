"""TrainingPools as last seen, or the reason why they are not served here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError

from allranks.api.pool import PoolSpec
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.watch import Watch
from allranks.operator.settings import Settings

logger = logging.getLogger(__name__)


class _Meta(msgspec.Struct):
    name: str


class Raw(msgspec.Struct):
    """A pool, its spec as it is."""

    metadata: _Meta
    spec: dict[str, Any] = {}


class Pools:
    """`changed(name)` is called for each pool that changes, with None for all."""

    def __init__(self, client: Client, settings: Settings, changed: Callable[[str | None], None]) -> None:
        self._pools: dict[str, PoolSpec] = {}
        self._changed = changed
        self.synced = asyncio.Event()
        self.refused = ""
        self.watch: Watch[Raw] | None = None
        if not settings.pools:
            self.refused = "this operator does not serve TrainingPools (setting `pools`)"
            self.synced.set()
            return
        self.watch = Watch(
            client,
            paths.pools(),
            Raw,
            listed=self._listed,
            changed=self._one,
            renewed_after=settings.watch_timeout,
            forbidden=self._forbidden,
        )

    async def run(self) -> None:
        """For ever."""
        await (self.watch.run() if self.watch else asyncio.Event().wait())

    def get(self, name: str) -> PoolSpec | None:
        return self._pools.get(name)

    def _listed(self, found: Sequence[Raw], _: int) -> None:
        self._pools = {raw.metadata.name: spec for raw in found if (spec := _spec(raw))}
        self.refused = ""
        self.synced.set()
        self._changed(None)

    def _one(self, raw: Raw, deleted: bool) -> None:
        spec = None if deleted else _spec(raw)
        if spec is None:
            self._pools.pop(raw.metadata.name, None)
        else:
            self._pools[raw.metadata.name] = spec
        self._changed(raw.metadata.name)

    def _forbidden(self, message: str) -> None:
        """Without the ClusterRole that reads pools, or without their CRD: everything else goes on."""
        missing = "its ClusterRole for them, or their CustomResourceDefinition, is missing"
        self.refused = f"this operator cannot read TrainingPools ({message}): {missing}"
        self.synced.set()
        self._changed(None)


def _spec(raw: Raw) -> PoolSpec | None:
    """What is wrong inside its template, the core tells the jobs that name it."""
    try:
        return PoolSpec.model_validate(raw.spec, by_alias=True, by_name=False)
    except ValidationError as error:
        # Without the values: those of variables are nobody's business.
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
        told = "; ".join(f"{'.'.join(map(str, ('spec', *detail['loc'])))}: {detail['msg']}" for detail in wrong)
        logger.error("TrainingPool %s cannot be read, so that it counts as absent: %s", raw.metadata.name, told)
        return None
