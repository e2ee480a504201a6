"""A pytest plugin that records jobs of this version with their status and pods, for `test_statuses.py`.

Runs the scenarios on the simulated cluster, and keeps one settled moment for each kind of status:

    git worktree add /tmp/release VERSION && cd /tmp/release
    STATUSES=.../tests/model/golden/statuses/VERSION.json.gz PYTHONPATH=operator:tests:.../tests/model/golden/statuses \
        python -m pytest -q -p record tests/model/scenarios -k 'test_scenario and not poor and not killed'
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from support.simulator import cluster as simulator

KIND = "DistributedTraining"
kept: dict[Any, dict[str, Any]] = {}
_settle = simulator.Cluster.settle


def settle(self: Any) -> None:
    _settle(self)
    for job in self.store.all(KIND):
        pods = [pod for pod in self.store.all("Pod") if job["metadata"]["uid"] in owners(pod)]
        status = job.get("status")
        if not status or self.operator is None or not self.operator.alive or len(pods) > 8:
            continue
        observed = replace(self.operator.observe(job), reports=None)
        # The decision about these also depends on other objects.
        if {"pool", "inputs", "outputs"} & job["spec"].keys() or status["phase"] == "Queued" or observed.refused:
            continue
        if not self.reconcile(observed).empty or len(observed.pods) != len(pods):
            continue
        kind = (job["spec"]["framework"], status.get("phase"), tuple(sorted(paths(status))), shape(pods))
        kept.setdefault(kind, {"now": self.now.isoformat(), "job": job, "pods": pods})


def owners(manifest: dict[str, Any]) -> list[str]:
    return [owner["uid"] for owner in manifest["metadata"].get("ownerReferences", [])]


def paths(value: Any, where: str = "") -> Iterator[str]:
    """The paths of all fields. Items of a list have the path of the list."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield f"{where}.{key}"
        yield from paths(inner, f"{where}.{key}")
    for item in value if isinstance(value, list) else ():
        yield from paths(item, where)


def shape(pods: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(sorted({pod["status"].get("phase", "") for pod in pods}))


def compact(pod: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what no rule reads."""
    spec = {key: pod["spec"][key] for key in ("nodeName", "restartPolicy") if key in pod["spec"]}
    return {**pod, "spec": spec | {"containers": [{"name": one["name"]} for one in pod["spec"]["containers"]]}}


def pytest_unconfigure() -> None:
    entries = [{**entry, "pods": [compact(pod) for pod in entry["pods"]]} for entry in kept.values()]
    entries.sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    data = "\n".join(json.dumps(entry, sort_keys=True) for entry in entries)
    with open(os.environ["STATUSES"], "wb") as file:
        file.write(gzip.compress(data.encode(), 9, mtime=0))


simulator.Cluster.settle = settle  # type: ignore[method-assign]
