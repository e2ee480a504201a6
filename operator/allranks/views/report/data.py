"""The inputs and outputs of a job, as its report shows them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from allranks.api.data import MOUNTED, InputStatus, OutputStatus
from allranks.api.status import Status
from allranks.masking import mask_text, secrets_in
from allranks.text import size
from allranks.views.format.table import Grid

_HASH = re.compile("[0-9a-f]{32,}")


@dataclass(frozen=True, slots=True)
class JobInput:
    """An input of a job, and the state of its data."""

    name: str
    source: Annotated[str, Field(alias="from")]
    """The address of the data, without a password."""
    path: str
    """Directory in which the pods find the data."""
    state: str
    """Pending, Fetching, Ready or Failed."""
    mounted: bool
    """Whether it is a volume, which nothing fetches."""
    revision: str | None
    """The revision that the ranks read, else the wanted one."""
    sha256: str | None
    bytes: int | None
    """null until the data is there."""
    cached: bool | None
    """Whether the data was in the cache before."""
    location: str | None = None
    """Claim, Node or Pod: where a cluster fetches the data. With Node and Pod, Ready refers to the revision."""


@dataclass(frozen=True, slots=True)
class JobOutput:
    """An output of a job, and the state of its upload."""

    name: str
    to: str
    """The address of the files, without a password."""
    path: str
    """Directory into which the program writes."""
    when: str
    """Success, Always or Checkpoint."""
    state: str
    """Checking, Pending, Uploading, Uploaded or Failed."""
    step: int | None
    """Of the newest checkpoint, to which the state refers."""
    uploaded_step: int | None
    """Of the newest checkpoint that is uploaded."""
    files: int | None
    bytes: int | None
    message: str
    """Why the upload failed."""


def inputs(job: Mapping[str, Any], status: Status) -> Iterator[JobInput]:
    """Yield the inputs of the manifest, in its order."""
    states = {state.name: state for state in status.inputs}
    for name, entry, mask in _entries(job, "inputs"):
        source = mask(entry.get("from"))
        mounted = source.partition("://")[0] in MOUNTED
        state = states.get(name) or InputStatus(name=name)
        yield JobInput(
            name=name,
            source=source,
            path=str(entry.get("path") or ""),
            state=state.state,
            mounted=mounted,
            revision=state.revision or (str(entry["revision"]) if entry.get("revision") else None),
            sha256=state.sha256,
            bytes=state.bytes,
            cached=state.cached,
            location=state.location,
        )


def outputs(job: Mapping[str, Any], status: Status) -> Iterator[JobOutput]:
    """Yield the outputs of the manifest, in its order."""
    states = {state.name: state for state in status.outputs}
    for name, entry, mask in _entries(job, "outputs"):
        state = states.get(name) or OutputStatus(name=name)
        yield JobOutput(
            name=name,
            to=mask(entry.get("to")),
            path=str(entry.get("path") or ""),
            when=str(entry.get("when") or "Success"),
            state=state.state,
            step=state.step,
            uploaded_step=state.uploaded_step,
            files=state.files,
            bytes=state.bytes,
            message=mask(state.message),
        )


def uploads(job: Mapping[str, Any], status: Status) -> str:
    """Write `Uploaded: model is in s3://models/penguins: 3 files, 1.4 MiB`; empty before an upload is due."""
    condition = status.condition("OutputsUploaded")
    return mask_text(f"{condition.reason}: {condition.message}", secrets_in(job)) if condition else ""


def _entries(job: Mapping[str, Any], field: str) -> Iterator[tuple[str, Mapping[str, Any], Callable[[Any], str]]]:
    """Yield (name, entry of the manifest, function that makes a text of a value without secrets) of entries with a
    name."""
    secrets = secrets_in(job)

    def mask(value: Any) -> str:
        return mask_text(str(value or ""), secrets)

    entries = (job.get("spec") or {}).get(field)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name"):
            yield str(entry["name"]), entry, mask


# --- tables ----------------------------------------------------------------------------------------------------------


def tables(inputs: Sequence[JobInput], outputs: Sequence[JobOutput]) -> Iterator[tuple[str, Grid]]:
    """Yield (title, table). A job without inputs or outputs has no empty table."""
    if inputs:
        rows = [[item.name, _input_state(item), _size(item.bytes), _revision(item), item.source] for item in inputs]
        yield "Inputs", _table(["Name", "State", "Size", "Revision", "From"], rows)
    if outputs:
        rows = [[item.name, item.state, _extent(item), item.message or _steps(item), item.to] for item in outputs]
        yield "Outputs", _table(["Name", "State", "Size", "Progress", "To"], rows)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """Make a table without empty columns, so that the others fit on a narrow screen."""
    kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
    return Grid([headers[place] for place in kept], [[row[place] for place in kept] for row in rows])


def _revision(item: JobInput) -> str:
    """Shorten a hash to 12 digits, as git does. The manifest and the JSON form have all digits."""
    revision = item.revision or item.sha256 or ""
    return revision[:12] if _HASH.fullmatch(revision) else revision


def _input_state(item: JobInput) -> str:
    if item.mounted:
        return "a volume"
    if item.state == "Ready" and item.location in ("Node", "Pod"):
        return f"each {item.location.lower()} fetches it"
    return f"{item.state}, from the cache" if item.cached else item.state


def _size(number: int | None) -> str:
    return "" if number is None else size(number)


def _extent(item: JobOutput) -> str:
    """Write `3 files, 1.4 MiB`."""
    files = "" if item.files is None else f"{item.files} file{'s' * (item.files != 1)}"
    return ", ".join(filter(None, (files, _size(item.bytes))))


def _steps(item: JobOutput) -> str:
    """Write `step 500 is uploaded, step 600 follows`; empty for files that are not checkpoints."""
    uploaded = "" if item.uploaded_step is None else f"step {item.uploaded_step} is uploaded"
    follows = item.step not in (None, item.uploaded_step)
    return ", ".join(filter(None, (uploaded, f"step {item.step} follows" if follows else "")))
