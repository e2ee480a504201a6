"""Observed transfers of inputs and outputs, and the places of their files on a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from allranks.api.data import OutputStatus
from allranks.api.status import Status


@dataclass(frozen=True, slots=True)
class Upload:
    """The state of the upload of an output."""

    state: Literal["Uploading", "Uploaded", "Failed"]
    bytes: int | None = None
    files: int | None = None
    message: str = ""
    """Reason why it failed, or does not proceed."""
    where: str = ""
    """Place of the files, as a part of a sentence."""
    checkpoint: tuple[int, int] | None = None
    """(step, mark) of the checkpoint that it uploads or has uploaded; see `checkpoint_of`."""
    sent: tuple[int, int] | None = None
    """(files, bytes) that are there already, of `files` and `bytes`."""
    final: bool = False
    """This try began after the program had ended. A checkpoint of which an earlier try failed gets another one then."""
    overdue: bool = False
    """It has failed because it is not done by its deadline."""


def of_checkpoint(request: dict[str, Any], source: str, checkpoint: tuple[int, int]) -> dict[str, Any]:
    """Return the request of an upload, for one checkpoint in the directory `source`."""
    step, mark = checkpoint
    return {
        **request,
        **{name: f"{request[name].rstrip('/')}/step-{step}" for name in ("to", "shown") if name in request},
        "source": source,
        "step": step,
        "mark": mark,
        "provenance": {**request["provenance"], "step": step},
    }


@dataclass(frozen=True, slots=True)
class DataStore:
    """Settings of a cluster for inputs that are fetched and for outputs."""

    claim: str
    """Name of the claim, in each namespace of jobs, with the cache of inputs and the directories of outputs. Empty:
    there are no outputs, and pods fetch inputs themselves."""
    image: str
    """Image of the pods that transfer files: allranks with its extra `data`."""
    cache_bytes: int
    """Bytes of inputs that the claim, or a directory of a node, holds before what was used longest ago is evicted. The
    size limit of an emptyDir for inputs."""
    host_path: str = ""
    """Directory of each node into which pods fetch their inputs, instead of the claim."""
    evictable: Evictable | None = None
    """Entries that a new pod may evict from the directory of its node; None for none."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Entries that the unfinished jobs of a namespace use in the cache of inputs."""

    keys: tuple[str, ...]
    """Names of entries (`cache_key`), sorted."""
    oldest: datetime | None = None
    """Time at which the oldest of these jobs was created."""


def result_in(text: str) -> Any:
    """Return the result of a transfer in a termination message, or in the last line of a log that takes its place.

    None without a result.
    """
    try:
        return json.loads((text.strip().splitlines() or [""])[-1])
    except ValueError:
        return None


DEFAULT_CACHE_BYTES = 100 << 30
UNSEEN = timedelta(minutes=10)
"""Entries of the cache that were used since then are not evicted: a job may read them whose status the operator has not
read yet, and the clocks of machines differ."""
MOST_KEYS = 32
"""Limit of the keys in the manifest of each pod of a job, which may have ten thousand."""


@dataclass(frozen=True, slots=True)
class Evictable:
    """Bounds of what a pod may evict from a cache: neither these entries, nor entries used since then. Every pod that
    reads an entry uses it when it starts, so it needs no lock for the life of the pod."""

    used: tuple[str, ...]
    since: int
    """Seconds since 1970."""


def evictable(use: CacheUse | None, now: datetime) -> Evictable | None:
    """Return the entries that a pod may evict; None without information about their use.

    If unfinished jobs use too many entries to list, everything used since the oldest of these jobs was created stays.
    """
    if use is None:
        return None
    if len(use.keys) <= MOST_KEYS:
        return Evictable(use.keys, int((now - UNSEEN).timestamp()))
    return Evictable((), int((use.oldest - UNSEEN).timestamp())) if use.oldest else None


def uploading_since(status: Status) -> datetime | None:
    """Return since when the program has completed and the job waits for its outputs; None if it does not."""
    begun = (output.start_time for output in status.outputs if output.state == "Uploading" and output.start_time)
    return min(begun, default=None)


def checkpoint_of(output: OutputStatus) -> tuple[int, int] | None:
    """Return (step, mark) of the checkpoint that is to be uploaded; None if the output is no checkpoint.

    A job that goes back to an earlier checkpoint may reach the same step again: the mark, the seconds since 1970, tells
    the two apart.
    """
    if output.step is None or output.checkpoint_time is None:
        return None
    return output.step, int(output.checkpoint_time.timestamp())
