"""The largest objects that the API server accepts, of each kind that a service of allranks lists or watches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from allranks.api import sweep_validation, validation
from allranks.api.job import API_VERSION, KIND
from support.builders import manifest

Manifest = dict[str, Any]
NAMESPACE = "flood"
JOB = {"metadata": {"namespace": NAMESPACE, "name": "noisy", "uid": "00000000-0000-4000-8000-000000000000"}}
LARGEST_BYTES = 1_000_000
"""Of an object in etcd, whose limit is 1.5 MiB."""
LABELS = {f"k{number:04}-{'x' * 54}": "x" * 60 for number in range(1_500)}
"""Kubernetes bounds annotations, and not labels. With more entries, a busy API server does not answer in time."""
ANNOTATIONS = {f"k{number:04}-{'x' * 54}": "x" * 110 for number in range(1_500)}

FINALIZERS = [f"example.com/{number:04}-{'x' * 40}" for number in range(1_500)]
OWNERS = [
    {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": f"{number:08}-0000-4000-8000-000000000000"}
    for number in range(1_500)
]


def template(size: int) -> Manifest:
    """Return a template of that many bytes, with as many labels and as small parts as possible."""
    texts = {f"k{number:03}": "x" * 500 for number in range(validation.MAX_LABELS)}
    labels = {f"l{number:03}": "x" * 60 for number in range(validation.MAX_LABELS)}
    rest = (size - 45_000) // len('{"name":"c00000","image":"x"},')
    containers = [{"name": f"c{number:05}", "image": "x"} for number in range(rest)]
    return {"metadata": {"labels": labels, "annotations": texts}, "spec": {"containers": containers}}


def _object(api_version: str, kind: str, name: str, metadata: Manifest, **more: Any) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **metadata}, **more}


def _job(name: str, metadata: Manifest, **spec: Any) -> Manifest:
    return _object(API_VERSION, KIND, name, metadata, spec={**manifest(**spec)["spec"]})


def _large_template(name: str) -> Manifest:
    return _job(name, {}, suspend=True, template=template(validation.MAX_TEMPLATE_BYTES))


def _of_another_manager(name: str) -> Manifest:
    return _job(name, {}, managedBy="example.com/another", template=template(LARGEST_BYTES))


def _labels(name: str) -> Manifest:
    return _job(name, {"labels": LABELS}, suspend=True)


def _annotations(name: str) -> Manifest:
    return _job(name, {"annotations": ANNOTATIONS}, suspend=True)


def _finalizers(name: str) -> Manifest:
    return _job(name, {"finalizers": FINALIZERS}, suspend=True)


def _owners(name: str) -> Manifest:
    return _job(name, {"ownerReferences": OWNERS}, suspend=True)


def _pod(name: str) -> Manifest:
    """Return a pod with the label by which services select pods."""
    labels = {**LABELS, "allranks.dev/job-name": "flood", "allranks.dev/role": "worker"}
    labels |= {"allranks.dev/index": "0", "allranks.dev/attempt": "0"}
    spec = {"containers": [{"name": "trainer", "image": "example.org/x:1"}]}
    return _object("v1", "Pod", name, {"labels": labels}, spec=spec)


def _sweep(name: str, size: int = LARGEST_BYTES, **more: Any) -> Manifest:
    spec = {"parameters": {"lr": {"values": [1, 2]}}, "objective": {"metric": "loss", "goal": "Minimize"}, "trials": 2}
    inner = {**manifest()["spec"], "template": template(size)}
    return _object(API_VERSION, "TrainingSweep", name, {}, spec={**spec, **more, "template": {"spec": inner}})


def _largest_sweep(name: str) -> Manifest:
    return _sweep(name, sweep_validation.MAX_SPEC_BYTES - 2_000, suspend=True)


def event_of_job(name: str, job: Manifest = JOB) -> Manifest:
    """Return an Event about a job, whose UID it has: services read no other Events of a job."""
    about = {part: job["metadata"][part] for part in ("namespace", "name", "uid")}
    about |= {"apiVersion": API_VERSION, "kind": KIND}
    texts = {"reason": "Noise", "type": "Warning", "message": "x" * 1000}
    return _object("v1", "Event", name, {"annotations": ANNOTATIONS}, involvedObject=about, **texts)


def _pool(name: str) -> Manifest:
    return _object(API_VERSION, "TrainingPool", name, {"labels": LABELS}, spec={})


def _node(name: str) -> Manifest:
    return _object("v1", "Node", name, {"labels": LABELS})


def _namespace(name: str) -> Manifest:
    return _object("v1", "Namespace", name, {"labels": LABELS})


EVENTS = "Events of a job"
KINDS: dict[str, Callable[[str], Manifest]] = {
    "jobs with the largest template": _large_template,
    "jobs of another manager": _of_another_manager,
    "jobs with labels": _labels,
    "jobs with annotations": _annotations,
    "jobs with finalizers": _finalizers,
    "jobs with owners": _owners,
    "pods with labels": _pod,
    "sweeps with the largest template": _largest_sweep,
    "sweeps that are too large": _sweep,
    EVENTS: event_of_job,
    "pools with labels": _pool,
    "nodes with labels": _node,
    "namespaces with labels": _namespace,
}
CLUSTER_WIDE = frozenset({"TrainingPool", "Node", "Namespace"})


def size(example: Manifest) -> int:
    return len(json.dumps(example, separators=(",", ":")))
