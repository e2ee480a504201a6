"""The receiver's process of `reports.py`: the real server, report store, token reviews and core, with a fake API server
that accepts all tokens. With `--frontend` the HTTP server runs in a process of its own, as in the chart.

Prints its address, then its statistics for each line that it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "operator"))

from allranks.api.status import Status
from allranks.api.validation import parse
from allranks.core.facts import naming
from allranks.core.facts.model import Observed, Platform, Pod
from allranks.core.objects.report_env import AUDIENCE
from allranks.core.reconcile import reconcile
from allranks.kube.pod_codec import to_cached_pod
from allranks.kube.raw_pod import Labels, Meta, Owner, Raw, RawSpec, RawStatus
from allranks.operator.cache import PodCache
from allranks.operator.metrics import Metrics
from allranks.operator.ports.http_servers import HttpServers, Ports
from allranks.operator.ports.local_backend import LocalBackend
from allranks.operator.ports.report_auth import Reviews
from allranks.operator.ports.socket_server import SocketServer
from allranks.operator.timing import Clock, Timing
from allranks.telemetry.store import ReportStore
from support.frontend_process import frontend


def pod_uid(job: int, rank: int) -> str:
    return f"00000000-0000-4000-{job:04x}-{rank:012x}"


def token(job: int, rank: int) -> str:
    """A token with the size of a real one."""
    claims = {
        "aud": [AUDIENCE],
        "exp": 2**33,
        "iss": "https://kubernetes.default.svc",
        "sub": "system:serviceaccount:bench:default",
        "kubernetes.io": {
            "namespace": "bench",
            "pod": {"name": naming.pod_name(f"job-{job}", "worker", rank, 0), "uid": pod_uid(job, rank)},
            "serviceaccount": {"name": "default", "uid": pod_uid(0, 0)},
        },
    }
    parts = [{"alg": "RS256", "kid": "x" * 40}, claims]
    return ".".join(
        [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts] + ["s" * 342]
    )


class YesMan:
    """Replaces the client of the API server."""

    def __init__(self) -> None:
        self.asked = 0

    async def request(self, verb: str, path: str, body: Any, retry_timeout: float) -> bytes:
        self.asked += 1
        await asyncio.sleep(0.002)  # latency of a real one
        payload = body["spec"]["token"].split(".")[1]
        pod = json.loads(base64.urlsafe_b64decode(payload + "==="))["kubernetes.io"]["pod"]
        extra = {
            "authentication.kubernetes.io/pod-name": [pod["name"]],
            "authentication.kubernetes.io/pod-uid": [pod["uid"]],
        }
        user = {"username": "system:serviceaccount:bench:default", "extra": extra}
        return json.dumps({"status": {"authenticated": True, "audiences": [AUDIENCE], "user": user}}).encode()


class Core:
    """Reconciles jobs on request, and keeps the status that would have been written."""

    def __init__(self, jobs: int, ranks: int) -> None:
        document = {
            "apiVersion": "allranks.dev/v1alpha1",
            "kind": "DistributedTraining",
            "metadata": {"name": "job", "namespace": "bench", "uid": "u"},
            "spec": {"framework": "pytorch", "image": "x", "command": ["x"], "roles": {"worker": {"replicas": ranks}}},
        }
        now = datetime.now(UTC)
        start = Observed(parse(document), Status(), (), now, Platform("operator:1", report_url="http://x/v1/report"))
        for _ in range(3):
            start = replace(start, persisted=reconcile(start).next or start.persisted)
        pods = tuple(
            Pod(naming.pod_name("job", "worker", rank, 0), pod_uid(0, rank), "worker", rank, 0, phase="Running",
                started_at=now, placed_at=now, created_at=now, node="n")
            for rank in range(ranks)
        )  # fmt: skip
        running = replace(start, pods=pods)
        self.observed = {
            ("bench", f"job-{job}"): replace(running, persisted=reconcile(running).next or running.persisted)
            for job in range(jobs)
        }
        self.decisions = self.writes = 0

    def decide(self, job: tuple[str, str], hub: ReportStore) -> None:
        observed = replace(self.observed[job], now=datetime.now(UTC), reports=hub.snapshot(job, f"uid-{job[1]}", 0))
        status = reconcile(observed).next
        self.decisions += 1
        if status is not None:
            self.writes += 1
            self.observed[job] = replace(observed, persisted=status, reports=None)


@dataclass
class Session:
    """A leader."""

    reports: ReportStore
    reviews: Reviews
    leading: bool = True


@dataclass
class Counted(LocalBackend):
    """Counts responses to reports."""

    session: Session
    answers: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__(lambda: self.session, {}, Metrics(), None)

    def count(self, status: int, count: int = 1) -> None:
        self.answers[status] += count


def cached_pods(jobs: int, ranks: int) -> PodCache:
    pods = PodCache(lambda key, urgent: None)
    for job in range(jobs):
        for rank in range(ranks):
            labels = Labels(f"job-{job}", "worker", str(rank), "0")
            owner = Owner("DistributedTraining", f"job-{job}", f"uid-job-{job}", True)
            meta = Meta(
                naming.pod_name(f"job-{job}", "worker", rank, 0), "bench", pod_uid(job, rank), "1", labels, [owner]
            )
            pods.upsert(to_cached_pod(Raw(meta, RawSpec("node"), RawStatus("Running"))))
    return pods


@contextlib.asynccontextmanager
async def serving(backend: Counted, separate: bool) -> AsyncIterator[dict[str, int]]:
    """Yields the port, and the process ID of the frontend if there is one."""
    if not separate:
        servers = HttpServers(Ports("127.0.0.1", metrics=0, reports=0), backend)
        await servers.start()
        assert servers.reports
        yield {"port": servers.reports.port}
        await servers.stop()
        return
    with tempfile.TemporaryDirectory() as folder:
        server = SocketServer(f"{folder}/socket", backend)
        await server.start()
        with frontend(server.path) as (process, ports):
            yield {"port": ports["reports"], "frontend": process.pid}
        await server.stop()


async def serve(jobs: int, ranks: int, separate: bool) -> None:
    core, api = Core(jobs, ranks), YesMan()
    manifests = {("bench", f"job-{job}"): {"metadata": {"uid": f"uid-job-{job}"}} for job in range(jobs)}
    hub = ReportStore(lambda: datetime.now(UTC), lambda job: core.decide(job, hub))
    reviews = Reviews(api, cached_pods(jobs, ranks), manifests.get, timing=Timing(), clock=Clock())  # type: ignore[arg-type]
    backend = Counted(Session(hub, reviews))
    async with serving(backend, separate) as address:
        loop = asyncio.get_running_loop()
        print(json.dumps(address), flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            kept = sum(len(hub.snapshot(job, f"uid-{job[1]}", 0).ranks) for job in manifests)
            print(json.dumps({
                "answers": backend.answers, "reviews": api.asked, "ranks_kept": kept, "decisions": core.decisions,
                "status_writes": core.writes, "interval": hub.interval,
            }), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--frontend", action="store_true")
    given = parser.parse_args()
    uvloop.run(serve(given.jobs, given.ranks, given.frontend))  # as `allranks operator` does


if __name__ == "__main__":
    main()
