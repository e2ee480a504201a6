"""The pages of `allranks ui` with many jobs on a real API server, beside kubectl and the API server's own answer; and
the page of a log of 1 GB, that of a run of this machine.

python bench/ui.py                      # 1,000 jobs of 8 ranks
python bench/ui.py --jobs 200 --rounds 10
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from allranks.kube import paths  # noqa: E402
from allranks.kube.client import Client  # noqa: E402
from bench.common import Manifest, connection, log_progress, make_namespace, memory, programs  # noqa: E402
from bench.creation import plane  # noqa: E402
from support.controlplane import ControlPlane  # noqa: E402
from support.ui_samples import a_job, a_run, failure, progress, times  # noqa: E402

NAMESPACE = "team"
PHASES = ("Running",) * 5 + ("Queued", "Failed", "Succeeded", "Succeeded", "Restarting")
AT_ONCE = 32


def sample(number: int, ranks: int) -> Manifest:
    """A job with the status of one that trains: curve, ranks, times and an earlier failure."""
    phase = PHASES[number % len(PHASES)]
    status = {"progress": progress(1000 + number, ranks=ranks), "times": times()}
    if phase == "Failed":
        status["lastFailure"] = failure()
    return a_job(f"job-{number:04}", phase, ranks, NAMESPACE, **status)


async def create(api: ControlPlane, jobs: int, ranks: int) -> None:
    client = Client(connection(api), user_agent="bench")
    try:
        await make_namespace(client, NAMESPACE)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            wanted = sample(number, ranks)
            meta = {"name": wanted["metadata"]["name"], "labels": wanted["metadata"]["labels"]}
            async with room:
                await client.create(
                    paths.job_path(NAMESPACE),
                    {
                        "apiVersion": wanted["apiVersion"],
                        "kind": wanted["kind"],
                        "metadata": meta,
                        "spec": wanted["spec"],
                    },
                )
                path = f"{paths.job_path(NAMESPACE)}/{meta['name']}/status"
                await client.patch(path, {"status": wanted["status"]})

        await asyncio.gather(*map(one, range(jobs)))
    finally:
        await client.close()


def write_log(runs: Path, megabytes: int) -> None:
    """A run of this machine with a log of that size."""
    folder = a_run(runs, "loud", "20260304-101500", "Failed", lastFailure=failure())
    block = b"".join(b"epoch 3 step %07d loss 0.3141 accuracy 0.8912\n" % step for step in range(20_000))
    with (folder / "logs" / "loud-worker-0-0.log").open("wb") as file:
        while file.tell() < megabytes << 20:
            file.write(block)


@contextlib.contextmanager
def served(kubeconfig: Path, runs: Path) -> Iterator[tuple[int, str, str]]:
    """`allranks ui`: its pid, host and token."""
    options = ["--kubeconfig", kubeconfig, "--root", runs, "-A", "--no-browser", "--port", "0"]
    command = [sys.executable, "-m", "allranks", "ui", *options]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout
    try:
        address = urlsplit(running.stdout.readline().split()[-1])
        yield running.pid, f"127.0.0.1:{address.port}", address.query.removeprefix("token=")
    finally:
        running.terminate()
        running.wait(30)


def timed(rounds: int, ask: Callable[[], int]) -> dict[str, float]:
    """Milliseconds of each round, and the size of the answer."""
    took, size = [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        size = ask()
        took.append(1000 * (time.perf_counter() - began))
    return {"first": took[0], "p50": median(took), "max": max(took), "bytes": size}


def get(connection_of: Callable[[], http.client.HTTPConnection], path: str, token: str) -> int:
    asked = connection_of()
    asked.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = asked.getresponse()
    body = answer.read()
    asked.close()
    assert answer.status == 200, body[:500]
    return len(body)


def watches(api: ControlPlane) -> int:
    """Watches of jobs that the API server serves."""
    host = urlsplit(api.url).netloc
    asked = http.client.HTTPSConnection(host, context=ssl.create_default_context(cafile=str(api.ca_file)))
    asked.request("GET", "/metrics", headers={"Authorization": f"Bearer {api.admin_token}"})
    text = asked.getresponse().read().decode()
    asked.close()
    pattern = r'^apiserver_longrunning_requests\{[^}]*resource="distributedtrainings"[^}]*verb="WATCH"[^}]*\} (\S+)'
    return int(sum(float(number) for number in re.findall(pattern, text, re.MULTILINE)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--starts", type=int, default=5, help="for the first page after a start")
    parser.add_argument("--log-megabytes", type=int, default=1024)
    asked = parser.parse_args()
    built = programs()
    with plane(built) as api, tempfile.TemporaryDirectory() as folder:
        asyncio.run(create(api, asked.jobs, asked.ranks))
        log_progress(f"{asked.jobs} jobs of {asked.ranks} ranks")
        write_log(Path(folder), asked.log_megabytes)
        found = {**vars(asked), **measure(api, built, Path(folder), asked)}
    print(json.dumps(found, indent=1))


def first_page(kubeconfig: Path, runs: Path) -> float:
    """Milliseconds of the first request to a server that has just printed its address."""
    with served(kubeconfig, runs) as (_, host, token):
        return timed(1, lambda: get(lambda: http.client.HTTPConnection(host, timeout=60), "/", token))["first"]


def measure(api: ControlPlane, built: Path, runs: Path, asked: argparse.Namespace) -> Manifest:
    out: Manifest = {"first page after a start": [first_page(api.kubeconfig, runs) for _ in range(asked.starts)]}
    log_progress(f"first page after a start: {out}")
    with served(api.kubeconfig, runs) as (pid, host, token):

        def ui() -> http.client.HTTPConnection:
            return http.client.HTTPConnection(host, timeout=60)

        for path in ("/", "/?page=2", "/?phase=Failed", "/jobs/team/job-0000", "/history", "/new", "/api/v1/jobs"):
            out[path] = timed(asked.rounds, lambda path=path: get(ui, path, token))
            log_progress(f"{path}: {out[path]}")
        out["memory_mb"] = round(memory(pid))
        out["watches"] = watches(api)  # with those of the garbage collector
        streams = [ui() for _ in range(asked.viewers)]
        for stream in streams:
            stream.request("GET", "/api/v1/stream", headers={"Authorization": f"Bearer {token}"})
            stream.getresponse().readline()
        out["watches_with_viewers"] = watches(api)
        out["with_viewers"] = timed(asked.rounds, lambda: get(ui, "/", token))
        out["memory_mb_with_viewers"] = round(memory(pid))
        for stream in streams:
            stream.close()
        logs = "/runs/loud/20260304-101500/logs"
        for path in (logs, f"{logs}?tail=10000", f"{logs}?search=nothing"):
            out[path] = timed(asked.rounds, lambda path=path: get(ui, path, token))
            log_progress(f"{path}: {out[path]}")
        out["memory_mb_after_logs"] = round(memory(pid))
    secure = ssl.create_default_context(cafile=str(api.ca_file))
    server = urlsplit(api.url).netloc
    out["list of the API server"] = timed(
        asked.rounds,
        lambda: get(lambda: http.client.HTTPSConnection(server, context=secure), paths.job_path(None), api.admin_token),
    )
    command = [built / "kubectl", "--kubeconfig", api.kubeconfig, "get", "distributedtrainings", "-A"]
    out["kubectl get"] = timed(
        max(3, asked.rounds // 4),
        lambda: len(subprocess.run(command, capture_output=True, check=True, env={**os.environ}).stdout),
    )
    return out


if __name__ == "__main__":
    main()
