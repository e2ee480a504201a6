"""The command line's view of an API server: plain manifests, and errors that say what the user can do.

aiohttp and msgspec are imported when a command connects: `allranks run` works without them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click

from allranks.errors import ClusterError
from allranks.extras import install_command
from allranks.kube.errors import DISCONNECTED, TIMED_OUT, ApiError, Target, Unavailable, explain
from allranks.kube.store import differences
from allranks.version import __version__

if TYPE_CHECKING:
    import aiohttp
    import msgspec

    from allranks.kube.auth import Connection
    from allranks.kube.client import Client

Manifest = dict[str, Any]
Query = Mapping[str, str | int | None]
T = TypeVar("T")

JSON = "application/json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
"""Merges the items of lists by their keys. Only for kinds of Kubernetes itself."""
TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}"
"""The answer as `kubectl get` prints it, by the CRD's own columns."""
METADATA = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
"""The answer without spec and status, for a list."""
METADATA_OF_ONE = METADATA.replace("MetadataList", "Metadata")

ANSWER_SECONDS = 45.0
"""Less than the 60 s after which the API server closes the connection in the middle of an answer: only after a timeout
do lists ask for fewer objects (`kube.watch`)."""
RETRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster and namespace that the user named. Values that are None come from the kubeconfig."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


@dataclass
class Cluster:
    """A session with an API server. All methods raise ClusterError."""

    client: Client
    namespace: str
    """The user's, else the context's."""
    wanted_namespace: str | None = None
    """Only if the user named one."""
    interrupted: str = ""
    """The message to print on Ctrl-C."""

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, where: Where) -> AsyncIterator[Cluster]:
        """Raises ClusterError if no cluster is configured. It sends nothing yet."""
        try:
            import allranks.kube.client  # noqa: F401
            from allranks.kube.auth import NotConfigured, connect
        except ImportError as error:
            needed = "the commands for clusters need further Python packages"
            raise ClusterError(f"{needed} ({error}): {install_command('cli')}") from error
        try:
            connection = connect(where.kubeconfig, where.context, prefer_pod=False)
        except NotConfigured as error:
            advice = "`allranks run` runs the job on this machine, and `allranks runs` has its logs and reports"
            raise ClusterError(f"{error}. Without a cluster, {advice}") from error
        client = user_client(connection)
        try:
            yield cls(client, where.namespace or connection.namespace, where.namespace)
        finally:
            await client.close()

    async def get(self, path: str, query: Query | None = None, accept: str = JSON) -> Manifest:
        return await self.request("GET", path, query, accept=accept)

    async def items(
        self,
        path: str,
        query: Query | None,
        decode: Callable[[msgspec.Raw], T | None],
        turn: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    ) -> list[T]:
        """Return what `decode` returns for the objects at a path, without None.

        One page is in memory at a time, within its `turn`.
        """
        import msgspec

        from allranks.kube import watch

        items: list[T] = []
        reader = watch.Watch(
            self.client,
            path,
            decode,
            listed=lambda objects, _version: items.extend(item for item in objects if item is not None),
            changed=lambda _item, _deleted: None,
            parameters=parameters(query),
            page=watch.PAGE_OF_LARGE_OBJECTS,
            turn=turn,
        )
        try:
            await reader.list_all()
        except ApiError as error:
            raise self.explain(error, path) from error
        except msgspec.DecodeError as error:
            raise self._no_api_server(path) from error
        return items

    async def request(
        self,
        verb: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        accept: str = JSON,
        content: str | None = None,
    ) -> Manifest:
        """Return the answer. A PATCH is a JSON merge patch, unless `content` is another type."""
        import msgspec

        try:
            answer = await self.client.request(verb, path, body, parameters(query), accept=accept, content=content)
            return msgspec.json.decode(answer, type=Manifest)
        except ApiError as error:
            raise self.explain(error, path, verb) from error
        except msgspec.DecodeError as error:
            raise self._no_api_server(path) from error

    @contextlib.asynccontextmanager
    async def stream(self, path: str, query: Query, silence: float | None) -> AsyncIterator[aiohttp.StreamReader]:
        """Open the body of an answer while it arrives. Raises ClusterError if nothing arrives for `silence` seconds."""
        try:
            async with self.client.stream(path, parameters(query), silence, accept="*/*") as content:
                yield content
        except ApiError as error:
            raise self.explain(error, path) from error

    def _no_api_server(self, path: str) -> ClusterError:
        return ClusterError(f"{self._target(path).place} is not an API server: its answer is not a JSON object")

    def explain(self, error: ApiError, path: str, verb: str = "GET") -> ClusterError:
        return explain(error, self._target(path, verb))

    def _target(self, path: str, verb: str = "GET") -> Target:
        return Target(self.client.connection.url, self.client.connection.context, path, verb)


def user_client(connection: Connection) -> Client:
    """Return a client for somebody who waits for the answer: it tries again for a short time, and only what is safe."""
    from allranks.kube.client import Client, Transport

    return Client(
        connection,
        concurrency=256,
        timeout=ANSWER_SECONDS,
        retry_timeout=RETRY_SECONDS,
        may_retry=_may_retry,
        on_warning=_warn,
        user_agent=f"allranks/{__version__}",
        transport=Transport(connection, read_buffer=1 << 18),
    )


def parameters(query: Query | None) -> dict[str, str]:
    return {key: str(value) for key, value in (query or {}).items() if value is not None}


def _may_retry(verb: str, error: Unavailable) -> bool:
    """Return whether a repetition is safe, and likely to succeed while the user waits."""
    return error.status in (429, 503) or (verb == "GET" and error.reason in (DISCONNECTED, TIMED_OUT))


def _warn(header: str) -> None:
    """Print a Warning header: a deprecation, pod security."""
    _, _, text = header.partition('"')
    click.echo(f"{click.style('warning:', fg='yellow')} {text.rstrip().rstrip(chr(34))}", err=True)


class Change(NamedTuple):
    """`item` is an object, or a row of a table."""

    kind: Literal["added", "changed", "deleted"]
    item: Manifest


class Watch:
    """The objects at a path, as plain manifests or as rows of a table. `await listed()` first, then read `changes()`.

    After a lost connection it continues where it was. After a relist it reports only differences. Once `listed()` has
    returned, only a rejection by the API server ends it; while the server is away, it tries again.
    """

    def __init__(
        self,
        cluster: Cluster,
        path: str,
        query: Query,
        *,
        table: bool = False,
        on_interruption: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """`on_interruption` gets a sentence when the connection is lost."""
        from allranks.kube import watch
        from allranks.kube.decoding import decoder

        self._cluster, self._path, self._on_interruption = cluster, path, on_interruption
        self._items: dict[str, Manifest] = {}
        self._changes: asyncio.Queue[Change | None] = asyncio.Queue()
        self._watch = watch.Watch(
            cluster.client,
            path,
            decoder(Manifest),
            listed=self._on_list,
            changed=self._on_change,
            parameters=parameters(query),
            accept=TABLE if table else JSON,
            on_error=self._on_error,
        )

    @property
    def columns(self) -> list[Manifest]:
        """Return the column definitions of a table."""
        return self._watch.columns

    async def listed(self) -> list[Manifest]:
        """Return the current objects, or rows. Raises ClusterError."""
        try:
            await self._watch.list_all()
        except ApiError as error:
            raise self._cluster.explain(error, self._path) from error
        self._changes = asyncio.Queue()
        return list(self._items.values())

    async def changes(self) -> AsyncGenerator[Change]:
        """Yield every change after `listed()`, without end. Raises ClusterError when the API server rejects the
        watch."""
        running = asyncio.create_task(self._watch.run())
        running.add_done_callback(lambda _: self._changes.put_nowait(None))
        try:
            while change := await self._changes.get():
                yield change
            running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _on_list(self, items: Sequence[Manifest], _version: int) -> None:
        before, self._items = self._items, {metadata(item)["uid"]: item for item in items}
        for kind, item in differences(before, self._items, _version_of):
            self._changes.put_nowait(Change(kind, item))

    def _on_change(self, answer: Manifest, deleted: bool) -> None:
        for item in (answer.get("rows") or []) if answer.get("kind") == "Table" else [answer]:
            uid = metadata(item)["uid"]
            if deleted:
                self._items.pop(uid, None)
                self._changes.put_nowait(Change("deleted", item))
            else:
                self._changes.put_nowait(Change("changed" if uid in self._items else "added", item))
                self._items[uid] = item

    def _on_error(self, error: Exception, failures: int) -> None:
        text = error
        if isinstance(error, ApiError):
            text = self._cluster.explain(error, self._path)
            if error.status in (401, 403, 404, 422) or (error.status == 400 and failures > 3):
                raise text
        if failures == 1:
            self._on_interruption(f"{text}; trying again")


def metadata(item: Manifest) -> dict[str, Any]:
    """Return the metadata of an object, or of a table's row."""
    answer: dict[str, Any] = item["object"]["metadata"] if "cells" in item else item["metadata"]
    return answer


def _version_of(item: Manifest) -> str:
    return str(metadata(item).get("resourceVersion") or "")
