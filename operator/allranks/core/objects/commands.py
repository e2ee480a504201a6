"""Commands that start ranks by a launcher of another system: what is replaced in them, and what cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import topology
from allranks.core.facts.attempt import attempt_context
from allranks.core.facts.model import ANY_PLATFORM, Platform
from allranks.core.objects.shells import shell_notes, shell_warnings
from allranks.frameworks.command_line import Launch


class Remark(NamedTuple):
    """One sentence about a field of a valid job."""

    path: str
    """For example `spec.command[0]`."""
    message: str
    severity: Literal["warning", "note"]


def problems(job: Job, platform: Platform = ANY_PLATFORM) -> list[tuple[str, str]]:
    """Return (field path, message) of commands that cannot start the ranks of the job."""
    out = [
        (paths[launch.problem[0]], launch.problem[1]) for paths, launch in _launches(job, platform) if launch.problem
    ]
    return list(dict.fromkeys(out))


def remarks(job: Job, platform: Platform = ANY_PLATFORM) -> list[Remark]:
    """Return what the author of a valid job should know about its commands, and about settings with which its ranks
    cannot train."""
    out = [Remark(path, text, "warning") for path, text in advice(job, platform)]
    changes = topology.framework_of(job).changes(attempt_context(job, Status(), platform))
    out += [Remark(path, text, "note") for path, text in changes]
    for paths, launch in _launches(job, platform):
        out += [Remark(paths[index], text, "warning") for index, text in launch.warnings]
        out += [Remark(paths[index], text, "note") for index, text in launch.notes]
        out += [Remark(paths[index], text, "warning") for index, text in shell_warnings(launch.command)]
        out += [Remark(paths[index], text, "note") for index, text in shell_notes(launch.command)]
    return list(dict.fromkeys(out))


def advice(job: Job, platform: Platform, *, without_gpus: bool = False) -> list[tuple[str, str]]:
    """Return (field path, sentence) of settings with which the ranks cannot train. `without_gpus`: they get none,
    whatever the job requests."""
    context = attempt_context(job, Status(), platform)
    if without_gpus:
        context = replace(context, gpus=dict.fromkeys(context.gpus, 0))
    return topology.framework_of(job).advice(context)


def _launches(job: Job, platform: Platform) -> Iterator[tuple[list[str], Launch]]:
    """Yield (field path of each argument, how the command is run) of each role that has pods."""
    context = attempt_context(job, Status(), platform)
    framework = topology.framework_of(job)
    for role in job.spec.roles:
        if context.commands[role]:
            yield _paths(job, role, len(context.commands[role])), framework.launch(context, role)


def _paths(job: Job, role: str, count: int) -> list[str]:
    """Return the field path of each argument of a role's command line. One that is in a template has the path of the
    template's container."""
    spec = job.spec.roles[role]
    of_role, common = f"spec.roles.{role}", "spec"
    place, command = (of_role, spec.command) if spec.command is not None else (common, job.spec.command)
    # The job's arguments belong to the job's command.
    args_place, args = (of_role, spec.args) if spec.args is not None or place == of_role else (common, job.spec.args)
    out = [f"{place}.command[{index}]" for index in range(len(command or ()))]
    out += [f"{args_place}.args[{index}]" for index in range(len(args or ()))]
    if len(out) == count:
        return out
    template = f"{of_role}.template" if spec.template else "spec.template"
    return [f"{template}.spec.containers[trainer].command"] * count
