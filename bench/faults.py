"""A fault each minute, on real nodes: two jobs train the same program, with ranks that restart in their pods and with
new pods. Both must end with a trained model; their goodput and their time are compared."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

EPILOG = """examples:
  eval "$(tools/cluster.sh up --nodes 2)"
  tools/images.sh --into 'tools/cluster.sh load -' operator pytorch    # then install the chart
  python bench/faults.py --stop-node 'tools/cluster.sh stop' --start-node 'tools/cluster.sh start'
  python bench/faults.py --epochs 300 --every 30 -o json

KUBECONFIG is a cluster with allranks, its report port, and volumes that all nodes share. Each minute the same fault
hits both jobs, and the ranks take turns: signals to a rank, a rank that stops, too much memory in a container, a
deleted pod, an eviction, and, with the commands for it, a node that loses its power for some seconds. A job that does
not train again by then is left alone until the next minute, and the fault counts as skipped.

exit status: 0, or 1 if a job did not end with a trained model
"""
SIGNAL = """
import os
for name in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{{name}}/cmdline").read().split("\\0")
    if "train/penguins_pytorch.py" in words and words[1] == "-u":
        os.kill(int(name), {number})
"""
MEMORY = "b = bytearray(8 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1"
SIGNALS = {"KeyboardInterrupt": 2, "SIGABRT": 6, "SIGKILL": 9, "SIGSEGV": 11, "a rank that stops": 19}
HANG_SECONDS = 30
WAYS = {"in place": "Auto", "new pods": "Never"}


@dataclass
class Job:
    """A job, and the faults that hit it."""

    way: str
    name: str
    faults: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    attempts: dict[int, str] = field(default_factory=dict)
    """Attempt -> how the next one began. The status has only the last ten."""
    seconds: float | None = None
    """From its creation to its end."""

    @property
    def step(self) -> int:
        return int((self.status.get("progress") or {}).get("step") or 0)


class Bench:
    """A namespace with both jobs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._namespace = options, options.namespace
        self.jobs = [Job(way, way.replace(" ", "-")) for way in WAYS]

    def run(self) -> None:
        """Train until both jobs have ended, with a fault each minute."""
        begin = time.monotonic()
        for job in self.jobs:
            self._kubectl("apply", "-f", "-", input=json.dumps(manifests(job, self._options)))
        faults = self._faults()
        for number in range(10**6):
            tick = begin + self._options.every * (number + 1)
            while time.monotonic() < tick and not self._all_ended(begin):
                time.sleep(1)
            if self._all_ended(begin) or time.monotonic() - begin > self._options.limit:
                return
            name, inject = faults[number % len(faults)]
            hit = [job for job in self.jobs if job.seconds is None and trains(job.status)]
            for job in self.jobs:
                job.skipped += job.seconds is None and job not in hit
            threads = [threading.Thread(target=inject, args=(job, number // len(faults) + number)) for job in hit]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for job in hit:
                job.faults[name] += 1
            steps = ", ".join(f"{job.way} at step {job.step}" for job in self.jobs)
            log(f"fault {number + 1}: {name} ({steps}; hit: {', '.join(job.way for job in hit) or 'none'})")

    def _faults(self) -> list[tuple[str, Callable[[Job, int], None]]]:
        programs = {name: SIGNAL.format(number=number) for name, number in SIGNALS.items()} | {"out of memory": MEMORY}
        faults: list[tuple[str, Callable[[Job, int], None]]] = [
            (name, partial(self._execute, program)) for name, program in programs.items()
        ]
        faults.append(("a deleted pod", self._delete))
        faults.append(("an eviction", self._evict))
        if self._options.stop_node:
            faults.append(("a node without power", self._power))
        return faults

    def _all_ended(self, begin: float) -> bool:
        for job in self.jobs:
            if job.seconds is None:
                job.status = self._status(job)
                for past in job.status.get("history") or []:
                    job.attempts[past["attempt"]] = past.get("how") or "NewPods"
                if job.status.get("completionTime"):
                    job.seconds = time.monotonic() - begin
        return all(job.seconds is not None for job in self.jobs)

    def _execute(self, program: str, job: Job, number: int) -> None:
        """Run a program in the container of a rank, which may end with the container."""
        pods = self._pods(job)
        if pods:
            pod = pods[number % len(pods)]["metadata"]["name"]
            self._kubectl("exec", pod, "-c", "trainer", "--", "python3", "-c", program, check=False)

    def _delete(self, job: Job, number: int) -> None:
        pods = self._pods(job)
        if pods:
            self._kubectl("delete", "pod", pods[number % len(pods)]["metadata"]["name"], "--wait=false", check=False)

    def _evict(self, job: Job, number: int) -> None:
        pods = self._pods(job)
        if pods:
            name = pods[number % len(pods)]["metadata"]["name"]
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": self._namespace},
            }
            path = f"/api/v1/namespaces/{self._namespace}/pods/{name}/eviction"
            self._kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction), check=False)

    def _power(self, job: Job, number: int) -> None:
        """Switch off the node of a rank, for both jobs, and on again after some seconds."""
        if job is not next(other for other in self.jobs if other.seconds is None):
            return
        operator = json.loads(self._kubectl("get", "pods", "-A", "-l", "app.kubernetes.io/name=allranks", "-o", "json"))
        busy = {pod["spec"].get("nodeName") for pod in operator["items"]}
        nodes = [pod["spec"]["nodeName"] for pod in self._pods(job) if pod["spec"]["nodeName"] not in busy]
        if nodes:
            subprocess.run([*shlex.split(self._options.stop_node), nodes[0]], check=True, capture_output=True)
            time.sleep(10)
            subprocess.run([*shlex.split(self._options.start_node), nodes[0]], check=True, capture_output=True)

    def _pods(self, job: Job) -> list[dict[str, Any]]:
        """Return the job's running pods, in the order of their names."""
        listed = json.loads(self._kubectl("get", "pods", "-l", f"allranks.dev/job-name={job.name}", "-o", "json"))
        pods = [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]
        return sorted(
            (pod for pod in pods if pod["status"]["phase"] == "Running"), key=lambda pod: str(pod["metadata"]["name"])
        )

    def _status(self, job: Job) -> dict[str, Any]:
        text = self._kubectl("get", "dt", job.name, "-o", "json", check=False)
        return (json.loads(text).get("status") or {}) if text else job.status

    def result(self, job: Job) -> dict[str, Any]:
        """Return what became of a job."""
        status, log_text = job.status, ""
        for pod in json.loads(self._kubectl("get", "pods", "-l", f"allranks.dev/job-name={job.name}", "-o", "json"))[
            "items"
        ]:
            log_text += self._kubectl("logs", pod["metadata"]["name"], "-c", "trainer", "--tail=50", check=False)
        accuracy = re.findall(r"test accuracy[^\d]*([\d.]+)", log_text)
        times = status.get("times") or {}
        return {
            "phase": status.get("phase"),
            "seconds": job.seconds and round(job.seconds),
            "goodput": status.get("goodput"),
            "faults": sum(job.faults.values()),
            "skipped": job.skipped,
            "restarts": status.get("restarts"),
            "how": dict(Counter(job.attempts.values())),
            "lost": {reason: round(seconds) for reason, seconds in (times.get("byReason") or {}).items()},
            "starting": round(times.get("starting") or 0),
            "step": job.step,
            "accuracy": float(accuracy[-1]) if accuracy else None,
            "byFault": dict(job.faults),
        }

    def _kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            ["kubectl", "-n", self._namespace, *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check and done.returncode:
            raise SystemExit(f"faults: kubectl {' '.join(arguments[:3])}: {done.stderr.strip()}")
        return done.stdout


def trains(status: dict[str, Any]) -> bool:
    """Return whether the current attempt has made a step, and nothing is lost at present."""
    return status.get("phase") == "Running" and (status.get("times") or {}).get("category") == "Productive"


def manifests(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Return the job and the claim for its checkpoints."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": job.name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    spread = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"allranks.dev/job-name": job.name}},
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
    }
    spec = {
        "framework": "pytorch",
        "image": options.image,
        "command": ["torchrun", "train/penguins_pytorch.py"],
        "args": [f"--epochs={options.epochs}", "--pause=1"],
        "roles": {"worker": {"replicas": 2}},
        "resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "checkpoint": {"claim": job.name},
        "progress": {},
        "hang": {"timeoutSeconds": HANG_SECONDS, "action": "Restart"},
        "restart": {"maxRestarts": 9999, "backoffSeconds": 0, "inPlace": WAYS[job.way]},
        "template": {"spec": {"topologySpreadConstraints": [spread]}},
    }
    training = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": job.name},
        "spec": spec,
    }
    return {"apiVersion": "v1", "kind": "List", "items": [claim, training]}


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=2000, help="an epoch takes a second; default: %(default)s")
    parser.add_argument("--every", type=float, default=60, help="seconds between faults; default: %(default)s")
    parser.add_argument("--limit", type=float, default=7200, help="end after this time; default: %(default)s")
    parser.add_argument("--image", default="ghcr.io/allranks/pytorch:0.2.0", help="default: %(default)s")
    parser.add_argument("--stop-node", default="", metavar="COMMAND", help="switches off the node that follows")
    parser.add_argument("--start-node", default="", metavar="COMMAND", help="switches it on again")
    parser.add_argument("--namespace", default="bench-faults", help="is created and deleted; default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="do not delete the namespace")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    subprocess.run(["kubectl", "create", "namespace", options.namespace], check=True, stdout=sys.stderr)
    try:
        bench = Bench(options)
        bench.run()
        results = {job.way: bench.result(job) for job in bench.jobs}
    finally:
        if not options.keep:
            delete = ["kubectl", "delete", "namespace", options.namespace, "--wait=false"]
            subprocess.run(delete, check=False, stdout=sys.stderr)
    if options.output == "json":
        print(json.dumps(results, indent=1))
    else:
        print("| | " + " | ".join(results) + " |\n|---|" + "---:|" * len(results))
        for row in next(iter(results.values())):
            print(f"| {row} | " + " | ".join(str(result[row]) for result in results.values()) + " |")
    return 0 if all(result["phase"] == "Succeeded" and result["accuracy"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
