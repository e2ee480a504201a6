"""Chaos for hours on a real API server: does the operator, or what it leaves in the cluster, grow without bound?

    python -m bench.soak --minutes 60 [--jobs 20] [--seed 1]

Jobs of every framework run, end, expire and are submitted again, and so does a sweep. Meanwhile pods fail, are deleted
and evicted, jobs are suspended and deleted, and the API server is restarted. Prints a JSON object, and exits with 1 if
a bound is exceeded:

- memory of the operator in the last quarter: at most 1.3 times that of the second quarter, plus 10 MB;
- bytes that etcd uses, which include all changes since its last compaction: at most 2 times, plus 100 MB;
- Events: at most 20 per job;
- at the end, when all jobs are deleted: no pod, Service, ConfigMap or Secret of a job is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from typing import Any

from bench.common import job, log_progress, memory, programs
from bench.creation import plane
from bench.life import kubelet
from bench.systems import Allranks
from support.api import ApiError
from support.controlplane import ControlPlane
from support.kubelet import Hand

KIND, SWEEP = "DistributedTraining", "TrainingSweep"
OWNED = ("Pod", "Service", "ConfigMap", "Secret")
SAMPLES = 24
EVENTS_PER_JOB = 20
FRAMEWORKS: tuple[dict[str, Any], ...] = (
    {},
    {"framework": "tensorflow", "roles": {"worker": {"replicas": 2}, "ps": {"replicas": 1}}},
    {"framework": "horovod", "roles": {"worker": {"replicas": 2}}},
    {"framework": "horovod", "roles": {"worker": {"replicas": 2}}, "elastic": {"minReplicas": 1, "maxReplicas": 3}},
    {
        "framework": "horovod",
        "roles": {"worker": {"replicas": 1}, "launcher": {"replicas": 1}},
        "horovod": {"controller": "MPI"},
    },
    {"framework": "jax", "roles": {"worker": {"replicas": 2}}},
    {"framework": "mpi", "roles": {"launcher": {"replicas": 1}, "worker": {"replicas": 2}}},
    {"framework": "ray", "roles": {"head": {"replicas": 1}, "worker": {"replicas": 2}}},
    {"framework": "spmd", "roles": {"worker": {"replicas": 2}, "data": {"replicas": 1}}},
)


class Chaos:
    """One namespace with jobs, and what happens to them."""

    def __init__(self, of: ControlPlane, jobs: int, seed: int) -> None:
        self.plane, self.api, self.jobs, self.random = of, of.api, jobs, random.Random(seed)
        self.namespace, self.submitted, self.sweeps, self.done = "soak", 0, 0, 0
        self._hand = Hand(self.api, self.namespace, lambda: datetime.now(UTC), lambda _: datetime.now(UTC))
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        with contextlib.suppress(ApiError):
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            self.api.create(account, self.namespace)

    def turn(self) -> None:
        """Submits jobs up to the wanted number, and does one thing to a random job or pod."""
        self._search()
        present = self.names(KIND)
        for _ in range(self.jobs - len(present)):
            kind = FRAMEWORKS[self.submitted % len(FRAMEWORKS)]
            restart = {"backoff": {"initialSeconds": 1, "maxSeconds": 5}}
            self.api.create(
                job(f"job-{self.submitted}", 3, ttlSecondsAfterFinished=5, restart=restart, **kind), self.namespace
            )
            self.submitted += 1
        action = self.random.choice((self.fail, self.fail, self.delete_pod, self.evict, self.suspend, self.delete_job))
        with contextlib.suppress(ApiError):  # it has gone in the meantime
            action()
            self.done += 1

    def _search(self) -> None:
        """A sweep, which is replaced by the next one when it has ended."""
        for sweep in self.api.list(SWEEP, self.namespace):
            if sweep.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                return
            self.api.delete(SWEEP, self.namespace, sweep["metadata"]["name"])
        self.sweeps += 1
        of = job("trial", 2, restart={"maxRestarts": 1, "backoff": {"initialSeconds": 1, "maxSeconds": 2}})
        spec = {
            "parameters": {"lr": {"uniform": {"min": 0, "max": 1}}},
            "objective": {"metric": "loss", "goal": "Minimize"},
            "trials": 6,
            "parallel": 2,
            "template": {"spec": of["spec"]},
        }
        metadata = {"name": f"search-{self.sweeps}"}
        self.api.create({**of, "kind": SWEEP, "metadata": metadata, "spec": spec}, self.namespace)

    def names(self, kind: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.api.list(kind, self.namespace)]

    def fail(self) -> None:
        self._hand.end(
            self._one("Pod"), self.random.choice((1, 3, 137, 139)), message="x" * self.random.randrange(2000)
        )

    def delete_pod(self) -> None:
        self.api.delete("Pod", self.namespace, self._one("Pod"))

    def evict(self) -> None:
        self._hand.evict(self._one("Pod"))

    def suspend(self) -> None:
        name = self._one(KIND)
        for suspended in (True, False):
            self.api.patch(KIND, self.namespace, name, {"spec": {"suspend": suspended}})

    def delete_job(self) -> None:
        self.api.delete(KIND, self.namespace, self._one(KIND))

    def _one(self, kind: str) -> str:
        names = self.names(kind)
        if not names:
            raise ApiError(404, "NotFound", "there is none")
        return self.random.choice(names)

    def left(self) -> dict[str, int]:
        """Objects of jobs, by kind."""
        return {kind: len([*filter(_of_a_job, self.api.list(kind, self.namespace))]) for kind in OWNED}


def _of_a_job(manifest: dict[str, Any]) -> bool:
    return "allranks.dev/job-name" in (manifest["metadata"].get("labels") or {})


def soak(minutes: float, jobs: int, seed: int) -> dict[str, Any]:
    with plane(programs()) as fresh, kubelet(fresh, "--run-seconds=15"):
        system, chaos = Allranks(fresh, programs()), Chaos(fresh, jobs, seed)
        samples: list[dict[str, Any]] = []
        with system.run():
            until(lambda: system.answers("/readyz") == "ok", 120, "the operator is not ready")
            began = time.monotonic()
            restarts = [began + minutes * 60 * part for part in (0.3, 0.6, 0.9)]
            while (passed := time.monotonic() - began) < minutes * 60:
                if restarts and time.monotonic() > restarts[0]:
                    restarts.pop(0)
                    fresh.stop_api_server()
                    fresh.start_api_server()
                chaos.turn()
                if passed >= len(samples) * minutes * 60 / SAMPLES:
                    samples.append(_sample(system, fresh, chaos, passed))
                    log_progress(f"soak: {samples[-1]}")
                time.sleep(0.3)
            for kind in (SWEEP, KIND):
                for name in chaos.names(kind):
                    with contextlib.suppress(ApiError):
                        chaos.api.delete(kind, chaos.namespace, name)
            with contextlib.suppress(TimeoutError):
                until(lambda: not any(chaos.left().values()), 180, "")
            left = chaos.left()
    quarter = max(1, len(samples) // 4)
    quarters = samples[quarter : 2 * quarter], samples[-quarter:]
    early, late = (median(one["memory_mb"] for one in part) for part in quarters)
    stored = [max(one["etcd_mb"] for one in part) for part in quarters]
    events = max(one["events"] for one in samples)  # the API server keeps them for an hour
    problems = [f"memory grew from {early} to {late} MB"] if late > 1.3 * early + 10 else []
    problems += [f"etcd grew from {stored[0]} to {stored[1]} MB"] if stored[1] > 2 * stored[0] + 100 else []
    problems += [f"{events} Events of {chaos.submitted} jobs"] if events > EVENTS_PER_JOB * chaos.submitted else []
    problems += [f"{count} {kind}s are left" for kind, count in left.items() if count]
    return {
        "minutes": minutes,
        "jobs_submitted": chaos.submitted,
        "sweeps": chaos.sweeps,
        "actions": chaos.done,
        "memory_mb": [early, late],
        "etcd_mb": stored,
        "events_per_hour": round(events / min(minutes / 60, 1)),
        "most": {name: max(one[name] for one in samples) for name in ("pods", "services", "configmaps", "secrets")},
        "left": left,
        "problems": problems,
        "samples": samples,
    }


def _sample(system: Allranks, of: ControlPlane, chaos: Chaos, passed: float) -> dict[str, Any]:
    return {
        "seconds": round(passed),
        "memory_mb": round(memory(system.pids[0]), 1),
        "etcd_mb": round(_etcd_bytes(of) / 1e6, 1),
        "jobs": len(chaos.names(KIND)),
        "events": len(chaos.names("Event")),
        **{f"{kind.lower()}s": count for kind, count in chaos.left().items()},
    }


def _etcd_bytes(of: ControlPlane) -> float:
    """Bytes of the database that are in use."""
    with urllib.request.urlopen(f"{of.etcd_url}/metrics", timeout=10) as answer:
        found = re.search(rb"^etcd_mvcc_db_total_size_in_use_in_bytes (\S+)", answer.read(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=10, help="jobs at the same time")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found = soak(arguments.minutes, arguments.jobs, arguments.seed)
    print(json.dumps(found, indent=2))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
