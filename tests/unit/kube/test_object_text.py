"""Jobs and sweeps as the archiver and the web UI keep them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allranks.kube.object_text import LEFT_OUT, object_text

SPEC = {"framework": "pytorch", "image": "x", "command": ["a"], "roles": {"worker": {"replicas": 2}}}


def manifest(spec: Any = None, **metadata: Any) -> dict[str, Any]:
    meta = {"name": "job", "namespace": "team", "uid": "u", "resourceVersion": "7", **metadata}
    return {"metadata": meta, "spec": spec or SPEC, "status": {"phase": "Pending"}}


def kept(document: dict[str, Any], kind: str = "DistributedTraining") -> dict[str, Any]:
    text = object_text(json.dumps(document).encode(), kind)
    decoded = text.manifest()
    assert text.metadata == decoded["metadata"]
    assert text.status == decoded["status"]
    return decoded


def test_an_ordinary_object_is_kept_as_it_is_but_for_managed_fields():
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "o"}
    meta = {"labels": {"team": "nlp"}, "annotations": {"a": "b"}, "ownerReferences": [owner], "finalizers": ["f"]}
    document = manifest(**meta)
    whole = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", **document}
    assert kept(manifest(**meta, managedFields=[{"manager": "kubectl"}])) == whole


@pytest.mark.parametrize(
    ("document", "part"),
    [
        (manifest({**SPEC, "template": {"spec": {"x": "y" * 300_000}}}), "spec (its templates: more than 256 KiB)"),
        (manifest({**SPEC, "managedBy": "x.io/y", "env": ["x" * 600_000]}), "spec (more than 512 KiB)"),
        (manifest(labels={f"label-{n}": "" for n in range(129)}), "metadata.labels (more than 128)"),
        (manifest(annotations={"a": "x" * 70_000}), "metadata.annotations (more than 64 KiB)"),
        (manifest(annotations={f"a{n}": "" for n in range(300)}), "metadata.annotations (more than 256)"),
        (manifest(ownerReferences=[{"uid": str(n)} for n in range(17)]), "metadata.ownerReferences (more than 16)"),
        (manifest(finalizers=["x/y"] * 17), "metadata.finalizers (more than 16)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_that_is_too_large_is_left_out_and_the_object_says_so(document: dict[str, Any], part: str):
    decoded = kept(document)
    assert len(json.dumps(decoded)) < 1_000
    assert decoded["metadata"]["annotations"][LEFT_OUT] == f"too large to keep: {part}"
    assert (decoded["metadata"]["uid"], decoded["status"]) == ("u", {"phase": "Pending"})


def test_the_spec_of_a_sweep_has_the_limit_of_sweeps():
    decoded = kept(manifest({"template": "x" * 300_000}), "TrainingSweep")
    assert decoded["kind"] == "TrainingSweep"
    assert decoded["spec"] is None
    assert decoded["metadata"]["annotations"][LEFT_OUT] == "too large to keep: spec (more than 256 KiB)"
