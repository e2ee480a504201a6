"""A framework that no other module knows: its class and one entry in the list let its jobs validate, render and run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[2]
PROGRAM = '''
import json

from pydantic import Field

from allranks.fields import Model, Port
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.base import Framework, RoleKind, Wiring


class Options(Model):
    """Options of the made-up framework."""

    port: Port = Field(7777, description="Port of member-0.")


class Choir(Framework):
    name = "choir"
    description = "Choir"
    options = Options
    roles = {"member": RoleKind("The processes.")}
    reserved_env = frozenset({"CHOIR_ADDRESS", "CHOIR_VOICE"})

    def wire(self, context):
        host, port = context.address(context.ranked()[0], context.options.port)
        return lambda replica: Wiring(env={"CHOIR_ADDRESS": f"{host}:{port}", "CHOIR_VOICE": str(replica.node_rank)})

    def success_target(self, replicas, elastic=False):
        return ("member", None)


FRAMEWORKS["choir"] = Choir()  # the one entry; everything below is imported later

from allranks.api.status import Status
from allranks.errors import InvalidManifest
from allranks.core.objects import pods
from support.builders import CLUSTER, environment, job, started

found = {}
of = job(framework="choir", roles={"member": 2}, choir={"port": 4444})
made = pods.objects(of, Status(), CLUSTER)
found["voices"] = [
    {name: value for name, value in environment(made, pod).items() if name.startswith("CHOIR_")} for pod in made.pods
]
try:
    job(framework="choir", roles={"soloist": 1})
except InvalidManifest as error:
    found["refused"] = str(error)
life = started(of)
found["pods"] = sorted(life.pods)
found["phase"] = life.status.phase
print(json.dumps(found))
'''


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=TESTS, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_its_pods_have_its_variables(found: dict[str, Any]) -> None:
    address = "job-member-0-0.job.team.svc:4444"
    assert found["voices"] == [{"CHOIR_ADDRESS": address, "CHOIR_VOICE": str(voice)} for voice in range(2)]


def test_a_role_that_it_does_not_have_is_refused(found: dict[str, Any]) -> None:
    assert "soloist" in found["refused"]


def test_the_operator_runs_its_job(found: dict[str, Any]) -> None:
    assert (found["pods"], found["phase"]) == (["job-member-0-0", "job-member-1-0"], "Running")
