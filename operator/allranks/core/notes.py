"""Advice on valid jobs: settings that probably do something else than their author expects. A note never stops a job.

`allranks validate`, `run` and `submit` print them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from allranks.api.job import Job


@dataclass(frozen=True, slots=True)
class Note:
    """One remark on a field."""

    path: str
    """For example `spec.progress.logPattern`."""
    message: str
    severity: Literal["warning", "note"] = "note"
    """`warning`: probably a mistake. `note`: good to be aware of."""


def notes_of(job: Job) -> list[Note]:
    """All notes on a job for which `pods.problems` is empty."""
    return [*_about_log_pattern(job)]


def _about_log_pattern(job: Job) -> Iterator[Note]:
    pattern = job.spec.progress.log_pattern if job.spec.progress else None
    if pattern and "step" not in (groups := re.compile(pattern).groupindex):
        found = ", ".join(groups)
        yield Note(
            "spec.progress.logPattern",
            f"no group is named step, so there is no progress, ETA or hang detection (found: {found}): "
            r"name it, for example (?P<step>\d+)",
            "warning",
        )
