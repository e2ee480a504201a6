"""What pods need to test themselves before their program starts (inpod/preflight.py)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import topology
from allranks.core.facts.model import Platform
from allranks.core.facts.preflight import Tests, settings
from allranks.frameworks.base import HELPER_DIR, AttemptContext, Replica

VARIABLE = "ALLRANKS_PREFLIGHT"
PORT = 23433
"""Port of rank 0, at which the ranks meet for the test of the network."""

_SCRIPT = """if command -v python3 >/dev/null 2>&1; then exec python3 "$0" -- "$@"; fi
echo "allranks: no preflight: the image has no python3" >&2
exec "$@"
"""


def command(program: Sequence[str]) -> list[str]:
    """Return the command that tests the pod and becomes the program."""
    return ["/bin/sh", "-c", _SCRIPT, f"{HELPER_DIR}/preflight.py", *program]


@dataclass(frozen=True)
class PodTests:
    """The tests of an attempt, as its pods get them."""

    tests: Tests
    job: Job
    context: AttemptContext
    roles: frozenset[str]
    """The roles whose pods are tested: roles with ranks, if their command is not the image's entrypoint."""

    def variable(self, replica: Replica) -> str:
        """Return the value of VARIABLE for one pod."""
        checks: list[str] = [check for check in self.tests.checks if check != "network"]
        values: dict[str, Any] = {"checks": checks, "seconds": self.tests.seconds}
        if replica in self.meeting:
            checks.append("network")
            values |= {"rank": self.meeting[replica], "size": len(self.meeting), "address": self._address}
        return json.dumps(values)

    @cached_property
    def meeting(self) -> dict[Replica, int]:
        """The replicas that test the network between them, with their numbers: those that start together."""
        if "network" not in self.tests.checks:
            return {}
        tested = [replica for replica in self.context.ranked() if replica.role in self.roles]
        group = [r for r in tested if topology.scope(self.job, r.role, r.index) == "Group"]
        return {replica: number for number, replica in enumerate(group)} if len(group) > 1 else {}

    @cached_property
    def _address(self) -> str:
        return self.context.host_port(next(iter(self.meeting)), PORT)


def chosen(variable: str) -> tuple[list[str], int]:
    """Return (tests, longest time in seconds) of the value of VARIABLE."""
    values = json.loads(variable)
    return values["checks"], values["seconds"]


def pod_tests(job: Job, status: Status, platform: Platform, context: AttemptContext) -> PodTests | None:
    """Return the tests of the current attempt; None without any."""
    tests = settings(job, status, platform)
    if tests is None:
        return None
    first = {replica.role: replica for replica in reversed(context.ranked())}
    wire = topology.framework_of(job).wire(context)
    roles = (role for role, replica in first.items() if wire(replica).command or context.commands[role])
    return PodTests(tests, job, context, frozenset(roles))
