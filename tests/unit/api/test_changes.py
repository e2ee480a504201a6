"""Fields of an existing job that can be changed: the CRD's transition rules, evaluated as the API server does."""

from __future__ import annotations

from typing import Any

from allranks.api.crd import root_schema
from allranks.api.validation import parse, with_defaults
from support.builders import manifest, table
from support.simulator.admission import broken_transitions

NEW_JOB = "cannot be changed in an existing job: create a new job"
NEW_ROLES = "the roles of an existing job cannot be changed: create a new job"
SPEC = root_schema()["properties"]["spec"]


def stored(fields: dict[str, Any]) -> dict[str, Any]:
    document = manifest(**fields)
    spec: dict[str, Any] = with_defaults(document, parse(document))["spec"]
    return spec


def refusals(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
    found = broken_transitions(SPEC, stored(after), stored(before), "")
    return [(path.removeprefix("."), message) for path, message in found]


RULE = {"exitCodes": [1], "action": "Fail"}

# Field, job before, job after.
CHANGEABLE = [
    ("no field", {}, {}),
    ("suspend", {"suspend": False}, {"suspend": True}),
    ("resume", {"suspend": True}, {}),
    ("replicas", {"roles": {"worker": 2}}, {"roles": {"worker": 3}}),
    ("replicas of every role", {"roles": {"master": 1, "worker": 2}}, {"roles": {"master": 0, "worker": 3}}),
    ("ttlSecondsAfterFinished", {}, {"ttlSecondsAfterFinished": 60}),
    ("removal of ttlSecondsAfterFinished", {"ttlSecondsAfterFinished": 60}, {}),
    ("activeDeadlineSeconds", {"activeDeadlineSeconds": 60}, {"activeDeadlineSeconds": 90}),
    ("restart.maxRestarts", {}, {"restart": {"maxRestarts": 9}}),
    ("restart.inPlace", {}, {"restart": {"inPlace": "Never"}}),
    (
        "the archive with the code",
        {"code": {"configMap": "a", "sha256": "0" * 64, "commit": "abcdef0", "dirty": True}},
        {"code": {"configMap": "b", "sha256": "1" * 64}},
    ),
    ("restart.warmStart", {}, {"restart": {"warmStart": "Never"}}),
    ("utilization", {}, {"utilization": {"minProductivePercent": 50}}),
    ("notify", {}, {"notify": [{"receiver": "oncall"}]}),
]


@table(*CHANGEABLE)
def test_can_be_changed(case):
    before, after = case
    assert refusals(before, after) == []


# Field, job before, job after, field in the message.
DATA = {"name": "data", "from": "s3://b/p", "path": "/data"}
FIXED = [
    (
        "the framework",
        {"framework": "pytorch", "roles": {"worker": 1}},
        {"framework": "horovod", "roles": {"worker": 1}},
        "framework",
    ),
    ("the framework's options", {}, {"pytorch": {"backend": "Gloo"}}, "pytorch"),
    ("removal of the framework's options", {"pytorch": {"backend": "Gloo"}}, {}, "pytorch"),
    ("one option", {"pytorch": {"port": 1}}, {"pytorch": {"port": 2}}, "pytorch"),
    ("the image", {"image": "a"}, {"image": "b"}, "image"),
    ("the command", {"command": ["a"]}, {"command": ["a", "b"]}, "command"),
    ("arguments", {}, {"args": ["a"]}, "args"),
    ("variables", {"env": [{"name": "X", "value": "1"}]}, {"env": [{"name": "X", "value": "2"}]}, "env"),
    ("resources", {}, {"resources": {"limits": {"cpu": 1}}}, "resources"),
    ("the working directory", {}, {"workingDir": "/x"}, "workingDir"),
    ("the pool", {"pool": "a"}, {"pool": "b"}, "pool"),
    ("the template", {"template": {"spec": {"a": 1}}}, {"template": {"spec": {"a": 2}}}, "template"),
    (
        "a role's image",
        {"roles": {"worker": {"image": "a"}}},
        {"roles": {"worker": {"image": "b"}}},
        "roles.worker.image",
    ),
    ("a role's command", {}, {"roles": {"worker": {"replicas": 2, "command": ["x"]}}}, "roles.worker.command"),
    ("a role's template", {}, {"roles": {"worker": {"replicas": 2, "template": {}}}}, "roles.worker.template"),
    ("backoffSeconds", {}, {"restart": {"backoffSeconds": 1}}, "restart.backoffSeconds"),
    ("restart.scope", {}, {"restart": {"scope": "Pod"}}, "restart.scope"),
    ("restart.rules", {"restart": {"rules": [RULE]}}, {"restart": {"rules": [RULE, RULE]}}, "restart.rules"),
    ("success", {}, {"success": "All"}, "success"),
    ("managedBy", {}, {"managedBy": "kueue.x-k8s.io/multikueue"}, "managedBy"),
    ("cleanPodPolicy", {}, {"cleanPodPolicy": "All"}, "cleanPodPolicy"),
    ("startupDeadlineSeconds", {}, {"startupDeadlineSeconds": 1}, "startupDeadlineSeconds"),
    ("startTogether", {"startTogether": "Always"}, {"startTogether": "Never"}, "startTogether"),
    ("podSecurity", {}, {"podSecurity": "Image"}, "podSecurity"),
    ("scheduling", {}, {"scheduling": {"priorityClassName": "a"}}, "scheduling"),
    (
        "the bounds of an elastic job",
        {"elastic": {"minReplicas": 1, "maxReplicas": 2}},
        {"elastic": {"minReplicas": 1, "maxReplicas": 3}},
        "elastic",
    ),
    ("hang", {}, {"hang": {"timeoutSeconds": 60}}, "hang"),
    ("preflight", {}, {"preflight": {"gpu": True}}, "preflight"),
    ("progress", {"progress": {}}, {}, "progress"),
    ("compatibility", {}, {"compatibility": ["Slurm"]}, "compatibility"),
    (
        "the options of TensorFlow",
        {"framework": "tensorflow", "roles": {"worker": 1}, "tensorflow": {"port": 1}},
        {"framework": "tensorflow", "roles": {"worker": 1}, "tensorflow": {"port": 2}},
        "tensorflow",
    ),
    (
        "the options of JAX",
        {"framework": "jax", "jax": {"port": 1}},
        {"framework": "jax", "jax": {"port": 2}},
        "jax",
    ),
    (
        "the options of Ray",
        {"framework": "ray", "roles": {"head": 1}, "ray": {"port": 1}},
        {"framework": "ray", "roles": {"head": 1}, "ray": {"port": 2}},
        "ray",
    ),
    (
        "the options of MPI",
        {"framework": "mpi", "roles": {"worker": 1, "launcher": 1}},
        {"framework": "mpi", "roles": {"worker": 1, "launcher": 1}, "mpi": {"slotsPerWorker": 2}},
        "mpi",
    ),
    (
        "the options of SPMD programs",
        {"framework": "spmd"},
        {"framework": "spmd", "spmd": {"port": 2}},
        "spmd",
    ),
    (
        "the options of Horovod",
        {"framework": "horovod", "roles": {"worker": 1}},
        {"framework": "horovod", "roles": {"worker": 1}, "horovod": {"port": 2}},
        "horovod",
    ),
    ("the code", {"code": {"claim": "a"}}, {"code": {"claim": "a", "subPath": "b"}}, "code.subPath"),
    ("code instead of the image's", {}, {"code": {"configMap": "a", "sha256": "0" * 64}}, "code"),
    (
        "the directory of the code",
        {"code": {"configMap": "a", "sha256": "0" * 64, "path": "/a"}},
        {"code": {"configMap": "a", "sha256": "0" * 64, "path": "/b"}},
        "code.path",
    ),
    (
        "code of a claim instead of an archive",
        {"code": {"configMap": "a", "sha256": "0" * 64}},
        {"code": {"claim": "b"}},
        "code.claim",
    ),
    ("removal of the code", {"code": {"claim": "a"}}, {}, "code"),
    ("packages", {"packages": ["a"]}, {"packages": ["a==1"]}, "packages"),
    ("inputs", {"inputs": [DATA]}, {"inputs": [DATA | {"path": "/x"}]}, "inputs"),
    (
        "the mode of an input",
        {"inputs": [{"name": "d", "from": "s3://b/p", "mode": "Stream"}]},
        {"inputs": [{"name": "d", "from": "s3://b/p", "path": "/d"}]},
        "inputs",
    ),
    ("outputs", {}, {"outputs": [{"name": "m", "path": "/m", "to": "claim://m"}]}, "outputs"),
    ("the checkpoint", {"checkpoint": {"claim": "a"}}, {"checkpoint": {"claim": "b"}}, "checkpoint"),
    (
        "what it starts from",
        {"checkpoint": {"claim": "a"}, "resumeFrom": "b"},
        {"checkpoint": {"claim": "a"}, "resumeFrom": "c/5"},
        "resumeFrom",
    ),
]


@table(*FIXED)
def test_cannot_be_changed(case):
    before, after, field = case
    assert refusals(before, after) == [(field, NEW_JOB)]


@table(
    ("a role cannot be added", {"roles": {"worker": 1}}, {"roles": {"master": 1, "worker": 1}}),
    ("a role cannot be removed", {"roles": {"master": 1, "worker": 1}}, {"roles": {"worker": 1}}),
)
def test_roles(case):
    before, after = case
    assert refusals(before, after) == [("roles", NEW_ROLES)]


def test_every_field_of_spec_has_a_case_here():
    """A new field needs a decision whether it can be changed in an existing job."""
    tried = {name for _, before, after, *_ in (*CHANGEABLE, *FIXED) for name in (before | after)}
    assert set(SPEC["properties"]) == tried
