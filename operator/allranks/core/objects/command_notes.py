"""Notes on commands that contradict what allranks sets. The job is valid, but its ranks may not form one group."""

from __future__ import annotations

from allranks.api.job import Job, RoleSpec
from allranks.core.facts import topology


def notes(job: Job) -> list[tuple[str, str]]:
    """(field path, sentence with the cure) for each argument, after `command` and `args` of job and role are merged."""
    framework = topology.framework_of(job)
    found: dict[tuple[str, str], None] = {}
    for role, spec in job.spec.roles.items():
        written = arguments(job, role, spec)
        for index, sentence in framework.notes([text for _, text in written], role, spec.command is not None):
            found[written[index][0], sentence] = None
    return list(found)


def arguments(job: Job, role: str, spec: RoleSpec) -> list[tuple[str, str]]:
    """(field path, argument) of the command line of a role's program. Empty without a command."""
    own, common = f"spec.roles.{role}", "spec"
    place, command = (own, spec.command) if spec.command is not None else (common, job.spec.command)
    if not command:
        return []
    # The job's arguments belong to the job's command.
    args_place, args = (own, spec.args) if spec.args is not None or place == own else (common, job.spec.args)
    out = [(f"{place}.command[{index}]", argument) for index, argument in enumerate(command)]
    return out + [(f"{args_place}.args[{index}]", argument) for index, argument in enumerate(args or ())]
