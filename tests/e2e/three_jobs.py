"""Three jobs of four pods with a GPU each, for two nodes that have eight GPUs together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .cluster import KEPT_FREE
from .jobs import Manifest, Team, training
from .nodes import until
from .watching import JOB, PodWatch, watched

PODS = 4
NAMES = ("one", "two", "three")
GPU = "nvidia.com/gpu"
RANK = """
for index in 0 1 2 3; do
  until getent hosts "$ALLRANKS_JOB-worker-$index-$ALLRANKS_ATTEMPT.$ALLRANKS_JOB"; do sleep 0.5; done
done
echo all ranks are here
until [ -e /tmp/enough ]; do sleep 0.5; done
"""
"""Finds all other ranks, and then waits for `finish`."""


def job(name: str, gpu: str = GPU, pod: Manifest | None = None, **scheduling: Any) -> list[Manifest]:
    """`pod`: further fields of the pods' spec."""
    tolerations = [{"key": KEPT_FREE, "value": "node-2", "effect": "NoSchedule"}]  # node-3 stays free
    return training(
        name,
        *("sh", "-c", RANK),
        roles={"worker": {"replicas": PODS}},
        resources={"limits": {gpu: 1}},
        template={"spec": {"terminationGracePeriodSeconds": 1, "tolerations": tolerations, **(pod or {})}},
        scheduling=scheduling,
    )


def two_run_and_one_waits(team: Team, waits_well: Callable[[str], None], **scheduling: Any) -> None:
    """Starts the jobs. When two run, the function checks the third. Then one of the two ends, and the third runs."""
    with watched(team) as watch:
        for name in NAMES:
            team.start(job(name, **scheduling))
        waits, others = when_two_run(team)
        waits_well(waits)
        assert placed(team, waits) == [], "it holds no node"
        finish(team, others[0])
        runs(team, waits)
        assert placed_before_end(watch, waits, others[0]) == []
        for name in (others[1], waits):
            finish(team, name)
        for name in NAMES:
            restarts = team.status(name)["restarts"]
            assert (restarts["counted"], restarts["disruptions"]) == (0, 0)


def when_two_run(team: Team) -> tuple[str, list[str]]:
    """The name of the job that does not run when two do, and those of the two."""

    def running() -> list[str]:
        jobs = json.loads(team.kubectl("get", "dt", "-o", "json"))["items"]
        return [each["metadata"]["name"] for each in jobs if each.get("status", {}).get("phase") == "Running"]

    until(lambda: len(running()) >= 2, "two jobs that run")
    found = running()
    [waits] = set(NAMES) - set(found)
    for name in found:
        runs(team, name)
    return waits, found


def runs(team: Team, name: str) -> None:
    """Waits until each rank of the job has found the others."""
    team.wait(f"dt/{name}", "--for=condition=Running")
    attempt = team.status(name)["attempt"]
    for index in range(PODS):
        team.says(f"{name}-worker-{index}-{attempt}", "all ranks are here")


def finish(team: Team, name: str) -> None:
    """Ends the ranks of a job, and waits until it is Complete."""
    attempt = team.status(name)["attempt"]
    for index in range(PODS):
        team.run(f"{name}-worker-{index}-{attempt}", "touch", "/tmp/enough")
    team.completes(name)


def pods(team: Team, name: str) -> list[Manifest]:
    return list(json.loads(team.kubectl("get", "pods", "-l", f"{JOB}={name}", "-o", "json"))["items"])


def placed(team: Team, name: str) -> list[str]:
    """The nodes that pods of the job hold."""
    return [each["spec"]["nodeName"] for each in pods(team, name) if each["spec"].get("nodeName")]


def placed_before_end(watch: PodWatch, waits: str, first: str) -> list[str]:
    """Pods of a job that got a node while all pods of the other one still ran."""
    ended, early = False, []
    for _, pod in watch.events:
        of = pod["metadata"]["labels"].get(JOB)
        ended = ended or (of == first and pod["status"].get("phase") in ("Succeeded", "Failed"))
        if of == waits and pod["spec"].get("nodeName") and not ended:
            early.append(pod["metadata"]["name"])
    return early
