"""Memory that jobs take in the operator, measured as growth of a process' resident set, with wide margins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

_PROGRAM = """
import asyncio, gc, json, sys
from aiohttp import web
sys.path.insert(0, {tests!r})
from allranks.core.facts.model import Plan
from allranks.kube import compact_jobs
from support.fake_api import OneObject
from support.scripted import client_of
from unit.operator.test_controller import controller_of, running

def resident():
    gc.collect()
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) * 1024

def line(number, spec, status):
    metadata = {{"name": f"demo-{{number}}", "namespace": "ns", "uid": f"u{{number}}", "generation": 1,
                 "resourceVersion": str(number + 1), "annotations": {{"kubectl": "x" * 1000}}}}
    job = {{"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": metadata,
            "spec": spec, "status": status}}
    return json.dumps({{"type": "ADDED", "object": job}}).encode()

class Stored(OneObject):
    # Answers a request for a job with the job.

    def __init__(self, spec, status):
        super().__init__()
        self.spec, self.status = spec, status

    async def __call__(self, request):
        name = request.path.rpartition("/")[2]
        if request.method != "GET" or not name.startswith("demo-"):
            return await super().__call__(request)
        job = json.loads(line(int(name[5:]), self.spec, self.status))["object"]
        return web.json_response(job)

async def hold(count, spec, status):
    async with client_of(Stored(spec, status)) as (client, _):
        controller = controller_of(client, decide=lambda observed: Plan())
        async with running(controller):
            before = resident()
            for number in range(count):
                # As the watch delivers it.
                event = json.loads(compact_jobs.line(line(number, spec, status)))
                controller.on_job_event(compact_jobs.compact(event["object"]), False)
            while not controller.idle:
                await asyncio.sleep(0.01)
            states = controller._states.values()
            assert len(states) == len(controller.jobs) == count
            if status["phase"] != "Running":
                assert all(state.decoded.job is None and state.decoded.status is None for state in states)
            print((resident() - before) / count)

asyncio.run(hold(*json.loads(sys.stdin.read())))
"""


def _bytes_per_job(count: int, spec: object, status: object) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(tests=str(TESTS))],
        input=json.dumps([count, spec, status]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


SPEC = {"framework": "pytorch", "image": "x", "command": ["a"], "roles": {"worker": {"replicas": 2}}}
STAMP = "2026-03-04T10:00:00Z"
SUSPENDED = {
    "phase": "Suspended",
    "startTime": STAMP,
    "attemptTime": STAMP,
    "conditions": [
        {"type": "Running", "status": "False", "reason": "Suspended", "message": "", "lastTransitionTime": STAMP},
    ],
}


FINISHED = {**SUSPENDED, "completionTime": STAMP, "roles": {"worker": {"desired": 2, "succeeded": 2}}}


@pytest.mark.nightly
def test_jobs_of_the_largest_size_that_the_api_server_stores_take_a_few_kilobytes() -> None:
    """As Python objects, such a template takes about sixty times its size. It is larger than a template may be, so the
    job has failed, and nothing of its spec is needed."""
    template = {"metadata": {"annotations": {"x": [{}] * 320_000}}}
    spec = {**SPEC, "suspend": True, "template": template}
    assert len(json.dumps(spec)) > 1_250_000
    # So many, because the allocator keeps the memory of one such job, or does not.
    assert _bytes_per_job(100, spec, {**FINISHED, "phase": "Failed"}) < 150_000


@pytest.mark.nightly
def test_suspended_jobs_with_the_largest_template_that_is_accepted() -> None:
    template = {"metadata": {"annotations": {"x": "y"}}, "spec": {"x": [{}] * 64_000}}
    spec = {**SPEC, "suspend": True, "template": template}
    assert len(json.dumps(spec, separators=(",", ":"))) > 192_000
    assert _bytes_per_job(100, spec, SUSPENDED) < 200_000


@pytest.mark.nightly
def test_jobs_that_run_with_the_largest_template_that_is_accepted() -> None:
    """A few of those that run stay decoded. The others are read again when they are reconciled."""
    template = {"metadata": {"annotations": {"x": "y"}}, "spec": {"x": [{}] * 64_000}}
    status = {**SUSPENDED, "phase": "Running", "conditions": []}
    assert _bytes_per_job(100, {**SPEC, "template": template}, status) < 1_000_000


def test_an_ordinary_finished_job_takes_a_few_kilobytes() -> None:
    assert _bytes_per_job(1_000, SPEC, {**FINISHED, "phase": "Succeeded"}) < 25_000
