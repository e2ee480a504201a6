"""Valid and invalid TrainingPools. Messages are those of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.api.pool import Gpu, Pool, PoolSpec, Toleration
from allranks.api.validation import parse_pool
from allranks.errors import InvalidManifest
from support.builders import table

FULL = {
    "namespaceSelector": {
        "matchLabels": {"team": "vision"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}],
    },
    "nodeSelector": {"gpu": "h200"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "gpu": {"count": 8},
    "sharedMemory": "64Gi",
    "inputCache": {"hostPath": "/mnt/nvme/allranks", "sizeLimit": "1Ti"},
    "data": {
        "resources": {"limits": {"cpu": 8, "memory": "8Gi"}},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "data", "operator": "Exists"}],
    },
    "preflight": {"gpu": True, "network": True, "disk": True, "timeoutSeconds": 60},
    "rdma": {"rdma/hca": 1},
    "network": {
        "attachments": ["infra/rdma-net@net1", "other"],
        "interface": "net1",
        "cards": "mlx5",
        "gidIndex": 3,
        "lockMemory": True,
        "hostNetwork": False,
    },
    "env": [{"name": "NCCL_SOCKET_IFNAME", "value": "eth0"}],
    "priorityClassName": "training",
    "schedulerName": "default-scheduler",
    "price": {"gpuHour": "2.40", "currency": "EUR"},
    "utilization": {"minProductivePercent": 50, "windowSeconds": 600, "action": "Suspend"},
    "notify": [{"receiver": "oncall", "occasions": ["Failed"]}],
    "template": {"spec": {"volumes": [{"name": "scratch", "hostPath": {"path": "/mnt/nvme"}}]}},
}


def document(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "gpu", "uid": "1", "resourceVersion": "7", "managedFields": []}
    return {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingPool", "metadata": metadata, "spec": spec}


def problems(value: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidManifest) as raised:
        parse_pool(value)
    return raised.value.problems


def test_every_field_of_a_pool_is_parsed_and_has_a_case_here():
    assert set(FULL) == {field.alias for field in PoolSpec.model_fields.values()}
    pool = parse_pool(document(**FULL))
    assert (pool.name, pool.spec.gpu) == ("gpu", Gpu(resource="nvidia.com/gpu", count=8))
    assert pool.spec.tolerations == [Toleration(key="gpu", operator="Exists", effect="NoSchedule")]
    assert pool.spec.model_dump(by_alias=True, exclude_none=True) == FULL | {
        "gpu": {"resource": "nvidia.com/gpu", "count": 8}
    }


def test_every_field_of_a_pool_is_optional():
    assert parse_pool(document()) == Pool("gpu", PoolSpec())


RESERVED_PREFIX = "variables that begin with ALLRANKS_ are set by allranks: choose another name"

INVALID = [
    (
        "a variable that begins with ALLRANKS_",
        {"env": [{"name": "ALLRANKS_JOB", "value": "x"}]},
        ("spec.env", RESERVED_PREFIX),
    ),
    (
        "a variable with two values",
        {"env": [{"name": "X", "value": "x", "valueFrom": {}}]},
        ("spec.env", "a variable has either value or valueFrom, not both"),
    ),
    (
        "a variable by which TensorFlow's tasks find one another",
        {"env": [{"name": "TF_CONFIG", "value": "{}"}]},
        (
            "spec.env",
            "variables by which the ranks of tensorflow find one another are set by allranks: remove TF_CONFIG",
        ),
    ),
    ("no GPU at all", {"gpu": {"count": 0}}, ("spec.gpu.count", "should be greater than or equal to 1")),
    (
        "a network with spaces",
        {"network": {"attachments": ["a, b"]}},
        (
            "spec.network.attachments[0]",
            "must be a NetworkAttachmentDefinition: NAMESPACE/NAME or NAMESPACE/NAME@INTERFACE",
        ),
    ),
    ("GPUs without a number", {"gpu": {}}, ("spec.gpu.count", "is required")),
    ("an unknown field", {"nodeselector": {}}, ("spec.nodeselector", "unknown field, did you mean nodeSelector?")),
    (
        "a selector that looks for a label in no values",
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In"}]}},
        (
            "spec.namespaceSelector.matchExpressions[0].values",
            "In and NotIn need values, Exists and DoesNotExist have none",
        ),
    ),
    (
        "a selector with values for a label that only must exist",
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists", "values": ["a"]}]}},
        (
            "spec.namespaceSelector.matchExpressions[0].values",
            "In and NotIn need values, Exists and DoesNotExist have none",
        ),
    ),
    (
        "a cache of inputs outside of its directory",
        {"inputCache": {"hostPath": "/mnt/../etc"}},
        ("spec.inputCache.hostPath", "must be a directory below /, without ':' and without . or .. as a part"),
    ),
    (
        "a cache of inputs in the root directory",
        {"inputCache": {"hostPath": "/"}},
        ("spec.inputCache.hostPath", "must be a directory below /, without ':' and without . or .. as a part"),
    ),
    (
        "a cache of inputs without an absolute path",
        {"inputCache": {"hostPath": "cache"}},
        ("spec.inputCache.hostPath", "must be an absolute path, which begins with /"),
    ),
    (
        "a template with a wrong type",
        {"template": {"spec": {"containers": {}}}},
        ("spec.template.spec.containers", "must be a list, not a mapping"),
    ),
]


@table(*INVALID)
def test_invalid_pool(case):
    spec, expected = case
    assert problems(document(**spec)) == [expected]


@pytest.mark.parametrize("name", ["MASTER_ADDR", "PET_RDZV_ENDPOINT", "TF_CONFIG", "HOROVOD_RANK"])
def test_variables_by_which_ranks_of_any_framework_find_one_another_are_rejected(name):
    ((path, message),) = problems(document(env=[{"name": name, "value": "x"}]))
    assert path == "spec.env"
    assert name in message
    assert "find one another" in message


@pytest.mark.parametrize("name", ["GPU", "-gpu", "gpu.", "a b", "gpu_1"])
def test_a_pool_has_a_valid_Kubernetes_name(name):
    assert problems({**document(), "metadata": {"name": name}}) == [
        ("metadata.name", "must be lower-case letters, digits, '-' and '.', begin and end with a letter or digit")
    ]
    assert parse_pool({**document(), "metadata": {"name": "h200.eu-1"}}).name == "h200.eu-1"


def test_for_another_kind_only_the_kind_is_reported():
    assert problems({**document(), "kind": "DistributedTraining"}) == [
        ("kind", "must be TrainingPool, not 'DistributedTraining'")
    ]
