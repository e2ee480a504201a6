"""Sweeps with their status, as the API server returns them, and the jobs of their trials."""

from __future__ import annotations

import functools
import json
from typing import Any

from allranks.api.sweep_validation import parse_sweep
from allranks.kube import sweep_codec
from support.builders import manifest
from support.sweep_world import World
from support.ui_samples import a_job

Manifest = dict[str, Any]


@functools.cache
def _finished(trials: int) -> str:
    document = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "TrainingSweep",
        "metadata": {"name": "search", "namespace": "team"},
        "spec": {
            "parameters": {"lr": {"logUniform": {"min": 0.0001, "max": 0.1}}, "batch": {"values": [16, 32, 64]}},
            "objective": {"metric": "loss", "goal": "Minimize"},
            "trials": trials,
            "parallel": 3,
            "template": {"spec": manifest(args=["--lr=$(lr)"])["spec"]},
        },
    }
    return json.dumps({**document, "status": sweep_codec.encode(World(parse_sweep(document)).run())})


def a_sweep(name: str = "search", uid: str = "", namespace: str = "team", trials: int = 12, **status: Any) -> Manifest:
    """A sweep that has succeeded."""
    made: Manifest = json.loads(_finished(trials))
    made["metadata"] = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-03-04T10:00:00Z",
    }
    made["status"] |= status
    return made


def trial_of(sweep: Manifest, name: str, uid: str, phase: str = "Succeeded") -> Manifest:
    """The job of one of its trials."""
    job = a_job(name, phase, workers=1, namespace=sweep["metadata"]["namespace"])
    owner = {"kind": "TrainingSweep", "name": sweep["metadata"]["name"], "uid": sweep["metadata"]["uid"]}
    job["metadata"] |= {"uid": uid, "ownerReferences": [{**owner, "controller": True}]}
    return job


def with_gpu_time(job: Manifest, productive: float, lost: float = 0.0, price: float | None = 2.0) -> Manifest:
    """The job with so many GPU-hours, which cost `price` EUR each."""
    hours = {"productive": productive, "lost": lost}
    cost: Manifest = {"gpuSeconds": {kind: 3600 * value for kind, value in hours.items()}}
    if price is not None:
        spent = {kind: price * value for kind, value in hours.items()}
        cost |= {"price": f"{price:.2f}", "currency": "EUR", "spent": spent}
    end = "2026-03-04T12:00:00Z"
    times = {"productive": 3600.0, "lost": 600.0, "byReason": {"NodeLost": 600.0}, "category": "Finished", "since": end}
    job["status"] |= {"times": times, "cost": cost, "completionTime": end}
    return job
