"""Advice on valid jobs: settings that probably do something else than their author expects. A note never stops a job.

`allranks validate`, `run` and `submit` print them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from allranks.api.job import Job
from allranks.core.manifests import command_notes
from allranks.core.naming import TRAINER
from allranks.frameworks import FRAMEWORKS


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
    about_commands = (Note(path, message, "warning") for path, message in command_notes.notes(job))
    return [*_about_log_pattern(job), *_about_sidecars(job), *about_commands]


def _about_log_pattern(job: Job) -> Iterator[Note]:
    pattern = job.spec.progress.log_pattern if job.spec.progress else None
    if pattern and "step" not in (groups := re.compile(pattern).groupindex):
        near = difflib.get_close_matches("step", groups, n=1)
        what = f"group {near[0]} becomes a metric, did you mean step?" if near else "no group is named step"
        without = "without the step there is no progress bar, no ETA and no hang detection"
        yield Note("spec.progress.logPattern", f"{what}: {without}", "warning" if near else "note")


_USUAL_NAMES = frozenset({"main", "train", "training", "worker", "master", "chief", "job", "app", *FRAMEWORKS})
"""Names that the training container has in pods of other operators."""


def _about_sidecars(job: Job) -> Iterator[Note]:
    """A container is merged into the training container only if it has its name; with any other it runs beside it."""
    parts = [("spec", job.spec), *((f"spec.roles.{role}", part) for role, part in job.spec.roles.items())]
    templates: list[tuple[str, Any]] = [(path, part.template or {}) for path, part in parts]
    containers = [
        (f"{path}.template.spec.containers[{number}].name", str(container["name"]))
        for path, template in templates
        for number, container in enumerate((template.get("spec") or {}).get("containers") or ())
    ]
    if any(name == TRAINER for _, name in containers):
        return
    for path, name in containers:
        what = f"container {name} runs beside the training container, which is named {TRAINER}"
        mistaken = name in _USUAL_NAMES or bool(difflib.get_close_matches(name, [TRAINER], cutoff=0.7))
        cure = f"name it {TRAINER} if it is the training program"
        yield Note(path, f"{what}: {cure}", "warning" if mistaken else "note")
