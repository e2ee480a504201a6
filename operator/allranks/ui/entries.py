"""Entries of the server: jobs of a cluster, runs of this machine, archived jobs, and how they are selected. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from allranks.api.status import Status
from allranks.api.sweep import KIND as SWEEP
from allranks.core.accounting.time_accounting import last_update
from allranks.kube.job_codec import ranks_of, status_of
from allranks.kube.label_selectors import label_selection
from allranks.kube.object_text import LEFT_OUT, ObjectText
from allranks.local.run_directories import phase_of
from allranks.ui.problems import Problem
from allranks.views.job_view import LAST, ORDER

Manifest = dict[str, Any]
Source = Literal["jobs", "runs", "archive"]
Key = tuple[Source, str, str]


@dataclass(frozen=True)
class Item:
    """A job or a sweep: of a cluster (`jobs`), of this machine (`runs`), or a deleted one in an archive (`archive`)."""

    source: Source
    group: str
    """The namespace, also in an archive; the name of the job or the sweep of a run."""
    name: str
    """The name on a cluster; the name of the directory of others: the time of a run, NAME-UID in an archive."""
    content: Manifest | ObjectText
    """The object with its status; a job of a cluster is kept as text."""
    active: bool = True
    """False for a run whose process has ended, and for a deleted object."""

    @property
    def path(self) -> str:
        """`jobs/NAMESPACE/NAME`, `runs/JOB/TIME` or `archive/NAMESPACE/NAME-UID`, in addresses."""
        return f"{self.source}/{quote(self.group, safe='')}/{quote(self.name, safe='')}"

    @property
    def manifest(self) -> Manifest:
        """The object with its status, as `-o json` prints it. A job of a cluster is decoded at each call."""
        return self.content.manifest() if isinstance(self.content, ObjectText) else self.content

    @property
    def metadata(self) -> Mapping[str, Any]:
        if isinstance(self.content, ObjectText):
            return self.content.metadata
        metadata: Mapping[str, Any] = self.content.get("metadata") or {}
        return metadata

    @property
    def left_out(self) -> str:
        """Parts that are too large to show, as a sentence; empty if nothing is missing."""
        annotations = self.metadata.get("annotations")
        return str(annotations.get(LEFT_OUT, "")) if isinstance(annotations, dict) else ""

    @property
    def phase(self) -> str:
        """`Interrupted` for a run that ended before its job or sweep did, and one that was deleted before its end."""
        return phase_of(self._phase, active=self.active)

    @cached_property
    def _phase(self) -> str:
        # Without decoding the whole status: lists of thousands of jobs need it.
        status = self._status
        return str((status if isinstance(status, dict) else {}).get("phase") or "Pending")

    @property
    def _status(self) -> Any:
        return self.content.status if isinstance(self.content, ObjectText) else self.content.get("status")


AnyItem = TypeVar("AnyItem", bound=Item)


def newest_first(items: Iterable[AnyItem]) -> list[AnyItem]:
    return sorted(items, key=lambda item: str(item.metadata.get("creationTimestamp") or ""), reverse=True)


@dataclass(frozen=True)
class Entry(Item):
    """A job, or a run of one."""

    directory: Path | None = None
    """Directory of a run; None for others."""
    sweep: str = ""
    """`SWEEP/TIME` of the sweep of this machine of which a run is a trial."""
    decided: str = ""
    """The phase with which that sweep has ended the trial, such as `Stopped`, because others are better."""

    @property
    def key(self) -> Key:
        return self.source, self.group, self.name

    @property
    def phase(self) -> str:
        return self.decided or super().phase

    @property
    def job(self) -> str:
        """The name of the job."""
        return self.name if self.source == "jobs" else str(self.metadata["name"])

    @cached_property
    def status(self) -> Status:
        return status_of({"status": self._status})

    @cached_property
    def ranks(self) -> dict[str, int | None]:
        """Replica -> its rank, by rank; None for a replica without one. Decoded once: each log line needs it."""
        return ranks_of(self.manifest)

    @property
    def printed(self) -> Manifest:
        """The JSON of the REST interface. A run has the phase that the pages and `allranks runs` show."""
        status = self.manifest.get("status")
        if self.source != "runs" or not isinstance(status, dict) or status.get("phase") == self.phase:
            return self.manifest
        return {**self.manifest, "status": {**status, "phase": self.phase}}

    def until(self, status: Status, now: datetime) -> datetime:
        """Return the time up to which times count. `status`: the status of this entry."""
        return now if self.active else last_update(status) or now

    @property
    def created(self) -> datetime | None:
        try:
            created = datetime.fromisoformat(str(self.metadata.get("creationTimestamp")))
        except ValueError:
            return self.status.start_time
        return created if created.tzinfo else created.replace(tzinfo=UTC)


def owner_sweep(job: Item) -> dict[str, str] | None:
    """Return `name` and `uid` of the sweep of which the job is a trial."""
    owners = job.metadata.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("kind") == SWEEP and owner.get("controller"):
            return {key: str(owner.get(key) or "") for key in ("name", "uid")}
    return None


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Sort by phase, then the newest first, so that jobs that need attention are on the first page."""
    never = datetime.min.replace(tzinfo=UTC)
    by_time = sorted(entries, key=lambda entry: (entry.created or never, entry.key), reverse=True)
    return sorted(by_time, key=lambda entry: ORDER.get(entry.phase, LAST))


def selection(
    namespace: str | None = None, phase: str | None = None, label: str | None = None, text: str | None = None
) -> Callable[[Entry], bool]:
    """Return a function that says whether an entry is selected.

    A run has no namespace: only `phase`, `label` and `text` select it.
    `text` is a part of the name. Raises Problem for a label selector that is not valid.
    """
    try:
        labelled = label_selection(label or "")
    except ValueError as error:
        raise Problem(400, f"label: {error}") from error

    def selects(entry: Entry) -> bool:
        if namespace and entry.source != "runs" and entry.group != namespace:
            return False
        if phase and entry.phase != phase:
            return False
        if text and text.lower() not in f"{entry.group}/{entry.name}".lower():
            return False
        return labelled(entry.metadata.get("labels") or {})

    return selects
