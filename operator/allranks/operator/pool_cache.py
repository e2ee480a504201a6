"""Cache of TrainingPools, or the reason why this operator does not serve them."""

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
from allranks.kube.watch import ObjectMeta, Watch
from allranks.operator.settings import Settings

logger = logging.getLogger(__name__)


class Raw(msgspec.Struct):
    """A pool with its spec, not yet validated."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}


class Pools:
    """Calls `changed(name)` for each pool that changes; None means all pools."""

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
            changed=self._upsert,
            renewed_after=settings.watch_timeout,
            forbidden=self._forbidden,
        )

    async def run(self) -> None:
        """Run forever."""
        await (self.watch.run() if self.watch else asyncio.Event().wait())

    def get(self, name: str) -> PoolSpec | None:
        return self._pools.get(name)

    def _listed(self, pools: Sequence[Raw], _: int) -> None:
        self._pools = {raw.metadata.name: spec for raw in pools if (spec := _spec(raw))}
        self.refused = ""
        self.synced.set()
        self._changed(None)

    def _upsert(self, raw: Raw, deleted: bool) -> None:
        spec = None if deleted else _spec(raw)
        if spec is None:
            self._pools.pop(raw.metadata.name, None)
        else:
            self._pools[raw.metadata.name] = spec
        self._changed(raw.metadata.name)

    def _forbidden(self, message: str) -> None:
        """Note that the ClusterRole that reads pools, or their CRD, is missing. Jobs without a pool are not
        affected."""
        missing = "its ClusterRole for them, or their CustomResourceDefinition, is missing"
        self.refused = f"this operator cannot read TrainingPools ({message}): {missing}"
        self.synced.set()
        self._changed(None)


def _spec(raw: Raw) -> PoolSpec | None:
    """Return None for an invalid pool. The core reports errors inside the template to the jobs that use the pool."""
    try:
        return PoolSpec.model_validate(raw.spec, by_alias=True, by_name=False)
    except ValidationError as error:
        # Without the values: environment variables may hold secrets.
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
        details = "; ".join(f"{'.'.join(map(str, ('spec', *detail['loc'])))}: {detail['msg']}" for detail in wrong)
        logger.error("TrainingPool %s is invalid and treated as missing: %s", raw.metadata.name, details)
        return None
