"""Gives a supervisor the code of its job's current attempt, from the ConfigMap of the job.

A pod gets no other code: which one follows from its token and from the persisted status. The supervisor compares the
hash. All ranks of a job ask at about the same time, so what was read is kept for a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from allranks.core.facts.model import Manifest
from allranks.core.objects.code import ARCHIVE
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, Fenced, NotFound, Unavailable
from allranks.operator.cache import JobKey
from allranks.shares import Share, Turns
from allranks.telemetry.messages import Answer, ReportSource
from allranks.telemetry.rate_limit import Bucket


@dataclass(frozen=True, slots=True)
class ReadLimits:
    concurrency: int = 4
    """Answers that are prepared at the same time: each has up to 1.4 MB."""
    waiting: int = 64
    """Supervisors that wait for one or have one. Further ones get 503, and try again. Namespaces share both."""
    kept: int = 8
    """Archives that are kept, of 1 MiB at most..."""
    kept_seconds: float = 30.0
    """...for this long."""
    retry_seconds: float = 3.0
    burst_bytes: float = 64 * 2**20
    """Of the answers for one namespace; then it gets..."""
    bytes_per_second: float = 16 * 2**20
    """...this many. A rank may ask as often as it likes, and other namespaces wait for the same process."""


_NAMESPACES = 1000
"""With more, those are forgotten that have used nothing for a while."""


class _Request(msgspec.Struct, frozen=True):
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _ConfigMap(msgspec.Struct, rename="camel"):
    binary_data: dict[str, str] | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_config_map = msgspec.json.Decoder(_ConfigMap).decode


class CodeReader:
    """`job` returns the cached job with this (namespace, name)."""

    def __init__(
        self,
        client: Client,
        job: Callable[[JobKey], Manifest | None],
        *,
        limits: ReadLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._job, self._limits, self._monotonic = client, job, limits or ReadLimits(), monotonic
        self._turns, self._waiting = Turns(self._limits.concurrency), Share(self._limits.waiting)
        self._kept: OrderedDict[tuple[str, str, str], tuple[float, asyncio.Future[str]]] = OrderedDict()
        """(namespace, ConfigMap, SHA-256) -> (until, archive in base64)."""
        self._buckets: dict[str, Bucket] = {}
        """Namespace -> the bytes that it may get."""

    @property
    def large(self) -> dict[str, float]:
        """Return `Share.large` of the supervisors that wait."""
        return self._waiting.large

    async def read(self, sender: ReportSource, body: bytes) -> Answer:
        """Answer the request for the code with a hash."""
        try:
            sha256 = _decode_request(body).sha256
        except (ValueError, RecursionError) as error:
            return Answer(400, {"error": str(error)[:200]})
        code = _code_of(self._job(sender.job))
        if code.get("sha256") != sha256 or not isinstance(code.get("configMap"), str):
            return Answer(409, {"error": "the attempt of this job has other code"})
        namespace = sender.job[0]
        if not self._may_get_more(namespace) or not self._waiting.take(namespace):
            return Answer(503, {"error": "too many pods fetch code"}, 1.0)
        try:
            async with self._turns.turn(namespace):
                archive = await self._archive((namespace, code["configMap"], sha256))
            self._buckets[namespace].add(-len(archive))
            return Answer(200, {"archive": archive})
        except (Unavailable, Fenced):
            return Answer(503, {"error": "the API server is unavailable"}, 1.0)
        except NotFound:
            return Answer(400, {"error": f"the ConfigMap {code['configMap']} does not exist"})
        except (ApiError, msgspec.DecodeError) as error:
            return Answer(400, {"error": f"the ConfigMap {code['configMap']} cannot be read: {str(error)[:500]}"})
        finally:
            self._waiting.give(namespace)

    def _may_get_more(self, namespace: str) -> bool:
        """Return whether a namespace has bytes left. Forgets the namespaces that have used none for long."""
        now, burst, rate = self._monotonic(), self._limits.burst_bytes, self._limits.bytes_per_second
        bucket = self._buckets.setdefault(namespace, Bucket(burst, now))
        left = bucket.left(now, burst, rate)
        if len(self._buckets) > _NAMESPACES:
            self._buckets = {
                name: kept
                for name, kept in self._buckets.items()
                if kept is bucket or kept.left(now, burst, rate) < burst
            }
        return left > 0

    async def _archive(self, key: tuple[str, str, str]) -> str:
        """Raises ApiError and msgspec.DecodeError."""
        now = self._monotonic()
        for old in [kept for kept, (until, _) in self._kept.items() if until <= now]:
            del self._kept[old]
        if key not in self._kept:
            reading: asyncio.Future[str] = asyncio.ensure_future(self._read(*key[:2]))
            self._kept[key] = now + self._limits.kept_seconds, reading
            if len(self._kept) > self._limits.kept:
                self._kept.popitem(last=False)
        try:
            return await asyncio.shield(self._kept[key][1])
        except (ApiError, msgspec.DecodeError):
            self._kept.pop(key, None)
            raise

    async def _read(self, namespace: str, name: str) -> str:
        path = paths.item("ConfigMap", namespace, name)
        answer = await self._client.request("GET", path, retry_timeout=self._limits.retry_seconds)
        archive = (_decode_config_map(answer).binary_data or {}).get(ARCHIVE)
        if archive is None:
            raise NotFound(f"it has no {ARCHIVE}", 404, "NotFound")
        return archive


def _code_of(job: Manifest | None) -> dict[str, Any]:
    """Return the code of the job's attempt, from a status that no schema has validated."""
    status = (job or {}).get("status")
    code = status.get("code") if isinstance(status, dict) else None
    return code if isinstance(code, dict) else {}
