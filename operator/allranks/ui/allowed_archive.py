"""The archive of a server in the cluster: the server reads it for all users, and shows each user only what the user
may read of jobs that exist.

The archive knows no users. So before anything of a namespace is read, the API server is asked with the user's own
token: `get` of jobs for jobs and reports, `get` of sweeps for sweeps, `list` of Events for Events, `get` of pods/log
for logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from allranks.api.job import GROUP, PLURAL
from allranks.api.sweep import PLURAL as SWEEPS_PLURAL
from allranks.archive.reader import Reader
from allranks.ui.archive import ArchivedJobs
from allranks.ui.entries import Entry, Manifest
from allranks.ui.logs import Found, Wanted
from allranks.ui.problems import Problem

MOST_NAMESPACES = 16
"""Lists of jobs of single namespaces that are kept in memory."""
MOST_JOBS_OF_NAMESPACE = 500
_AT_ONCE = 16
"""Questions about rights."""


class Right(NamedTuple):
    """A verb on a resource, as RBAC names them."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource}{f'.{self.group}' if self.group else ''}"


JOBS = Right("get", GROUP, PLURAL)
SWEEPS = Right("get", GROUP, SWEEPS_PLURAL)
EVENTS = Right("list", "", "events")
LOGS = Right("get", "", "pods", "log")
T = TypeVar("T")
May = Callable[[Right, str | None], Awaitable[bool]]
"""(right, namespace or None for all of them) -> whether the user has it. Raises ClusterError."""


class SharedArchive:
    """The lists of archived jobs, which all users share."""

    def __init__(self, url: str) -> None:
        """Raises ArchiveError if this cannot be the address of an archive."""
        self._url = url
        self._all = ArchivedJobs(Reader.open(url))
        self._of: dict[str, ArchivedJobs] = {}

    def of(self, namespace: str | None) -> ArchivedJobs:
        """Those of a namespace, so that other namespaces with many jobs do not take their places; None: of all."""
        if namespace is None:
            return self._all
        found = self._of.pop(namespace, None) or ArchivedJobs(Reader.open(self._url), namespace, MOST_JOBS_OF_NAMESPACE)
        self._of[namespace] = found
        while len(self._of) > MOST_NAMESPACES:
            del self._of[next(iter(self._of))]
        return found


class AllowedArchive:
    """What one user may see of it. All methods raise ArchiveError, ClusterError and Problem."""

    def __init__(self, shared: SharedArchive, namespace: str | None, may: May, user: str) -> None:
        """`namespace`: only its jobs."""
        self._shared, self._namespace, self._may, self._user = shared, namespace, may, user

    @property
    def url(self) -> str:
        return self._shared.of(None).url

    async def all(self) -> list[Entry]:
        """The jobs of the namespaces in which the user may read jobs. Names of others appear nowhere."""
        return await self._visible(JOBS, ArchivedJobs.all, lambda entry: entry.group)

    async def sweeps(self) -> list[Manifest]:
        """The sweeps of the namespaces in which the user may read sweeps."""
        return await self._visible(SWEEPS, ArchivedJobs.sweeps, lambda sweep: str(sweep["metadata"]["namespace"]))

    async def _visible(
        self, right: Right, read: Callable[[ArchivedJobs], Awaitable[list[T]]], namespace_of: Callable[[T], str]
    ) -> list[T]:
        if self._namespace is not None:
            allowed = await self._may(right, self._namespace)
            return await read(self._shared.of(self._namespace)) if allowed else []
        found = await read(self._shared.of(None))
        if await self._may(right, None):
            return found
        namespaces = await self._allowed(right, set(map(namespace_of, found)))
        return [one for one in found if namespace_of(one) in namespaces]

    async def _allowed(self, right: Right, namespaces: Iterable[str]) -> set[str]:
        free = asyncio.Semaphore(_AT_ONCE)

        async def ask(namespace: str) -> tuple[str, bool]:
            async with free:
                return namespace, await self._may(right, namespace)

        return {namespace for namespace, allowed in await asyncio.gather(*map(ask, namespaces)) if allowed}

    async def get(self, namespace: str, folder: str) -> Entry:
        await self._check([JOBS], namespace)
        return await self._shared.of(namespace).get(namespace, folder)

    async def events(self, entry: Entry) -> list[Manifest]:
        await self._check([JOBS, EVENTS], entry.group)
        return await self._shared.of(entry.group).events(entry)

    async def last_lines(self, entry: Entry, wanted: Wanted) -> Found:
        await self._check([JOBS, LOGS], entry.group)
        return await self._shared.of(entry.group).last_lines(entry, wanted)

    async def sweep(self, namespace: str, folder: str) -> Manifest:
        await self._check([SWEEPS], namespace)
        return await self._shared.of(namespace).sweep(namespace, folder)

    async def sweep_events(self, sweep: Manifest) -> list[Manifest]:
        namespace = sweep["metadata"]["namespace"]
        await self._check([SWEEPS, EVENTS], namespace)
        return await self._shared.of(namespace).sweep_events(sweep)

    async def trial(self, sweep: Manifest, job: str) -> Entry:
        namespace = sweep["metadata"]["namespace"]
        await self._check([SWEEPS, JOBS], namespace)
        return await self._shared.of(namespace).trial(sweep, job)

    async def trials(self, sweep: Manifest, names: Sequence[str]) -> list[Manifest]:
        namespace = sweep["metadata"]["namespace"]
        await self._check([SWEEPS, JOBS], namespace)
        return await self._shared.of(namespace).trials(sweep, names)

    async def _check(self, rights: Sequence[Right], namespace: str) -> None:
        """Before the archive is read: who has no right does not learn what it has."""
        if self._namespace not in (None, namespace):
            raise Problem(404, f"this page shows namespace {self._namespace}, not {namespace}")
        for right in rights:
            if not await self._may(right, namespace):
                raise Problem(
                    403,
                    f"{self._user} may not {right} in namespace {namespace}, which the archive needs as well: ask its "
                    "admin for the role view",
                )
