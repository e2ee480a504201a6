"""Images that the platform team allows: every field that names one, and every image of the finished pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from allranks.api.status import Status
from allranks.core.facts import limits
from allranks.core.facts.data_store import DataStore
from allranks.core.facts.policy import Policy
from allranks.core.objects import pods
from allranks.core.transfers import manifests
from support.builders import CLUSTER, NOW, job
from support.helm import ROOT

STORE = DataStore("data", "platform/data", 1 << 30)
PLATFORM = replace(CLUSTER, policy=Policy(image_prefixes=("me/",)), data=STORE)
EVIL = "evil.example/x:1"
NAMES_OF_IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "image": ("spec.roles.worker.image", {"image": EVIL}),
    "roles.*.image": ("spec.roles.worker.image", {"roles": {"worker": {"replicas": 1, "image": EVIL}}}),
    "code.image": ("spec.code.image", {"code": {"path": "/code", "image": EVIL}}),
    "inputs[].from": (
        "spec.inputs[0].from",
        {"inputs": [{"name": "data", "from": f"image://{EVIL}", "path": "/data"}]},
    ),
    "checkpoint.volume": (
        "spec.checkpoint.volume.image.reference",
        {"checkpoint": {"volume": {"image": {"reference": EVIL}}}},
    ),
    "template": (
        "spec.template.spec.volumes[data].image.reference",
        {"template": {"spec": {"volumes": [{"name": "data", "image": {"reference": EVIL}}]}}},
    ),
    "roles.*.template": (
        "spec.roles.worker.template.spec.initContainers[first].image",
        {
            "roles": {
                "worker": {
                    "replicas": 1,
                    "template": {"spec": {"initContainers": [{"name": "first", "image": EVIL}]}},
                }
            }
        },
    ),
}
"""Field of the CRD that names an image -> (its path, a job with one)."""
OF_ALL_IMAGES = {
    "env[].valueFrom",
    "roles.*.env[].valueFrom",
    "checkpoint.volume.hostPath",
    "command",
    "roles.*.command",
    "code",
    "code.subPath",
    "inputs[].mode",
    "mpi.implementation",
    "podSecurity",
    "preflight.gpu",
    "preflight.network",
    "startupDeadlineSeconds",
}
"""Other fields whose description has the word, or that have no schema."""


def fields_about_images(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the fields that might name an image: by their name or description, or because they have no schema."""
    about = f"{path.rpartition('.')[2]} {schema.get('description', '')}".lower()
    if "image" in about or schema.get("x-kubernetes-preserve-unknown-fields"):
        yield path
    for name, below in schema.get("properties", {}).items():
        yield from fields_about_images(below, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from fields_about_images(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from fields_about_images(schema["additionalProperties"], f"{path}.*")


def test_the_policy_looks_at_every_field_of_the_crd_that_names_an_image():
    crd = yaml.safe_load((ROOT / "crds" / "distributedtrainings.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(fields_about_images(schema)) == {*NAMES_OF_IMAGES, *OF_ALL_IMAGES}, "say which fields name an image"


@pytest.mark.parametrize("field", NAMES_OF_IMAGES)
def test_an_image_from_elsewhere_is_refused_with_the_path_of_its_field(field: str):
    expected, fields = NAMES_OF_IMAGES[field]
    [(path, text)] = limits.violations(job(**{"image": "me/x", **fields}), PLATFORM)
    assert path == expected
    assert f"image {EVIL} is not allowed here" in text


def images_in(part: Any) -> Iterator[str]:
    """Every image of a manifest."""
    if isinstance(part, dict):
        yield from (part[key] for key in ("image", "reference") if isinstance(part.get(key), str))
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from images_in(item)


@pytest.mark.parametrize("framework", ["pytorch", "ray", "horovod", "mpi", "jax"])
def test_every_image_of_the_finished_pods_is_the_platforms_or_is_refused(framework: str):
    roles = {"pytorch": {"worker": 2}, "ray": {"head": 1, "worker": 2}, "mpi": {"launcher": 1, "worker": 2}}
    template = {
        "initContainers": [
            {"name": "first", "image": "evil/1"},
            {"name": "side", "image": "evil/2", "restartPolicy": "Always"},
        ],
        "containers": [{"name": "trainer"}, {"name": "logs", "image": "evil/3"}],
        "volumes": [{"name": "more", "image": {"reference": "evil/4"}}],
    }
    wild = job(
        framework,
        roles.get(framework, {"worker": 2}),
        image="evil/5",
        template={"spec": template},
        code={"path": "/code", "image": "evil/6"},
        packages=["einops"],
        hang={"timeoutSeconds": 600},
        checkpoint={"path": "/checkpoints", "volume": {"image": {"reference": "evil/7"}}},
        inputs=[
            {"name": "volume", "from": "image://evil/8", "path": "/data"},
            {"name": "copy", "from": "s3://team/data", "path": "/copy"},
        ],
        outputs=[{"name": "model", "path": "/model", "to": "s3://team/model"}],
    )
    ranks = pods.objects(wild, Status(), PLATFORM).pods
    [output] = wild.spec.outputs or ()
    [_, copy] = wild.spec.inputs or ()
    transfers = [
        manifests.upload_pod(wild, output, Status(), PLATFORM, STORE),
        manifests.check_pod(wild, output, PLATFORM, STORE),
        manifests.fetch_pod(wild, copy, PLATFORM, STORE, None, NOW),
    ]
    present = set(images_in([*ranks, *transfers])) - {PLATFORM.helper_image, STORE.image}
    assert present == {f"evil/{number}" for number in range(1, 9)}
    text = " ".join(text for _, text in limits.violations(wild, PLATFORM))
    assert all(f"image {image} is not" in text for image in present)
