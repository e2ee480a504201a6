"""Records every state of the pods of a namespace, as the API server published it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .jobs import Manifest, Team

JOB, ATTEMPT = "allranks.dev/job-name", "allranks.dev/attempt"


class PodWatch:
    """The states of pods, oldest first."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Manifest]] = []
        """(ADDED, MODIFIED or DELETED, pod)"""

    def states(self, pod: str) -> list[Manifest]:
        """The statuses of a pod."""
        return [found["status"] for _, found in list(self.events) if found["metadata"]["name"] == pod]

    def disruptions(self, pod: str) -> list[str]:
        """Reasons of DisruptionTarget in the statuses of a pod, without repetitions."""
        conditions = [c for status in self.states(pod) for c in status.get("conditions", ())]
        return list(dict.fromkeys(c["reason"] for c in conditions if c["type"] == "DisruptionTarget"))

    def overlaps(self) -> list[str]:
        """Times at which pods of two attempts of a job were neither ended nor being deleted."""
        pods: dict[str, Manifest] = {}
        found = []
        for kind, pod in self.events:
            metadata = pod["metadata"]
            pods[metadata["uid"]] = pod
            if kind == "DELETED":
                del pods[metadata["uid"]]
            job = metadata.get("labels", {}).get(JOB)
            active = {p["metadata"]["name"]: p["metadata"]["labels"][ATTEMPT] for p in pods.values() if _active(p, job)}
            if len(set(active.values())) > 1:
                found.append(f"{metadata['resourceVersion']}: {sorted(active)}")
        return found

    def read(self, stream: Any) -> None:
        """Reads the events that `kubectl get --watch --output-watch-events -o json` prints."""
        text = ""
        for line in stream:
            text += line
            if not line.startswith(("}", "{")) or not line.endswith("}\n"):
                continue
            event, text = json.loads(text), ""
            if event["type"] in ("ADDED", "MODIFIED", "DELETED"):  # not ERROR: the end of a watch
                self.events.append((event["type"], event["object"]))


def _active(pod: Manifest, job: str | None) -> bool:
    ended = pod["status"]["phase"] in ("Succeeded", "Failed")
    labels = pod["metadata"].get("labels", {})
    return job is not None and labels.get(JOB) == job and not ended and "deletionTimestamp" not in pod["metadata"]


@contextmanager
def watched(team: Team) -> Iterator[PodWatch]:
    watch = PodWatch()
    command = ["get", "pods", "--watch", "--output-watch-events", "-o", "json", "-n", team.namespace]
    process = team.cluster.start(*command, stdout=subprocess.PIPE)
    reader = threading.Thread(target=watch.read, args=(process.stdout,))
    reader.start()
    try:
        yield watch
    finally:
        process.terminate()
        process.wait(timeout=300)
        reader.join(timeout=300)
        if process.stdout:
            process.stdout.close()
