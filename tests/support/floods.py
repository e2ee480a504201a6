"""The largest objects that the API server accepts, of each kind that a service of allranks lists or watches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from allranks.api import validation
from allranks.api.job import API_VERSION, KIND
from support.builders import manifest

Manifest = dict[str, Any]
NAMESPACE = "flood"
LARGEST_BYTES = 1_000_000
"""Of an object in etcd, whose limit is 1.5 MiB."""
LABELS = {f"k{number:04}-{'x' * 54}": "x" * 60 for number in range(1_500)}
"""Kubernetes bounds annotations, and not labels. With more entries, a busy API server does not answer in time."""
ANNOTATIONS = {f"k{number:04}-{'x' * 54}": "x" * 110 for number in range(1_500)}


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


def _pod(name: str) -> Manifest:
    """Return a pod with the label by which services select pods."""
    labels = {**LABELS, "allranks.dev/job-name": "flood", "allranks.dev/role": "worker"}
    labels |= {"allranks.dev/index": "0", "allranks.dev/attempt": "0"}
    spec = {"containers": [{"name": "trainer", "image": "example.org/x:1"}]}
    return _object("v1", "Pod", name, {"labels": labels}, spec=spec)


def _sweep(name: str) -> Manifest:
    spec = {"parameters": {"lr": {"values": [1, 2]}}, "objective": {"metric": "loss", "goal": "Minimize"}, "trials": 2}
    inner = {**manifest()["spec"], "template": template(LARGEST_BYTES)}
    return _object(API_VERSION, "TrainingSweep", name, {}, spec={**spec, "template": {"spec": inner}})


def _event(name: str) -> Manifest:
    about = {"apiVersion": API_VERSION, "kind": KIND, "namespace": NAMESPACE, "name": "noisy"}
    texts = {"reason": "Noise", "type": "Warning", "message": "x" * 1000}
    return _object("v1", "Event", name, {"annotations": ANNOTATIONS}, involvedObject=about, **texts)


def _pool(name: str) -> Manifest:
    return _object(API_VERSION, "TrainingPool", name, {"labels": LABELS}, spec={})


def _node(name: str) -> Manifest:
    return _object("v1", "Node", name, {"labels": LABELS})


def _namespace(name: str) -> Manifest:
    return _object("v1", "Namespace", name, {"labels": LABELS})


KINDS: dict[str, Callable[[str], Manifest]] = {
    "jobs with the largest template": _large_template,
    "jobs of another manager": _of_another_manager,
    "jobs with labels": _labels,
    "jobs with annotations": _annotations,
    "pods with labels": _pod,
    "sweeps that are too large": _sweep,
    "Events of a job": _event,
    "pools with labels": _pool,
    "nodes with labels": _node,
    "namespaces with labels": _namespace,
}
CLUSTER_WIDE = frozenset({"TrainingPool", "Node", "Namespace"})


def size(example: Manifest) -> int:
    return len(json.dumps(example, separators=(",", ":")))
