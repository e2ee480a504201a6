"""Builders of jobs of other operators, and their results."""

from __future__ import annotations

from typing import Any

import yaml

from allranks.authoring.convert.documents import Converted, convert
from allranks.authoring.convert.draft import Draft

from .rendered import Rendered


def pods(container: str = "pytorch", replicas: int = 2, policy: str = "", **fields: Any) -> dict[str, Any]:
    """A role of Kubeflow v1. `pod`: further fields of the pod's spec."""
    pod = fields.pop("pod", {})
    own = {"name": container, "image": "me/train:1", "command": ["python3", "train.py"], **fields}
    own = {key: value for key, value in own.items() if value is not None}
    role = {"replicas": replicas, "template": {"spec": {"containers": [own], **pod}}}
    return role | ({"restartPolicy": policy} if policy else {})


def manifest(kind: str, api: str = "kubeflow.org/v1", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "mnist", "namespace": "team"}, "spec": spec}


def pytorch(worker: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return manifest("PyTorchJob", **{"pytorchReplicaSpecs": {"Worker": worker or pods()}, **spec})


def result(*documents: dict[str, Any]) -> Converted:
    [found] = [one for one in convert([("file", document) for document in documents]) if one.name]
    return found


def draft(*documents: dict[str, Any]) -> Draft:
    """Raises AssertionError for a result that `allranks validate` refuses."""
    found = result(*documents)
    assert found.problems == ()
    assert found.draft
    Rendered(yaml.safe_dump(found.draft.document))
    return found.draft


def comments(made: Draft) -> str:
    return "\n".join(f"{'.'.join(path)}: {text}" for path, text in made.comments)
