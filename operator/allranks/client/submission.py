"""Creates and updates the objects of manifests on a cluster, and reads the code that was stored with a job.

An interrupt leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from allranks.api.job import API_VERSION, GROUP, KIND, PLURAL
from allranks.api.status import FINISHED
from allranks.api.validation import parse, with_defaults
from allranks.code.bundle import Bundle
from allranks.code.ship import config_map_of, create_with_code, stored_differences
from allranks.errors import AllranksError, ClusterError, InvalidManifest
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.merge_patch import diff
from allranks.views.report.run_files import RunFiles

T = TypeVar("T")
R = TypeVar("R")

PATIENCE_SECONDS = 1.0
"""An API server that takes longer is the reason why an interrupt seems to have no effect: a message says so."""


class Creation(Generic[T]):
    """The creation of one object, and its progress when the caller is interrupted."""

    def __init__(self) -> None:
        self.stopped = False
        """The caller was interrupted: a request that has not been sent must not be sent."""
        self.sent = False
        """The request has been sent. Without a result it may have been carried out."""
        self.result: T | None = None

    def check(self) -> None:
        """Raise CancelledError if nothing more may be sent."""
        if self.stopped:
            raise asyncio.CancelledError

    async def send(self, request: Awaitable[T]) -> T:
        """Send `request`, which creates the object, and return its result. Raises ClusterError."""
        self.sent = True
        try:
            self.result = await request
        except ClusterError as error:
            self.sent = error.uncertain
            raise
        return self.result

    async def run(self, work: Coroutine[Any, Any, R], tell: Callable[[AllranksError | None], None]) -> R:
        """Run `work`, which calls `send`, and return its result.

        A cancellation of the caller sets `stopped`, waits for the end of `work`, calls `tell`, with the error if `work`
        failed, and raises CancelledError. A second one does not wait.
        """
        task = asyncio.create_task(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.stopped = True
            try:
                await _wait(task)
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait([task])
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, AllranksError):
                raise error from None
            tell(error)
            raise


async def _wait(task: asyncio.Task[Any]) -> None:
    if (await asyncio.wait([task], timeout=PATIENCE_SECONDS))[0]:
        return
    print(
        "Interrupted: waiting for the API server's answer to a request that was sent; a second interrupt does not wait",
        file=sys.stderr,
        flush=True,
    )
    await asyncio.wait([task])


@dataclass
class Session:
    """Creates and updates objects on a cluster."""

    cluster: Cluster
    dry_run: bool
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    """Name of a ConfigMap in `spec.code` of a job -> the code, which is stored in it before the job is created."""
    _resources: dict[tuple[str, str], tuple[str, bool]] = field(
        default_factory=lambda: {(API_VERSION, KIND): (PLURAL, True)}
    )
    """(apiVersion, kind) -> (plural name in paths, whether namespaced)"""

    async def apply(self, document: Manifest) -> tuple[str, Manifest]:
        """Store the object. Return (`created`, `unchanged` or `configured`, the stored object). Raises ClusterError."""
        creation = Creation[tuple[str, Manifest]]()
        return await creation.run(self._send(document, creation), partial(self._on_interrupt, document, creation))

    async def _send(self, document: Manifest, creation: Creation[tuple[str, Manifest]]) -> tuple[str, Manifest]:
        """Store the object, and for a job its code first."""

        async def send() -> Manifest:
            return (await creation.send(self._store(document)))[1]

        bundle = self.bundles.get(config_map_of(document)) if document.get("kind") == KIND else None
        if bundle is None:
            creation.check()
            await send()
        else:
            await create_with_code(
                self.cluster, self._namespace(document), bundle, send, dry_run=self.dry_run, check=creation.check
            )
        assert creation.result is not None
        return creation.result

    def _on_interrupt(
        self, document: Manifest, creation: Creation[tuple[str, Manifest]], error: AllranksError | None
    ) -> None:
        """Leave a message that says what is stored."""
        if creation.result is not None:
            outcome, stored = creation.result
            text = f"{self.title(stored)} {outcome}{'' if self.dry_run else _ways(stored)}"
        else:
            state = "may be stored: no answer arrived" if creation.sent else "was not stored"
            text = f"{self.title(document)} {state}"
        self.cluster.interrupted = text if error is None else f"{error}\n{text}"

    async def _store(self, document: Manifest) -> tuple[str, Manifest]:
        title = self.title(document)
        collection = await self._collection(document)
        query = {"fieldManager": "allranks", "fieldValidation": "Strict", "dryRun": "All" if self.dry_run else None}
        try:
            return "created", await self.cluster.request("POST", collection, query, document)
        except ClusterError as error:
            if error.reason != "AlreadyExists" or not _name(document):  # the server made a name that is taken
                raise _with_title(title, error) from error
        path = f"{collection}/{_name(document)}"
        current = await self.cluster.get(path)
        change = difference(_compared(current), _compared(document))
        hint = _hint_if_finished(current)
        if not change:
            return f"unchanged{hint}", current
        try:
            answer = await self.cluster.request("PATCH", path, query, change)
        except ClusterError as error:
            raise _cannot_update(title, document, error) from error
        same = _without_versions(answer) == _without_versions(current)
        return f"{'unchanged' if same else 'configured'}{hint}", answer

    def title(self, document: Manifest) -> str:
        """Return `distributedtraining.allranks.dev/penguins`, as kubectl does; `.../sweep-*` before it has a name."""
        group, slash, _ = str(document.get("apiVersion", "")).partition("/")
        kind = str(document.get("kind", "")).lower()
        name = _name(document) or f"{document['metadata']['generateName']}*"
        return f"{kind}.{group}/{name}" if slash else f"{kind}/{name}"

    async def _collection(self, document: Manifest) -> str:
        version, kind = str(document.get("apiVersion", "")), str(document.get("kind", ""))
        plural, namespaced = await self._resource(version, kind)
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if namespaced:
            base += f"/namespaces/{self._namespace(document)}"
        return f"{base}/{plural}"

    def _namespace(self, document: Manifest) -> str:
        in_document = document["metadata"].get("namespace")
        option = self.cluster.wanted_namespace
        if in_document and option and in_document != option:
            advice = "use one namespace; --set metadata.namespace= removes it from a job"
            raise ClusterError(f"{self.title(document)} is in namespace {in_document}, but -n is {option}: {advice}")
        return str(in_document or self.cluster.namespace)

    async def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        if (version, kind) not in self._resources:
            try:
                discovered = await self.cluster.get(f"/apis/{version}" if "/" in version else f"/api/{version}")
            except ClusterError as error:
                if error.status != 404:
                    raise
                discovered = {"resources": []}
            for resource in discovered["resources"]:
                if "/" not in resource["name"]:  # not a subresource
                    self._resources[version, resource["kind"]] = (resource["name"], bool(resource["namespaced"]))
        if (version, kind) not in self._resources:
            ours = version.startswith(f"{GROUP}/")
            advice = f"install crds/{kind.lower()}s.yaml" if ours else "check its apiVersion"
            raise ClusterError(f"the cluster does not serve {kind} in {version}: {advice}")
        return self._resources[version, kind]


def _ways(stored: Manifest) -> str:
    if stored.get("kind") != KIND:
        return ""
    name = stored["metadata"]["name"]
    return f"; it continues: allranks logs -f {name} follows it, allranks delete {name} deletes it"


def _name(document: Manifest) -> str:
    """Return the name; empty if the API server makes one from `generateName`. Raises ClusterError without both."""
    metadata = document.get("metadata") or {}
    if not metadata.get("name") and not metadata.get("generateName"):
        raise ClusterError(f"{document.get('kind')}: metadata.name is missing")
    return str(metadata.get("name") or "")


def _compared(document: Manifest) -> Manifest:
    """Return the part that is compared. A job gets its defaults, so that removing a field is a change."""
    meta = document.get("metadata") or {}
    kept = {key: meta[key] for key in ("labels", "annotations") if meta.get(key)}
    fields = {key: value for key, value in document.items() if key not in ("metadata", "status")}
    if document.get("kind") == KIND:
        bare = {**fields, "metadata": {"name": meta["name"]}}
        with contextlib.suppress(InvalidManifest):  # written for a newer version: compared without defaults
            fields = with_defaults(bare, parse(bare))
    return {**fields, "metadata": kept}


def difference(current: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch from `current` to `document`.

    Only the spec of a job loses fields: labels and annotations, and fields of other kinds, may have been added by
    other clients.
    """
    change = diff(current, document, remove=False)
    if document.get("kind") == KIND and (spec := diff(current["spec"], document["spec"])):
        change["spec"] = spec
    return change


def _without_versions(answer: Manifest) -> Manifest:
    meta = {key: value for key, value in answer["metadata"].items() if key not in ("resourceVersion", "managedFields")}
    return {**answer, "metadata": meta}


def _hint_if_finished(current: Manifest) -> str:
    """Submitting a finished job again does not run it again."""
    phase = status_of(current).phase if current.get("kind") == KIND else ""
    if phase not in FINISHED:
        return ""
    name = current["metadata"]["name"]
    return f": it is {phase}; to run it again, allranks delete {name} first, or use --set metadata.name=..."


def _with_title(title: str, error: ClusterError) -> ClusterError:
    lines = [f"{title}: {line}" for line in str(error).splitlines()]
    if error.uncertain:
        lines.append(f"{title}: it may be stored nevertheless: look before you submit it again")
    return ClusterError("\n".join(lines), error.status, error.reason, uncertain=error.uncertain)


def _cannot_update(title: str, document: Manifest, error: ClusterError) -> ClusterError:
    """Return the error of an object that exists with other values, if the API server does not allow to change them."""
    if error.status != 422:
        return _with_title(title, error)
    name = _name(document)
    if document.get("kind") == KIND:
        advice = f"delete it first (allranks delete {name}), or use another name (--set metadata.name=...)"
    else:
        advice = f"delete it first (kubectl delete {title}), or remove it from the file"
    causes = "; ".join(str(error).splitlines())
    return ClusterError(f"{title} already exists and differs: {causes}\n{title}: {advice}", error.status, error.reason)


async def read_differences(cluster: Cluster, job: Manifest) -> RunFiles:
    """Read the differences of a job's code from its commit, or why they cannot be read."""
    code = (job.get("spec") or {}).get("code") or {}
    name = config_map_of(job)
    if not name or code.get("dirty") is not True:
        return RunFiles()
    namespace = job["metadata"].get("namespace") or cluster.namespace
    try:
        differences = await stored_differences(cluster, namespace, name)
    except (ClusterError, ValueError) as error:
        return RunFiles(missing=f"The differences are in the ConfigMap {name}, which cannot be read: {error}")
    none = f"The ConfigMap {name} has no differences: the same files were stored before, or they fill it"
    return RunFiles(differences=differences, missing="" if differences else none)
