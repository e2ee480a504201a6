"""Jobs with reported progress, in the form of the API. All times are fixed."""

from __future__ import annotations

import copy
import math
from datetime import datetime, timedelta
from typing import Any

from support.builders import NOW, manifest


def stamp(seconds: float) -> str:
    """The timestamp of this many seconds after the creation of the job."""
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def job(name: str = "penguins", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    document = manifest("pytorch", {"master": 1, "worker": 3}, name, **spec)
    document["metadata"] |= {"creationTimestamp": stamp(0), "uid": f"uid-{name}", "resourceVersion": "1"}
    return document | {"status": copy.deepcopy(status or {})}


def failure(attempt: int, **fields: Any) -> dict[str, Any]:
    defaults = {
        "attempt": attempt,
        "role": "worker",
        "index": 1,
        "rank": 2,
        "pod": f"penguins-worker-1-{attempt}",
        "node": "node-7",
        "reason": "Error",
        "time": stamp(300),
    }
    return defaults | fields


# 0: created; 12 s until a node was free; first step at 30; killed at 300, 30 s after a checkpoint.
KILLED = {
    "attempt": 0,
    "startTime": stamp(1),
    "runningTime": stamp(20),
    "endTime": stamp(300),
    "reason": "Error",
    "counted": True,
    "firstStep": 0,
    "lastStep": 540,
    "productiveSeconds": 240,
    "lostSeconds": 30,
    "failure": failure(0, exitCode=137, signal=9, message="step 540 loss 0.71"),
}
# First step at 320, last step at 500, hang detected at 620, 140 s after the checkpoint.
HUNG = {
    "attempt": 1,
    "startTime": stamp(300),
    "runningTime": stamp(310),
    "endTime": stamp(620),
    "reason": "Hang",
    "counted": True,
    "firstStep": 480,
    "lastStep": 840,
    "productiveSeconds": 160,
    "lostSeconds": 140,
    "failure": failure(1, index=2, rank=3, node="node-9", reason="Hang", message="rank 3 is at step 839"),
}
# First step at 645, done at 900.
COMPLETED = {
    "attempt": 2,
    "startTime": stamp(620),
    "runningTime": stamp(633),
    "endTime": stamp(900),
    "reason": "Completed",
}
TIMES = {
    "queued": 12,
    "starting": 18,
    "productive": 655,
    "lost": 215,
    "category": "Finished",
    "since": stamp(900),
    "measured": True,
    "byReason": {"Error": 50, "Hang": 165},
}


def curve() -> list[dict[str, Any]]:
    """60 points. A restart returns to the step of the checkpoint."""
    made = []
    for attempt, first, begin, end in ((0, 0, 30, 300), (1, 480, 320, 500), (2, 800, 645, 900)):
        for number in range(20):
            seconds = begin + (end - begin) * number / 19
            step = round(first + 2 * (seconds - begin))
            value = round(2.3 * math.exp(-step / 400) + 0.03 * math.sin(step), 4)
            point = {"time": stamp(seconds), "attempt": attempt, "step": step, "value": value}
            made.append(point | {"samplesPerSecond": 512 + step % 16})
    return made


PROGRESS = {
    "step": 1310,
    "totalSteps": 1310,
    "epoch": 20,
    "metrics": {"accuracy": 0.985, "loss": 0.0871},
    "samplesPerSecond": 518.4,
    "lastReport": stamp(899),
    "firstStepTime": stamp(645),
    "firstStep": 800,
    "checkpointStep": 1300,
    "checkpointTime": stamp(895),
    "curveMetric": "loss",
    "curve": curve(),
    "summary": "1310/1310 100%",
}
RANKS = [
    {"rank": 3, "replica": "worker-2", "step": 598, "lag": 2, "stepSeconds": 0.5, "busySeconds": 0.48},
    {"rank": 0, "replica": "master-0", "step": 600, "lag": 0, "stepSeconds": 0.5, "busySeconds": 0.21},
]


def finished(name: str = "penguins") -> dict[str, Any]:
    """A job that was killed, hung and succeeded."""
    status = {
        "phase": "Succeeded",
        "attempt": 2,
        "ready": "4/4",
        "roles": {"master": {"desired": 1}, "worker": {"desired": 3}},
        "restarts": {"counted": 2, "byReason": {"Error": 1, "Hang": 1}},
        "conditions": [condition("Complete", "Completed", "training completed", 900)],
        "history": [KILLED, HUNG, COMPLETED],
        "lastFailure": HUNG["failure"],
        "startTime": stamp(1),
        "attemptTime": stamp(620),
        "runningTime": stamp(633),
        "completionTime": stamp(900),
        "times": TIMES,
        "goodput": 0.7376,
        "progress": PROGRESS,
    }
    return job(name, status)


def running(name: str = "penguins") -> dict[str, Any]:
    """The same job at 500 s: its second attempt, with a straggler."""
    slow = {"rank": 3, "replica": "worker-2", "node": "node-9", "slowdown": 2.31}
    points = [point for point in curve() if point["attempt"] < 2][:32]
    progress = {
        "step": 600,
        "totalSteps": 1310,
        "epoch": 9,
        "metrics": {"loss": 0.5132},
        "samplesPerSecond": 512,
        "etaSeconds": 355,
        "eta": "5m55s",
        "lastReport": stamp(498),
        "firstStepTime": stamp(320),
        "firstStep": 480,
        "checkpointStep": 560,
        "checkpointTime": stamp(480),
        "stragglers": [slow],
        "ranks": RANKS,
        "reporting": 4,
        "curveMetric": "loss",
        "curve": points,
        "summary": "600/1310 45%",
    }
    status = {
        "phase": "Running",
        "attempt": 1,
        "ready": "4/4",
        "roles": {"master": {"desired": 1}, "worker": {"desired": 3}},
        "restarts": {"counted": 1, "byReason": {"Error": 1}},
        "conditions": [condition("Running", "AllRunning", "all pods are running", 310)],
        "history": [KILLED],
        "lastFailure": KILLED["failure"],
        "startTime": stamp(1),
        "attemptTime": stamp(300),
        "runningTime": stamp(310),
        "times": {
            "queued": 12,
            "starting": 18,
            "productive": 240,
            "lost": 50,
            "category": "Productive",
            "since": stamp(320),
            "productiveSince": stamp(320),
            "measured": True,
            "byReason": {"Error": 50},
        },
        "goodput": 0.7792,
        "progress": progress,
    }
    return job(name, status)


def silent(name: str = "digits") -> dict[str, Any]:
    """A job without reports, at 500 s."""
    status = {
        "phase": "Running",
        "ready": "4/4",
        "startTime": stamp(1),
        "attemptTime": stamp(1),
        "runningTime": stamp(20),
        "times": {
            "queued": 12,
            "starting": 8,
            "productive": 0,
            "lost": 0,
            "category": "Productive",
            "since": stamp(20),
            "productiveSince": stamp(20),
        },
    }
    return job(name, status)


def condition(kind: str, reason: str, message: str, seconds: float) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": stamp(seconds),
    }
