"""How many GPUs a container requests, and the note for a pod that does not say it."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.status import Status
from allranks.authoring.checks.notes import notes_of
from allranks.core.facts import gpu_count
from allranks.core.facts.model import Platform
from allranks.core.objects import pods
from support.builders import job, table

# Sentence, resources, GPUs.
GPUS: list[tuple[str, Any, int]] = [
    ("without resources there are no GPUs", None, 0),
    ("limits count", {"limits": {"nvidia.com/gpu": 8}}, 8),
    ("a number in quotes counts", {"limits": {"nvidia.com/gpu": "8"}}, 8),
    ("requests alone count", {"requests": {"nvidia.com/gpu": 4}}, 4),
    ("limits and requests count once", {"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 2}}, 2),
    ("GPUs of other vendors count", {"limits": {"amd.com/gpu": 3}}, 3),
    ("GPUs of several vendors add up", {"limits": {"nvidia.com/gpu": 1, "amd.com/gpu": 2}}, 3),
    ("a quantity with a suffix counts", {"limits": {"nvidia.com/gpu": "2000m"}}, 2),
    ("an invalid amount counts as none", {"limits": {"nvidia.com/gpu": "many"}}, 0),
    ("memory and CPUs are not GPUs", {"limits": {"memory": "64Gi", "cpu": 8}}, 0),
    ("a MIG slice counts", {"limits": {"nvidia.com/mig-1g.10gb": 2}}, 2),
    (
        "MIG slices of several profiles add up",
        {"limits": {"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-3g.40gb": 1}},
        2,
    ),
    ("a MIG slice with media engines counts", {"limits": {"nvidia.com/mig-1g.10gb.me": 1}}, 1),
    ("a MIG compute slice counts", {"limits": {"nvidia.com/mig-1c.3g.20gb": 3}}, 3),
    ("a time-sliced GPU counts", {"limits": {"nvidia.com/gpu.shared": 2}}, 2),
    ("a time-sliced MIG slice counts", {"limits": {"nvidia.com/mig-1g.10gb.shared": 2}}, 2),
    ("a partition of an AMD GPU counts", {"limits": {"amd.com/cpx_nps4": 4}}, 4),
    ("Intel GPUs count", {"limits": {"gpu.intel.com/i915": 1, "gpu.intel.com/xe": 2}}, 3),
    ("Intel's monitoring resource is not a GPU", {"limits": {"gpu.intel.com/i915_monitoring": 1}}, 0),
    ("shares of an Intel GPU are not GPUs", {"limits": {"gpu.intel.com/i915": 1, "gpu.intel.com/millicores": 500}}, 1),
    ("Gaudi accelerators count", {"limits": {"habana.ai/gaudi": 8}}, 8),
    ("network devices are not GPUs", {"limits": {"rdma/hca": 8, "nvidia.com/gpu_nic": 1}}, 0),
    (
        "the extended resource of a DeviceClass of GPUs counts",
        {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 8}},
        8,
    ),
    ("that of another DeviceClass does not", {"limits": {"deviceclass.resource.kubernetes.io/nic.example.com": 8}}, 0),
    ("each claim counts as one", {"claims": [{"name": "a"}, {"name": "b"}]}, 2),
    (
        "each request of a claim counts as one",
        {"claims": [{"name": "a", "request": "x"}, {"name": "a", "request": "y"}]},
        2,
    ),
    (
        "a claim beside GPUs in the limits, such as the channel of a ComputeDomain, is no GPU",
        {"limits": {"nvidia.com/gpu": 4}, "claims": [{"name": "compute-domain-channel"}]},
        4,
    ),
    ("a claim beside another device counts", {"limits": {"rdma/hca": 1}, "claims": [{"name": "gpus"}]}, 1),
]


@table(*GPUS)
def test_gpus(case):
    resources, count = case
    assert gpu_count.gpus(resources) == count


def test_the_resource_of_the_pool_counts_too():
    resources = {"limits": {"example.com/accelerator": 2}}
    assert gpu_count.gpus(resources) == 0
    assert gpu_count.gpus(resources, "example.com/accelerator") == 2


def _requests(*requests: Any) -> dict[str, Any]:
    return {"devices": {"requests": list(requests)}}


def _device(driver: str = "gpu.nvidia.com", **more: Any) -> dict[str, Any]:
    return {"deviceClassName": driver, **more}


def _exactly(driver: str = "gpu.nvidia.com", **more: Any) -> dict[str, Any]:
    return {"name": "g", "exactly": _device(driver, **more)}


# Sentence, requests of a claim, GPUs.
CLAIMS: list[tuple[str, list[Any], int | None]] = [
    ("a request is one device", [_exactly()], 1),
    ("a request has a count", [_exactly(count=8)], 8),
    ("v1beta1 has no level `exactly`", [_device(count=4)], 4),
    ("MIG devices count", [_exactly("mig.nvidia.com", count=2)], 2),
    ("requests add up", [_exactly("gpu.amd.com"), _exactly("gpu.intel.com")], 2),
    ("network devices are not GPUs", [_exactly("rdma.example.com", count=4)], 0),
    ("monitoring takes no GPU", [_exactly(adminAccess=True)], 0),
    ("all devices are an unknown number", [_exactly(allocationMode="All")], None),
    ("alternatives of the same count are that count", [{"firstAvailable": [_device(), _device("mig.nvidia.com")]}], 1),
    (
        "alternatives of different counts are an unknown number",
        [{"firstAvailable": [_device(), _device("mig.nvidia.com", count=2)]}],
        None,
    ),
    ("a claim without requests has no GPU", [], 0),
]


@table(*CLAIMS)
def test_gpus_of_a_claim(case):
    requests, count = case
    assert gpu_count.of_claim(_requests(*requests)) == count


def test_a_request_of_a_claim_has_the_GPUs_of_that_request():
    spec = _requests(_exactly(count=2), {"name": "other", "exactly": _device(count=3)})
    assert (gpu_count.of_claim(spec), gpu_count.of_claim(spec, "other")) == (5, 3)


def claiming(**fields: Any) -> Any:
    trainer = {"name": "trainer", "resources": {"claims": [{"name": "gpus"}]}}
    pod = {"containers": [trainer], "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}]}
    return job(roles={"worker": 1}, template={"spec": pod}, **fields)


EIGHT = {"eight": _requests(_exactly(count=8))}
ONE = {"eight": _requests(_exactly())}


def test_a_claim_is_one_process_and_tolerates_the_taint_of_GPU_nodes():
    pod = pods.objects(claiming(), Status(), Platform(helper_image="helper")).pods[0]
    env = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
    assert env["NPROC_PER_NODE"] == "1"
    assert "nvidia.com/gpu" in [toleration.get("key") for toleration in pod["spec"]["tolerations"]]


@pytest.mark.parametrize(
    ("fields", "templates", "severity", "text"),
    [
        ({}, {}, "note", "Auto counts the entry of resources.claims as one GPU, because a pod does not say"),
        ({}, EIGHT, "warning", "the claims of a worker have 8 GPUs, Auto starts 1, one for each entry"),
        ({}, ONE, None, ""),
        ({"pytorch": {"processesPerNode": 8}}, EIGHT, None, ""),
    ],
    ids=["unknown template", "eight GPUs", "one GPU", "a number of processes"],
)
def test_a_note_says_where_claims_do_not_determine_the_processes(fields, templates, severity, text):
    found = notes_of(claiming(**fields), templates)
    assert [(note.path, note.severity) for note in found] == (
        [("spec.pytorch.processesPerNode", severity)] if severity else []
    )
    assert not severity or text in found[0].message


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ({}, ""),
        (
            {"eight": _requests({"name": "channel", "exactly": _device("compute-domain-default-channel.nvidia.com")})},
            "",
        ),
        (
            EIGHT,
            "the claims of a worker have 8 GPUs, which Auto does not count beside those in its limits: set it to 12",
        ),
    ],
    ids=["unknown template", "channel of a ComputeDomain", "eight GPUs"],
)
def test_a_claim_beside_GPUs_in_the_limits_is_noted_only_if_it_has_GPUs(template, text):
    found = notes_of(claiming(resources={"limits": {"nvidia.com/gpu": 4}}), template)
    assert [note.message for note in found] == ([text] if text else [])
