"""Discovers which optional kinds the cluster serves, and caches their objects.

A watch starts when the API server lists its kind, and ends when it no longer does. The API server is asked again every
`Timing.optional_apis` seconds, so that jobs which wait for Kueue, for example, continue when it is installed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import JOB_LABEL, controller_of
from allranks.core.facts.optional_kinds import GANGS, QUEUES, ObjectKey, OptionalKind, OptionalObjects, kind_of
from allranks.core.objects.queueing.sync import BOOST_ANNOTATION
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.decoding import ObjectMeta, decoder
from allranks.kube.errors import ApiError, NotFound, Refused
from allranks.kube.store import Store, version_of, with_version
from allranks.kube.watch import PAGE_OF_LARGE_OBJECTS, Watch
from allranks.operator.settings import Settings
from allranks.operator.timing import Timing

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
"""Delay after a discovery request that failed."""


class _Version(msgspec.Struct):
    version: str


class _Group(msgspec.Struct):
    name: str
    versions: list[_Version] = []


class _Groups(msgspec.Struct):
    groups: list[_Group] = []


class _Resource(msgspec.Struct):
    name: str


class _Resources(msgspec.Struct):
    resources: list[_Resource] = []


@dataclass
class _Served:
    """A kind that the cluster serves in this version."""

    version: str
    watches: list[Watch[Any]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    forbidden: str = ""
    listed: set[str | None] = field(default_factory=set)
    """Namespaces whose objects have been listed; None stands for all of them."""


class OptionalApis:
    """`kinds` are those that the operator's settings enable. Calls `changed(kind, object)` for each object that
    changes, and `changed(kind, None)` when a kind appears or disappears: then every job may be affected."""

    def __init__(
        self,
        client: Client,
        kinds: Collection[OptionalKind],
        settings: Settings,
        changed: Callable[[OptionalKind, Manifest | None], None],
        timing: Timing,
        unusable: Mapping[str, str] | None = None,
    ) -> None:
        """`unusable`: id of a kind that is not in `kinds` -> why the operator does not use it."""
        self._client, self._kinds, self._changed, self._timing = client, tuple(kinds), changed, timing
        self._namespaces: tuple[str | None, ...] = settings.namespaces or (None,)
        self._watch_timeout = settings.watch_timeout
        self._unusable = dict(unusable or {})
        self._served: dict[str, _Served] = {}
        self._objects: Store[ObjectKey, Manifest] = Store(version_of)
        self._by_owner: defaultdict[str, dict[ObjectKey, Manifest]] = defaultdict(dict)
        """UID of the controller -> objects."""
        self._discovered = not self._kinds
        self.synced = asyncio.Event()
        """Set once every kind is listed, or the API server does not serve it, or does not let it be read."""
        self._note_synced()

    def observe(self, uid: str) -> OptionalObjects:
        """Return the objects for the reconcile of the job with this UID."""
        if not self._served and not self._unusable:
            return NOTHING if not self._kinds else OptionalObjects(problems=self._problems())
        return OptionalObjects(
            versions={
                kind.id: f"{kind.group}/{served.version}"
                for kind in self._kinds
                if (served := self._served.get(kind.id)) and self._is_listed(kind, served)
            },
            problems=self._problems(),
            of_job=tuple(self._by_owner.get(uid, {}).values()),
            shared=MappingProxyType(self._objects.objects),
        )

    def _problems(self) -> dict[str, str]:
        out = dict(self._unusable)
        for kind in self._kinds:
            served = self._served.get(kind.id)
            if served is None:
                out[kind.id] = f"this cluster does not serve {kind.plural}.{kind.group} in {' or '.join(kind.versions)}"
            elif not served.forbidden and not self._is_listed(kind, served):
                out[kind.id] = f"this operator has not read {kind.plural}.{kind.group} yet"
            elif served.forbidden:
                out[kind.id] = f"this operator cannot read {kind.plural}.{kind.group} ({served.forbidden})"
        return out

    async def run(self) -> None:
        """Run forever. Returns at once if no kinds are enabled, after waiting for cancellation."""
        if not self._kinds:
            await asyncio.Event().wait()
        try:
            while True:
                try:
                    await self._discover()
                    wait = self._timing.optional_apis
                except ApiError as error:
                    logger.warning("cannot read which APIs the cluster serves: %s", error)
                    wait = _RETRY_SECONDS
                await asyncio.sleep(wait)
        finally:
            tasks = [task for served in self._served.values() for task in served.tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def objects(self) -> list[tuple[ObjectKey, Manifest]]:
        """Return everything in the cache."""
        return list(self._objects.objects.items())

    def remember(self, manifest: Manifest) -> None:
        """Cache the response to the operator's own write."""
        kind = next((kind for kind in self._kinds if kind.id == kind_of(manifest)), None)
        if kind and kind.id in self._served:
            self._upsert(kind, _decoded(kind, msgspec.json.encode(manifest)), deleted=False)

    def forget(self, manifest: Manifest) -> None:
        """Drop an object that the operator deleted in the version that it had observed."""
        kind = next((kind for kind in self._kinds if kind.id == kind_of(manifest)), None)
        if kind:
            self._upsert(kind, manifest, deleted=True)

    def watches(self) -> Iterable[tuple[str, Watch[Any]]]:
        """Yield the name and the watch of each kind that can be read, for the liveness probe."""
        for kind in self._kinds:
            if (served := self._served.get(kind.id)) and not served.forbidden:
                yield from ((f"{kind.plural}.{kind.group}", watch) for watch in served.watches)

    async def _discover(self) -> None:
        """Raises ApiError."""
        groups = msgspec.json.decode(await self._client.get(paths.GROUPS), type=_Groups).groups
        versions = {group.name: {served.version for served in group.versions} for group in groups}
        resources: dict[str, set[str]] = {}
        available: dict[str, str] = {}
        for kind in self._kinds:
            for version in kind.versions:
                if version in versions.get(kind.group, ()):
                    path = paths.group_version(kind, version)
                    if path not in resources:
                        resources[path] = await self._resources(path)
                    if kind.plural in resources[path]:
                        available[kind.id] = version
                        break
        for kind in self._kinds:
            served, newest = self._served.get(kind.id), available.get(kind.id)
            if (served.version if served else None) == newest:
                continue
            if served:
                await self._stop(kind, served)
            if newest:
                self._start(kind, newest)
        self._discovered = True
        self._note_synced()

    async def _resources(self, path: str) -> set[str]:
        """Return the names of the resources of a version. A group may be deleted between the two requests."""
        try:
            answer = msgspec.json.decode(await self._client.get(path), type=_Resources)
        except (NotFound, Refused):
            return set()
        return {resource.name for resource in answer.resources}

    def _start(self, kind: OptionalKind, version: str) -> None:
        served = self._served[kind.id] = _Served(version)
        for namespace in self._namespaces if kind.namespaced else (None,):
            watch = self._watch(kind, served, namespace)
            served.watches.append(watch)
            served.tasks.append(asyncio.create_task(watch.run(), name=f"watch {kind.id}"))
        logger.info("the cluster serves %s/%s %s", kind.group, version, kind.kind)

    async def _stop(self, kind: OptionalKind, served: _Served) -> None:
        for task in served.tasks:
            task.cancel()
        await asyncio.gather(*served.tasks, return_exceptions=True)
        del self._served[kind.id]
        for key, manifest in self.objects():
            if key[0] == kind.id:
                self._forget_owner(key, manifest)
                self._objects.drop(key)
        logger.warning("the cluster no longer serves %s/%s %s", kind.group, served.version, kind.kind)
        self._changed(kind, None)

    def _watch(self, kind: OptionalKind, served: _Served, namespace: str | None) -> Watch[Any]:
        def listed(manifests: Sequence[dict[str, Any]], version: int) -> None:
            appeared = namespace not in served.listed
            served.listed.add(namespace)
            served.forbidden = ""
            present = {self._upsert(kind, manifest, deleted=False, quiet=appeared) for manifest in manifests}
            missing = self._objects.missing_from(
                present, version, lambda key: key[0] == kind.id and namespace in (None, key[1])
            )
            for _, manifest in missing:
                self._upsert(kind, with_version(manifest, version), deleted=True, quiet=appeared)
            if appeared:
                self._changed(kind, None)
            self._note_synced()

        def changed(manifest: dict[str, Any], deleted: bool) -> None:
            self._upsert(kind, manifest, deleted)

        def decoded(data: msgspec.Raw) -> Manifest:
            # Items of a list have neither apiVersion nor kind.
            return _decoded(kind, data) | {"apiVersion": f"{kind.group}/{served.version}", "kind": kind.kind}

        def forbidden(message: str) -> None:
            served.forbidden = message
            served.listed.discard(namespace)
            watch.relist()  # events may be missed meanwhile
            self._changed(kind, None)
            self._note_synced()

        watch: Watch[Any] = Watch(
            self._client,
            paths.optional(kind, served.version, namespace),
            decoded,
            listed=listed,
            changed=changed,
            parameters={"labelSelector": JOB_LABEL} if kind.labelled else None,
            renewed_after=self._watch_timeout,
            forbidden=forbidden,
            page=PAGE_OF_LARGE_OBJECTS,
        )
        return watch

    def _is_listed(self, kind: OptionalKind, served: _Served) -> bool:
        return not served.forbidden and served.listed >= set(self._namespaces if kind.namespaced else (None,))

    def _upsert(self, kind: OptionalKind, manifest: Manifest, deleted: bool, quiet: bool = False) -> ObjectKey:
        metadata = manifest["metadata"]
        key = (kind.id, metadata.get("namespace", "") if kind.namespaced else "", metadata["name"])
        version, before = version_of(manifest), self._objects.get(key)
        if not (self._objects.delete(key, version) if deleted else self._objects.is_newer(key, version)):
            return key
        if before:
            self._forget_owner(key, before)
        if not deleted:
            self._objects.put(key, manifest)
            if owner := controller_of(manifest).get("uid"):
                self._by_owner[owner][key] = manifest
        if not quiet:
            self._changed(kind, manifest)
        return key

    def _forget_owner(self, key: ObjectKey, manifest: Manifest) -> None:
        if owner := controller_of(manifest).get("uid"):
            objects = self._by_owner[owner]
            objects.pop(key, None)
            if not objects:
                del self._by_owner[owner]

    def _note_synced(self) -> None:
        if self._discovered and all(
            served.forbidden or self._is_listed(kind, served)
            for kind in self._kinds
            if (served := self._served.get(kind.id))
        ):
            self.synced.set()


def optional_kinds(settings: Settings) -> tuple[tuple[OptionalKind, ...], dict[str, str]]:
    """Return the kinds to watch, and why each other kind is not used, by its id."""
    watched: list[OptionalKind] = []
    unused: dict[str, str] = {}
    for enabled, kinds, purpose in (
        (settings.queues, QUEUES, "serve queues (setting `queues`)"),
        (settings.gangs, GANGS, "use gang schedulers (setting `gangs`)"),
    ):
        if enabled:
            watched += kinds
        else:
            unused |= {kind.id: f"this operator does not {purpose}" for kind in kinds}
    return tuple(watched), unused


NOTHING = OptionalObjects()


class _Annotations(msgspec.Struct, omit_defaults=True):
    boost: str | None = msgspec.field(default=None, name=BOOST_ANNOTATION)


class _Metadata(ObjectMeta, rename="camel", omit_defaults=True):
    """The metadata that decisions depend on. An object with more owners is not used."""

    annotations: _Annotations = msgspec.field(default_factory=_Annotations)
    owner_references: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=64)] = []


_parts, _metadata, _any = decoder(dict[str, msgspec.Raw]), decoder(_Metadata), decoder(Any)


def _decoded(kind: OptionalKind, data: bytes | msgspec.Raw) -> Manifest:
    """Return what is kept of an object: no labels, no managedFields, and nothing that its kind drops."""
    parts = _parts(data)
    metadata = msgspec.to_builtins(_metadata(parts.pop("metadata")))
    out: Any = {**{key: _any(part) for key, part in parts.items()}, "metadata": metadata}
    for path in kind.dropped:
        out = _without_path(out, path.split("."))
    return dict(out)


def _without_path(value: Any, path: Sequence[str]) -> Any:
    """Remove a field. Lists on the way are entered: `spec.podSets.template` is that field of each pod set."""
    if isinstance(value, list):
        return [_without_path(item, path) for item in value]
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {key: item for key, item in value.items() if key != path[0]}
    return {**value, path[0]: _without_path(value[path[0]], path[1:])}
