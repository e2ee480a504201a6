"""Time from a killed rank to the first step of the next attempt, in the same pods and with new ones, on real nodes."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

EPILOG = """examples:
  eval "$(tools/cluster.sh up)"; tools/images.sh --into 'tools/cluster.sh load --on node-1 -' operator pytorch
  python bench/in_place.py --image ghcr.io/allranks/pytorch:0.2.0
  python bench/in_place.py --rounds 3 -o json

KUBECONFIG is a cluster with allranks and its report port. Ranks of two jobs, which import torch and reduce with gloo on
two ranks each, are killed in turns: one job has restart.inPlace: Auto, the other Never. `bare` is torchrun in one pod
with --max-restarts, whose rank is killed as often. All times are of one node's clock.
"""
PROGRAM = """
import os, time
import torch
import torch.distributed as dist
from allranks.report import report
dist.init_process_group("gloo")
value = torch.ones(1)
for step in range(100000):
    dist.all_reduce(value)
    value.fill_(1)
    report(step=step)
    if step == 0 and dist.get_rank() == 0:
        print(f"first step at {time.time():.3f}", flush=True)
    time.sleep(0.05)
"""
KILL = """
import os, time
for name in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{name}/cmdline").read().split("\\0")
    if any("dist.get_rank()" in word for word in words) and "/proc/" not in "".join(words) and words[1] == "-u":
        print(f"{time.time():.3f}", flush=True)
        os.kill(int(name), 9)
        break
"""
WAYS = ("in place", "new pods", "bare")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="kills of each way, after one that is not counted")
    parser.add_argument("--image", default="ghcr.io/allranks/pytorch:0.2.0", help="default: %(default)s")
    parser.add_argument("--namespace", default="bench-in-place", help="is created and deleted; default: %(default)s")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    kubectl("create", "namespace", options.namespace)
    try:
        times = measure(options)
    finally:
        kubectl("delete", "namespace", options.namespace, "--wait=false")
    medians = {way: statistics.median(seconds) for way, seconds in times.items()}
    ratios = {way: round(median / medians["new pods"], 2) for way, median in medians.items()}
    if options.output == "json":
        print(json.dumps({"seconds": times, "medians": medians, "ratios": ratios}))
        return 0
    print("| way | median | least | most | ratio to new pods |\n|---|---:|---:|---:|---:|")
    for way, seconds in times.items():
        print(f"| {way} | {medians[way]:.1f} s | {min(seconds):.1f} s | {max(seconds):.1f} s | {ratios[way]:.2f} |")
    return 0


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each way, one for each round."""
    jobs = {way: way.replace(" ", "-") for way in WAYS}
    for way in WAYS:
        kubectl("-n", options.namespace, "apply", "-f", "-", input=json.dumps(job(way, jobs[way], options.image)))
    for way in WAYS:
        first_steps(options.namespace, jobs[way], 1)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds + 1):
        for way in WAYS if number % 2 else reversed(WAYS):
            seconds = kill(options.namespace, jobs[way], way, number)
            print(f"round {number}: {way}: {seconds:.2f} s", file=sys.stderr)
            if number:  # in the first round, files are not cached yet
                times[way].append(seconds)
    return times


def job(way: str, name: str, image: str) -> dict[str, Any]:
    command = ["torchrun", "--no-python", "python3", "-u", "-c", PROGRAM]
    roles: dict[str, Any] = {"master": {}, "worker": {"replicas": 1}}
    if way == "bare":
        command = ["torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=1000", *command[1:]]
        roles = {"worker": {"replicas": 1}}
    spec = {
        "framework": "spmd" if way == "bare" else "pytorch",
        "image": image,
        "command": command,
        "roles": roles,
        "progress": {},
        "restart": {"maxRestarts": 9999, "backoffSeconds": 0, "inPlace": "Auto" if way == "in place" else "Never"},
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
    }
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": name},
        "spec": spec,
    }


def kill(namespace: str, name: str, way: str, number: int) -> float:
    """Kill a rank; return the seconds until the next first step. Ranks take turns: after the third failure in a row, a
    replica gets a new pod."""
    before = len(first_steps(namespace, name, 1))
    running = pods(namespace, name)
    pod = running[number % len(running)]
    killed = kubectl("-n", namespace, "exec", pod, "-c", "trainer", "--", "python3", "-c", KILL, check=way == "bare")
    at = float(killed.split()[0])
    after = eventually(lambda: [time for time in first_steps(namespace, name, 0) if time > at])
    if way != "new pods":
        assert len(first_steps(namespace, name, 1)) > before
    return after[0] - at


def first_steps(namespace: str, name: str, least: int) -> list[float]:
    """Return the times of first steps in the logs of a job's running pods, once there are `least`."""

    def read() -> list[float]:
        logs = [kubectl("-n", namespace, "logs", pod, "-c", "trainer", check=False) for pod in pods(namespace, name)]
        return [float(time) for log in logs for time in re.findall(r"first step at ([\d.]+)", log)]

    return eventually(read) if least else read()


def pods(namespace: str, name: str) -> list[str]:
    """Return the pods of a job that run, in the order of their names."""
    listed = kubectl("-n", namespace, "get", "pods", "-l", f"allranks.dev/job-name={name}", "-o", "json")
    items = json.loads(listed)["items"]
    return sorted(
        pod["metadata"]["name"]
        for pod in items
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    )


def eventually(read: Callable[[], list[float]]) -> list[float]:
    deadline = time.monotonic() + 600
    while not (times := read()):
        if time.monotonic() > deadline:
            raise SystemExit("in_place: no first step within 600 s")
        time.sleep(0.2)
    return times


def kubectl(*arguments: str, input: str | None = None, check: bool = True) -> str:
    done = subprocess.run(
        ["kubectl", *arguments], input=input, capture_output=True, text=True, timeout=300, check=False
    )
    if check and done.returncode:
        raise SystemExit(f"in_place: kubectl {' '.join(arguments[:4])}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
