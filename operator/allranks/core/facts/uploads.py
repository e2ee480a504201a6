"""Observed transfers of outputs, and results of transfers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
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


def result_in(text: str) -> Any:
    """Return the result of a transfer in a termination message, or in the last line of a log that takes its place.

    None without a result.
    """
    try:
        return json.loads((text.strip().splitlines() or [""])[-1])
    except ValueError:
        return None


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
