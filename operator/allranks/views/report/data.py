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
    """Those of the manifest, in its order."""
    states = {each.name: each for each in status.inputs}
    for name, given, mask in _given(job, "inputs"):
        source = mask(given.get("from"))
        mounted = source.partition("://")[0] in MOUNTED
        state = states.get(name) or InputStatus.model_construct(name=name)
        yield JobInput(
            name=name,
            source=source,
            path=str(given.get("path") or ""),
            state=state.state,
            mounted=mounted,
            revision=state.revision or (str(given["revision"]) if given.get("revision") else None),
            sha256=state.sha256,
            bytes=state.bytes,
            cached=state.cached,
            location=state.location,
        )


def outputs(job: Mapping[str, Any], status: Status) -> Iterator[JobOutput]:
    """Those of the manifest, in its order."""
    states = {each.name: each for each in status.outputs}
    for name, given, mask in _given(job, "outputs"):
        state = states.get(name) or OutputStatus.model_construct(name=name)
        yield JobOutput(
            name=name,
            to=mask(given.get("to")),
            path=str(given.get("path") or ""),
            when=str(given.get("when") or "Success"),
            state=state.state,
            step=state.step,
            uploaded_step=state.uploaded_step,
            files=state.files,
            bytes=state.bytes,
            message=mask(state.message),
        )


def uploads(job: Mapping[str, Any], status: Status) -> str:
    """`Uploaded: model is in s3://models/penguins: 3 files, 1.4 MiB`; empty before an upload is due."""
    found = status.condition("OutputsUploaded")
    return mask_text(f"{found.reason}: {found.message}", secrets_in(job)) if found else ""


def _given(job: Mapping[str, Any], field: str) -> Iterator[tuple[str, Mapping[str, Any], Callable[[Any], str]]]:
    """(name, entry of the manifest, what makes a text of a value without secrets). Leaves out what has no name."""
    secrets = secrets_in(job)

    def mask(value: Any) -> str:
        return mask_text(str(value or ""), secrets)

    found = (job.get("spec") or {}).get(field)
    for given in found if isinstance(found, list) else ():
        if isinstance(given, Mapping) and given.get("name"):
            yield str(given["name"]), given, mask


# --- tables ----------------------------------------------------------------------------------------------------------


def tables(inputs: Sequence[JobInput], outputs: Sequence[JobOutput]) -> Iterator[tuple[str, Grid]]:
    """(title, table). A job without inputs or outputs has no empty table."""
    if inputs:
        rows = [[one.name, _input_state(one), _size(one.bytes), _revision(one), one.source] for one in inputs]
        yield "Inputs", _table(["Name", "State", "Size", "Revision", "From"], rows)
    if outputs:
        rows = [[one.name, one.state, _extent(one), one.message or _steps(one), one.to] for one in outputs]
        yield "Outputs", _table(["Name", "State", "Size", "Progress", "To"], rows)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """The table. Empty columns are left out, so that what matters fits on a narrow screen."""
    kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
    return Grid([headers[place] for place in kept], [[row[place] for place in kept] for row in rows])


def _revision(one: JobInput) -> str:
    """The first 12 digits of a hash, as git prints it. The manifest and the JSON form have all."""
    found = one.revision or one.sha256 or ""
    return found[:12] if _HASH.fullmatch(found) else found


def _input_state(one: JobInput) -> str:
    if one.mounted:
        return "a volume"
    if one.state == "Ready" and one.location in ("Node", "Pod"):
        return f"each {one.location.lower()} fetches it"
    return f"{one.state}, from the cache" if one.cached else one.state


def _size(number: int | None) -> str:
    return "" if number is None else size(number)


def _extent(one: JobOutput) -> str:
    """`3 files, 1.4 MiB`."""
    files = "" if one.files is None else f"{one.files} file{'s' * (one.files != 1)}"
    return ", ".join(filter(None, (files, _size(one.bytes))))


def _steps(one: JobOutput) -> str:
    """`step 500 is uploaded, step 600 follows`; empty for files that are not checkpoints."""
    uploaded = "" if one.uploaded_step is None else f"step {one.uploaded_step} is uploaded"
    follows = one.step not in (None, one.uploaded_step)
    return ", ".join(filter(None, (uploaded, f"step {one.step} follows" if follows else "")))
