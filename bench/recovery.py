"""Recovery time after a pod failure, on a real API server with the fake kubelet.

One process contains the operator, the clock and a plain client whose creations are the reference; rounds alternate. The
fake kubelet runs in its own process, so that it does not use the operator's thread.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import logging
import math
import os
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from allranks.api import validation  # noqa: E402
from allranks.api.status import Status  # noqa: E402
from allranks.core.facts.model import Manifest, Platform  # noqa: E402
from allranks.core.objects import pods  # noqa: E402
from allranks.kube import paths, pod_codec, raw_pod  # noqa: E402
from allranks.kube.auth import Connection  # noqa: E402
from allranks.kube.client import Client  # noqa: E402
from allranks.operator.app import Operator  # noqa: E402
from allranks.operator.settings import Settings  # noqa: E402
from bench.common import connection as connection_to  # noqa: E402
from bench.common import log_progress, make_namespace, percentiles, programs, until  # noqa: E402
from bench.creation import plane  # noqa: E402
from bench.life import kubelet  # noqa: E402
from support.simulator import pod_status  # noqa: E402

EXIT_CODE = 138
"""Above 128: the same code below 128 twice before any progress counts as a bug and fails the job."""
FAILURES_PER_JOB = 8
"""A job records at most 25 Events: a new job is used after this many failures, so that all rounds cost the same."""
EXAMPLES = """\
examples:
  python bench/recovery.py                              # 64 pods, 30 failures of each kind: a few minutes
  python bench/recovery.py --only group --seconds 30    # a quick run
  python bench/recovery.py --profile /tmp/recovery.prof # then: python -m pstats /tmp/recovery.prof
  python bench/recovery.py 2>/dev/null | jq .group.observed_to_all_created
"""

clock = time.perf_counter
Times = dict[str, list[float]]
"""Name -> seconds of each round."""


@dataclass(frozen=True)
class Scenario:
    """A job, whose pods of `role` (empty: of any) fail, and how many pods each failure costs."""

    name: str
    framework: str
    roles: dict[str, int]
    role: str
    replaced: int

    def job(self, number: int) -> Manifest:
        return {
            "apiVersion": "allranks.dev/v1alpha1",
            "kind": "DistributedTraining",
            "metadata": {"name": f"{self.name}-{number}"},
            "spec": {
                "framework": self.framework,
                "image": "example.org/x:1",
                "command": ["x"],
                "roles": {role: {"replicas": replicas} for role, replicas in self.roles.items()},
                "restart": {"maxRestarts": 1000, "backoffSeconds": 0},
            },
        }


def scenarios(size: int) -> list[Scenario]:
    return [
        Scenario("group", "pytorch", {"master": 1, "worker": size - 1}, "", size),
        Scenario("one", "tensorflow", {"chief": 1, "ps": size - 1}, "ps", 1),
    ]


@dataclass
class Request:
    verb: str
    path: str
    sent: float
    answered: float = float("inf")


@dataclass
class Stopwatch:
    """Records when the operator receives the victim's failure, and all of its requests."""

    victim: str = ""
    wanted: int = 0
    """Number of pods still to be created."""
    observed_at: float = 0.0
    cpu: float = 0.0
    """CPU time of this process, from the failure event to the last creation response."""
    requests: list[Request] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, victim: str, wanted: int) -> None:
        self.victim, self.wanted, self.observed_at, self.requests = victim, wanted, 0.0, []
        self.done.clear()

    def decode(self, raw: raw_pod.Raw) -> pod_codec.CachedPod:
        """Replaces the operator's decoder, which is the first code that handles a pod of the watch."""
        if not self.observed_at and raw.metadata.uid == self.victim and raw.status.phase == "Failed":
            self.observed_at, self.cpu = clock(), -time.process_time()
        return pod_codec.to_cached_pod(raw)

    def observe(self, client: Client) -> None:
        once = client._once

        async def timed(verb: str, path: str, *rest: Any) -> bytes:
            request = Request(verb, path, clock())  # after waiting for a slot
            self.requests.append(request)
            try:
                return await once(verb, path, *rest)
            finally:
                request.answered = clock()
                if (verb, path.endswith("/pods")) == ("POST", True):
                    self.wanted -= 1
                    if not self.wanted:
                        self.cpu += time.process_time()
                        self.done.set()

        client._once = timed  # type: ignore[method-assign, assignment]

    def of(self, verb: str, end: str) -> list[Request]:
        return [request for request in self.requests if request.verb == verb and request.path.endswith(end)]


class Recovery:
    """Runs the operator and the plain client on one API server."""

    def __init__(self, connection: Connection, profile: Any = None) -> None:
        self.client, self.connection = Client(connection), connection
        self.random, self.profile = random.Random(0), profile
        self.stopwatch = Stopwatch()

    async def run(self, scenario: Scenario, rounds: int, seconds: float) -> Times:
        ours = await make_namespace(self.client, scenario.name)
        plain = await make_namespace(self.client, f"{scenario.name}-plain")
        times: Times = {}
        began = clock()
        async with self._operator(ours) as operator:
            for number in range(rounds):
                if number and clock() - began > seconds:
                    break
                if number % FAILURES_PER_JOB == 0:
                    await self._begin(operator, ours, scenario, number)
                name = f"{scenario.name}-{number - number % FAILURES_PER_JOB}"
                yardstick = self._plain_group if scenario.replaced > 1 else self._plain_one
                of_plain = await yardstick(plain, scenario, operator, (ours, name), number)
                of_ours = await self._fail(operator, ours, scenario)
                for what, took in {**of_ours, **of_plain}.items():
                    times.setdefault(what, []).append(took)
                log_progress(
                    f"{scenario.name}: round {number + 1} of {rounds}, {of_ours['observed_to_all_created']:.3f} s"
                )
        return times

    @contextlib.asynccontextmanager
    async def _operator(self, namespace: str) -> AsyncIterator[Operator]:
        settings = Settings(namespaces=(namespace,), address="127.0.0.1", port=0, pools=False)
        operator = Operator(settings, self.connection, decode_pod=self.stopwatch.decode)
        stop = asyncio.Event()
        run = asyncio.create_task(operator.run(stop))
        try:
            await until(lambda: operator.idle)
            assert operator.session
            self.stopwatch.observe(operator.session.client)
            yield operator
        finally:
            stop.set()
            await run

    async def _begin(self, operator: Operator, namespace: str, scenario: Scenario, number: int) -> None:
        """Replaces the old job by a new one."""
        for old in json.loads(await self.client.get(paths.job_path(namespace)))["items"]:
            await self.client.delete(paths.job_path(namespace, old["metadata"]["name"]), old["metadata"]["uid"])
        await until(lambda: operator.session and not len(operator.session.pods))
        await self.client.create(paths.job_path(namespace), scenario.job(number))
        await self._runs(operator, scenario)

    async def _runs(self, operator: Operator, scenario: Scenario) -> None:
        """Waits until all pods run, the old ones are gone, and the operator is idle."""

        def settled() -> bool:
            assert operator.session
            found = [cached.pod for cached in operator.session.pods]
            running = [pod for pod in found if pod.phase == "Running" and pod.deleted_at is None]
            return len(found) == len(running) == sum(scenario.roles.values()) and operator.idle

        await until(settled)
        await asyncio.sleep(0.3)  # other components may still be busy

    async def _fail(self, operator: Operator, namespace: str, scenario: Scenario) -> dict[str, float]:
        assert operator.session
        found = [cached.pod for cached in operator.session.pods]
        victim = self.random.choice(sorted((p for p in found if scenario.role in ("", p.role)), key=lambda p: p.name))
        stopwatch, path = self.stopwatch, paths.item("Pod", namespace, victim.name)
        pod = json.loads(await self.client.get(path))
        stopwatch.start(victim.uid, scenario.replaced)
        with self._profiled():
            began = clock()
            await self.client.patch(f"{path}/status", {"status": pod_status.exited(pod, datetime.now(UTC), EXIT_CODE)})
            reported = clock()
            await asyncio.wait_for(stopwatch.done.wait(), 120)
        await self._runs(operator, scenario)
        observed, created = stopwatch.observed_at, stopwatch.of("POST", "/pods")
        assert len(created) == scenario.replaced, "unexpected number of creations"
        status = next(r for r in stopwatch.of("PATCH", "/status") if "distributedtrainings" in r.path)
        deleted = stopwatch.of("DELETE", "")
        last = max(request.answered for request in created)
        return {
            "report_sent_to_observed": observed - began,
            "report_answered_to_observed": observed - reported,
            "observed_to_status_sent": status.sent - observed,
            "observed_to_status_written": status.answered - observed,
            "observed_to_first_creation_sent": min(request.sent for request in created) - observed,
            "observed_to_last_creation_sent": max(request.sent for request in created) - observed,
            "observed_to_all_created": last - observed,
            "report_answered_to_all_created": last - reported,
            "operator_cpu": stopwatch.cpu,
            "observed_to_all_deletions_answered": max(request.answered for request in deleted) - observed,
        }

    @contextlib.contextmanager
    def _profiled(self) -> Iterator[None]:
        if self.profile:
            self.profile.enable()
        try:
            yield
        finally:
            if self.profile:
                self.profile.disable()

    async def _plain_group(
        self, namespace: str, scenario: Scenario, operator: Operator, job: tuple[str, str], number: int
    ) -> dict[str, float]:
        """Creates the same pods: alone, and while as many old ones are deleted, as in a restart."""
        old, new = (self._manifests(namespace, scenario, f"{number}-{kind}") for kind in ("old", "new"))
        began, cpu = clock(), time.process_time()
        await asyncio.gather(*(self._create(pod) for pod in old))
        alone, cpu = clock() - began, time.process_time() - cpu
        uids = await self._settled(namespace, len(old))
        began, last = clock(), 0.0

        async def create(pod: Manifest) -> None:
            nonlocal last
            await self._create(pod)
            last = clock() - began

        deletions = [self.client.delete(paths.item("Pod", namespace, name), uid) for name, uid in uids.items()]
        await asyncio.gather(*deletions, *(create(pod) for pod in new))
        await self._settled(namespace, len(new))
        await self.client.request("DELETE", paths.collection("Pod", namespace), {"gracePeriodSeconds": 0})
        await self._settled(namespace, 0)
        return {"plain_creations": alone, "plain_creations_cpu": cpu, "plain_creations_beside_deletions": last}

    async def _plain_one(
        self, namespace: str, scenario: Scenario, operator: Operator, job: tuple[str, str], number: int
    ) -> dict[str, float]:
        """Writes one status of the same size, then creates one pod."""
        if number == 0:
            await self.client.create(paths.job_path(namespace), scenario.job(0))
        target = paths.job_path(namespace, f"{scenario.name}-0")
        status = json.loads(await self.client.get(paths.job_path(*job)))["status"]
        await self.client.patch(f"{target}/status", {"status": status})
        entry = {"count": 1, "restartTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        change = {"status": {"replicaRestarts": {f"ps-{number}": entry}, "restarts": {"counted": number + 1}}}
        pod = self._manifests(namespace, scenario, str(number))[-1]
        began = clock()
        await self.client.patch(f"{target}/status", change)
        written = clock() - began
        await self._create(pod)
        created = clock() - began
        await self._settled(namespace, 1)
        await self.client.request("DELETE", paths.collection("Pod", namespace), {"gracePeriodSeconds": 0})
        await self._settled(namespace, 0)
        return {"plain_status": written, "plain_status_and_creation": created}

    def _manifests(self, namespace: str, scenario: Scenario, suffix: str) -> list[Manifest]:
        """The operator's pods without ownerReferences, so that the garbage collector does not delete them."""
        job = validation.parse(scenario.job(0))
        out = []
        for pod in pods.objects(job, Status(), Platform(helper_image="x")).pods:
            metadata = {key: value for key, value in pod["metadata"].items() if key != "ownerReferences"}
            metadata |= {"namespace": namespace, "name": f"{pod['metadata']['name']}-{suffix}"}
            out.append({**pod, "metadata": metadata})
        return out

    async def _create(self, pod: Manifest) -> None:
        await self.client.create(paths.collection("Pod", pod["metadata"]["namespace"]), pod)

    async def _settled(self, namespace: str, count: int) -> dict[str, str]:
        """Waits until this many pods exist and run; returns their UIDs by name."""
        while True:
            answer = await self.client.get(paths.collection("Pod", namespace), resourceVersion="0")
            found = json.loads(answer)["items"]
            running = [p for p in found if p["status"]["phase"] == "Running"]
            if len(found) == len(running) == count and not any("deletionTimestamp" in p["metadata"] for p in found):
                await asyncio.sleep(0.3)
                return {p["metadata"]["name"]: p["metadata"]["uid"] for p in found}
            await asyncio.sleep(0.1)


def summary(times: Times) -> dict[str, Any]:
    """Milliseconds. With fewer than 100 rounds, p99 is the maximum."""
    out: dict[str, Any] = {"rounds": len(times["observed_to_all_created"])}
    out |= {what: percentiles(1000 * seconds for seconds in of) for what, of in times.items()}
    for plain in ("plain_creations", "plain_creations_beside_deletions", "plain_status_and_creation"):
        if plain in times:
            ratios = [a / b for a, b in zip(times["observed_to_all_created"], times[plain], strict=True)]
            out[f"ratio_to_{plain}"] = round(statistics.median(ratios), 2)
    return out


async def measure(connection: Connection, asked: argparse.Namespace, profile: Any) -> dict[str, Any]:
    recovery = Recovery(connection, profile)
    out: dict[str, Any] = {"pods": asked.pods, "unit": "ms", "cores": os.cpu_count()}
    try:
        for scenario in scenarios(asked.pods):
            if asked.only in (None, scenario.name):
                before = os.getloadavg()[0]
                out[scenario.name] = summary(await recovery.run(scenario, asked.rounds, asked.seconds))
                out[scenario.name]["load_average"] = [round(before, 1), round(os.getloadavg()[0], 1)]
    finally:
        await recovery.client.close()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=64, help="pods of the job (default 64)")
    parser.add_argument("--rounds", type=int, default=30, help="failures of each scenario (default 30)")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="time limit of each scenario for starting new rounds"
    )
    parser.add_argument("--only", choices=["group", "one"], help="all pods restart, or one parameter server alone")
    parser.add_argument("--profile", type=Path, help="profile the operator's process in the rounds, into this file")
    asked = parser.parse_args()
    if asked.pods < 2 or asked.rounds < 1:
        parser.error("at least 2 pods and 1 round")
    logging.disable(logging.WARNING)  # the operator logs each failure
    profile = None
    if asked.profile:
        profile = cProfile.Profile(time.thread_time)  # excludes waiting for the CPU
    with plane(programs()) as control_plane, kubelet(control_plane):
        print(json.dumps(asyncio.run(measure(connection_to(control_plane), asked, profile)), indent=2))
    if profile:
        profile.dump_stats(asked.profile)


if __name__ == "__main__":
    main()
