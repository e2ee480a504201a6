"""Problems of a manifest, reported as by the API server: all at once, each with its field path."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from allranks.api import job, pool, sweep, validation
from allranks.api.crd import root_schema
from allranks.api.validation import parse
from allranks.api.validation_messages import PATTERNS, WORDS_OF_OTHER_SYSTEMS, similar
from allranks.errors import InvalidManifest
from support.builders import manifest, table


def problems(document: Any) -> list[tuple[str, str]]:
    try:
        parse(document)
    except InvalidManifest as error:
        return error.problems
    return []


NAME_CHARACTERS = (
    "must be lower-case letters, digits and '-', begin with a letter and end with a letter or digit: it becomes a DNS "
    "name"
)
NAME_LENGTH = (
    "at most 42 characters: pods are named {name}-{role}-{index}-{attempt}-{restart}, and a host name has at most 63"
)
ROLE_NAMES = (
    "names of roles must be lower-case letters and digits and begin with a letter; all and placeholder are reserved"
)
ROLE_LENGTH = (
    "the names of the job and of a role have at most 52 characters together: pods are named "
    "{name}-{role}-{index}-{attempt}, and a host name has at most 63"
)
BLOCK = "does not match framework: remove it or change framework"
LAUNCHER = "controller MPI needs a launcher, and controller Gloo must not have one: add launcher: {} or remove it"
NO_PODS = "the job has no pods: set the replicas of at least one role"
NO_SUCH_ROLE = "names a role that this job does not have"
NOT_SUCCESS = f"{NO_SUCH_ROLE}: use one of its roles, or All"
OUR_PREFIX = "variables that begin with ALLRANKS_ are set by allranks: choose another name"
BOTH = "a variable has either value or valueFrom, not both"
NOT_ELASTIC = "is supported by pytorch, horovod and ray only: remove it. A change of replicas then restarts all ranks"
WITHIN = "must be between elastic.minReplicas and elastic.maxReplicas"
ONE_OF = "set exactly one of exitCodes, signals and reasons"
ONE_VOLUME = "set either claim or volume, not both"
ONE_SOURCE = "set exactly one of configMap, claim and image"
INPUT = "spec.inputs[0]"
UNPACK = "archives are unpacked when they are fetched, with mode: Copy only: remove it"
FROM = (
    "must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, https://HOST/FILE, "
    "hf://datasets/OWNER/NAME, hf://models/OWNER/NAME, git+https://HOST/REPOSITORY, claim://CLAIM/DIRECTORY or "
    "image://REFERENCE"
)
TO = "must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or claim://CLAIM/DIRECTORY"
SECRET = (
    "must not contain credentials, which everybody who can read the job could use: name a Secret with them in secret"
)
DOTS = "must not have . or .. as a part"
MODE = "must be Mount for claim:// and image://, which are volumes, and Copy or Stream for all others"
NO_PATH = "must be set: the directory in which the pods find the data"
STREAM_PATH = "mode: Stream has no directory: remove path. The program reads the address from ALLRANKS_INPUT_NAME"
STREAM_GIT = "must be Copy for git+https://, whose files cannot be read one by one"
STREAM_SUM = "cannot be checked with mode: Stream, because the program reads the data itself: set revision instead"
DIRECTORY = "must be a directory below /, without ':' and without . or .. as a part"


def data(source="s3://b/p", **fields):
    return {"inputs": [{"name": "data", "from": source, "path": "/data", **fields}]}


def stream(source="s3://b/p", **fields):
    return {"inputs": [{"name": "data", "from": source, "mode": "Stream", **fields}]}


def out(to):
    return {"outputs": [{"name": "model", "path": "/out", "to": to}]}


def saved(path="/checkpoints"):
    output = {"name": "saved", "path": path, "to": "s3://b/p", "when": "Checkpoint"}
    return {"outputs": [output], "checkpoint": {"claim": "a"}, "progress": {}}


SAVED = (
    "when: Checkpoint uploads the checkpoints that the program reports: set checkpoint, and progress or hang, and "
    "choose the path of checkpoint"
)


PACKAGES = (
    "must be requirements such as timm==1.0, without options of pip: set those by variables such as PIP_INDEX_URL"
)
HOST_PATH = "hostPath is refused: the next attempt may run on another node; use a claim or a CSI volume"
MPI = {"framework": "horovod", "roles": {"worker": 1, "launcher": 1}, "horovod": {"controller": "MPI"}}
X = {"name": "X", "value": "1"}


def of(**worker: Any) -> dict[str, Any]:
    return {"roles": {"worker": {"replicas": 1, **worker}}}


def spmd(roles: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"framework": "spmd", "roles": roles, **({"spmd": options} if options else {})}


# The rule, a job that violates it, (path, message), a job that complies with it.
RULES = [
    (
        "MPI needs a launcher",
        {"framework": "mpi", "roles": {"worker": 2}},
        ("spec.roles.launcher", "mpi needs a launcher, whose pod runs mpirun: add launcher: {replicas: 1}"),
        {"framework": "mpi", "roles": {"worker": 2, "launcher": 1}},
    ),
    (
        "MPI needs a worker",
        {"framework": "mpi", "roles": {"launcher": 1}},
        ("spec.roles.worker", "mpi needs at least one worker"),
        {"framework": "mpi", "roles": {"worker": 2, "launcher": 1}, "mpi": {"implementation": "MPICH"}},
    ),
    (
        "a notification has one receiver",
        {"notify": [{"receiver": "oncall", "webhook": {"url": "https://example.org/x"}}]},
        ("spec.notify[0]", "set either receiver or webhook"),
        {"notify": [{"receiver": "oncall"}, {"webhook": {"url": "https://example.org/x"}}]},
    ),
    (
        "MPI has at most one launcher",
        {"framework": "mpi", "roles": {"worker": 1, "launcher": 2}},
        ("spec.roles.launcher.replicas", "mpi has at most 1 launcher"),
        {"framework": "mpi", "roles": {"worker": 1, "launcher": 1}},
    ),
    (
        "the name of a role has no hyphen, because pods of role ps-1 would be named like those of ps",
        spmd({"worker": 1, "ps-1": 1}),
        ("spec.roles", ROLE_NAMES),
        spmd({"worker": 1, "ps1": 1}),
    ),
    (
        "no role is named placeholder",
        spmd({"worker": 1, "placeholder": 1}),
        ("spec.roles", ROLE_NAMES),
        spmd({"all1": 1, "worker": 1}),
    ),
    (
        "the name of a role leaves room in a host name",
        {"name": "a" * 42, **spmd({"worker": 1, "r" * 11: 1})},
        ("spec.roles", ROLE_LENGTH),
        {"name": "a" * 42, **spmd({"worker": 1, "r" * 10: 1})},
    ),
    (
        "spmd.ranks names roles of the job",
        spmd({"trainer": 1, "data": 1}),
        ("spec.spmd.ranks", f"{NO_SUCH_ROLE}: list the roles that hold the ranks of framework spmd. Default: [worker]"),
        spmd({"trainer": 1, "data": 1}, ranks=["trainer"]),
    ),
    (
        "an SPMD job has ranks",
        spmd({"worker": 0, "data": 1}),
        ("spec.roles", "the job has no ranks: set the replicas of a role in spmd.ranks"),
        spmd({"worker": 0, "actor": 1}, ranks=["worker", "actor"]),
    ),
    (
        "spmd.services names roles",
        spmd({"worker": 1}, services=["data"]),
        ("spec.spmd.services", NO_SUCH_ROLE),
        spmd({"worker": 1}, services=[]),
    ),
    (
        "ranks are no services",
        spmd({"worker": 1}, services=["worker"]),
        (
            "spec.spmd.services",
            "names a role of spmd.ranks: pods that hold ranks must exit when the training is complete",
        ),
        spmd({"worker": 1, "data": 1}, services=["data"]),
    ),
    (
        "spmd.scope names roles",
        spmd({"worker": 1}, scope={"data": "Pod"}),
        ("spec.spmd.scope", NO_SUCH_ROLE),
        spmd({"worker": 1}, scope={"worker": "Pod"}),
    ),
    ("a name has at most 42 characters", {"name": "a" * 43}, ("metadata.name", NAME_LENGTH), {"name": "a" * 42}),
    ("a name has no capitals", {"name": "Job"}, ("metadata.name", NAME_CHARACTERS), {"name": "job-2"}),
    ("a name begins with a letter", {"name": "2job"}, ("metadata.name", NAME_CHARACTERS), {"name": "j"}),
    ("a name ends with a letter or digit", {"name": "job-"}, ("metadata.name", NAME_CHARACTERS), {"name": "job-a"}),
    ("a name has no dots", {"name": "my.job"}, ("metadata.name", NAME_CHARACTERS), {"name": "my-job"}),
    (
        "only the block that matches the framework is allowed",
        {"tensorflow": {}},
        ("spec.tensorflow", BLOCK),
        {"pytorch": {}},
    ),
    (
        "only Horovod and MPI have a launcher",
        {"roles": {"launcher": 1, "worker": 1}},
        ("spec.roles.launcher", "is a role of horovod, ray, mpi and spmd only: remove it or change framework"),
        {"roles": {"master": 1, "worker": 1}},
    ),
    (
        "PyTorch has no chief",
        {"roles": {"chief": 1, "worker": 1}},
        ("spec.roles.chief", "is a role of tensorflow, ray and spmd only: remove it or change framework"),
        {"roles": {"master": 1, "worker": 1}},
    ),
    (
        "TensorFlow has no master",
        {"framework": "tensorflow", "roles": {"master": 1, "worker": 1}},
        ("spec.roles.master", "is a role of pytorch, ray and spmd only: remove it or change framework"),
        {"framework": "tensorflow", "roles": {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}},
    ),
    (
        "Horovod has no parameter servers",
        {"framework": "horovod", "roles": {"worker": 1, "ps": 1}},
        ("spec.roles.ps", "is a role of tensorflow, ray and spmd only: remove it or change framework"),
        {"framework": "horovod", "roles": {"worker": 1}},
    ),
    (
        "only Ray has a head",
        {"roles": {"head": 1, "worker": 1}},
        ("spec.roles.head", "is a role of ray and spmd only: remove it or change framework"),
        {"framework": "ray", "roles": {"head": 1, "worker": 1}},
    ),
    (
        "Ray has at most one head",
        {"framework": "ray", "roles": {"head": 2}},
        ("spec.roles.head.replicas", "ray has at most 1 head"),
        {"framework": "ray", "roles": {"head": 1}},
    ),
    (
        "Ray needs a head",
        {"framework": "ray", "roles": {"worker": 1}},
        ("spec.roles.head", "ray needs a head: add it, or change framework"),
        {"framework": "ray", "roles": {"head": 1, "worker": 0}},
    ),
    (
        "a Ray job is not complete with its workers",
        {"framework": "ray", "roles": {"head": 1, "worker": 1}, "success": "worker"},
        ("spec.success", "cannot be workers in a Ray job, whose workers never exit by themselves: remove it"),
        {"framework": "ray", "roles": {"head": 1, "worker": 1}, "success": "head"},
    ),
    (
        "a Ray job has a command or an idle time",
        {"framework": "ray", "roles": {"head": 1}, "command": ["python3", "train.py"], "ray": {"idleSeconds": 60}},
        (
            "spec.ray.idleSeconds",
            "is for a Ray cluster without a command, which ends when its command does: remove one of them",
        ),
        {"framework": "ray", "roles": {"head": 1}, "command": None, "ray": {"idleSeconds": 60}},
    ),
    (
        "PyTorch has at most one master",
        {"roles": {"master": 2}},
        ("spec.roles.master.replicas", "pytorch has at most 1 master"),
        {"roles": {"master": 0, "worker": 1}},
    ),
    (
        "TensorFlow has at most one chief",
        {"framework": "tensorflow", "roles": {"chief": 2}},
        ("spec.roles.chief.replicas", "tensorflow has at most 1 chief"),
        {"framework": "tensorflow", "roles": {"chief": 1}},
    ),
    (
        "TensorFlow has at most one evaluator",
        {"framework": "tensorflow", "roles": {"chief": 1, "evaluator": 2}},
        ("spec.roles.evaluator.replicas", "tensorflow has at most 1 evaluator"),
        {"framework": "tensorflow", "roles": {"chief": 1, "evaluator": 1}},
    ),
    (
        "Horovod has at most one launcher",
        MPI | {"roles": {"worker": 1, "launcher": 2}},
        ("spec.roles.launcher.replicas", "horovod has at most 1 launcher"),
        MPI,
    ),
    (
        "TensorFlow needs a chief or a worker",
        {"framework": "tensorflow", "roles": {"ps": 1}},
        ("spec.roles", "tensorflow needs a chief or at least one worker"),
        {"framework": "tensorflow", "roles": {"chief": 1, "ps": 1}},
    ),
    (
        "Horovod needs a worker",
        {"framework": "horovod", "roles": {"launcher": 1}, "horovod": {"controller": "MPI"}},
        ("spec.roles.worker", "horovod needs at least one worker"),
        {"framework": "horovod", "roles": {"worker": 1}},
    ),
    ("MPI needs a launcher", MPI | {"roles": {"worker": 1}}, ("spec.roles.launcher", LAUNCHER), MPI),
    (
        "gloo has no launcher",
        {"framework": "horovod", "roles": {"worker": 1, "launcher": 1}},
        ("spec.roles.launcher", LAUNCHER),
        {"framework": "horovod", "roles": {"worker": 1, "launcher": 0}},
    ),
    (
        "an image is needed in the job or in every role",
        {"image": None, "roles": {"master": {"replicas": 1, "image": "a"}, "worker": 1}},
        ("spec.image", "an image is needed, here or in every role"),
        {"image": None, **of(image="a")},
    ),
    ("a job has pods", {"roles": {"worker": 0}}, ("spec.roles", NO_PODS), {"roles": {"master": 1, "worker": 0}}),
    ("a job without roles has no pods", {"roles": {}}, ("spec.roles", NO_PODS), {"roles": {"worker": {}}}),
    ("success names a role of the job", {"success": "master"}, ("spec.success", NOT_SUCCESS), {"success": "worker"}),
    (
        "success names a role that has pods",
        {"success": "master", "roles": {"master": 0, "worker": 1}},
        ("spec.success", NOT_SUCCESS),
        {"success": "All"},
    ),
    (
        "variables that begin with ALLRANKS_ are rejected in the job",
        {"env": [X, {"name": "ALLRANKS_X", "value": "1"}]},
        ("spec.env", OUR_PREFIX),
        {"env": [{"name": "MY_ALLRANKS_X", "value": "1"}]},
    ),
    (
        "variables that begin with ALLRANKS_ are rejected in a role",
        of(env=[{"name": "ALLRANKS_X", "value": "1"}]),
        ("spec.roles.worker.env", OUR_PREFIX),
        of(env=[X]),
    ),
    (
        "a variable has one value",
        {"env": [X | {"valueFrom": {}}]},
        ("spec.env", BOTH),
        {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]},
    ),
    (
        "a role's variable has one value",
        of(env=[X | {"valueFrom": {}}]),
        ("spec.roles.worker.env", BOTH),
        of(env=[{"name": "X"}]),
    ),
    (
        "a restart rule has a condition",
        {"restart": {"rules": [{"action": "Fail"}]}},
        ("spec.restart.rules[0]", ONE_OF),
        {"restart": {"rules": [{"exitCodes": [1], "action": "Fail"}]}},
    ),
    (
        "a restart rule has one condition",
        {
            "restart": {
                "rules": [{"signals": [9], "action": "Fail"}, {"signals": [9], "reasons": ["x"], "action": "Fail"}]
            }
        },
        ("spec.restart.rules[1]", ONE_OF),
        {"restart": {"rules": [{"signals": [9], "action": "Fail"}, {"reasons": ["x"], "action": "Fail"}]}},
    ),
    (
        "what it starts from needs a folder",
        {"resumeFrom": "a"},
        ("spec.resumeFrom", "needs checkpoint: the folder of this job, into which the checkpoints are copied"),
        {"resumeFrom": "a/500", "checkpoint": {"claim": "a"}},
    ),
    ("a checkpoint has a volume", {"checkpoint": {}}, ("spec.checkpoint", ONE_VOLUME), {"checkpoint": {"claim": "a"}}),
    (
        "a checkpoint has one volume",
        {"checkpoint": {"claim": "a", "volume": {"emptyDir": {}}}},
        ("spec.checkpoint", ONE_VOLUME),
        {"checkpoint": {"volume": {"nfs": {"server": "a", "path": "/"}}}},
    ),
    (
        "a checkpoint volume is not a hostPath",
        {"checkpoint": {"volume": {"hostPath": {"path": "/x"}}}},
        ("spec.checkpoint.volume", HOST_PATH),
        {"checkpoint": {"volume": {"csi": {"driver": "d"}}}},
    ),
    (
        "code has one source",
        {"code": {"claim": "a", "image": "b"}},
        ("spec.code", ONE_SOURCE),
        {"code": {"claim": "a"}},
    ),
    (
        "a ConfigMap with code has a hash",
        {"code": {"configMap": "a"}},
        ("spec.code.sha256", "configMap and sha256 belong together: let allranks submit --code DIR write both"),
        {"code": {"configMap": "a", "sha256": "0" * 64}},
    ),
    (
        "a ConfigMap has no folders",
        {"code": {"configMap": "a", "sha256": "0" * 64, "subPath": "b"}},
        ("spec.code.subPath", "is for a claim or an image"),
        {"code": {"image": "a", "subPath": "b"}},
    ),
    (
        "a folder of a claim is inside it",
        {"code": {"claim": "a", "subPath": "b/../.."}},
        ("spec.code.subPath", "must be a relative path that does not lead upwards"),
        {"code": {"claim": "a", "subPath": "b/..c/d"}},
    ),
    (
        "code is not at the root",
        {"code": {"claim": "a", "path": "/"}},
        ("spec.code.path", "must be a directory below /, without ':' and without . or .. as a part"),
        {"code": {"claim": "a", "path": "/app/.code"}},
    ),
    (
        "packages are not options",
        {"packages": ["--index-url=x"]},
        ("spec.packages", PACKAGES),
        {"packages": ["timm==1.0", "a @ https://example.com/a.whl"]},
    ),
    ("an input has a source", data("ftp://h/x"), (f"{INPUT}.from", FROM), data("hf://datasets/a/b")),
    ("a source has no credentials", data("https://me:pw@h/x"), (f"{INPUT}.from", SECRET), data(secret="s")),
    ("a prefix leads nowhere else", data("claim://c/../d"), (f"{INPUT}.from", DOTS), data("claim://c/d")),
    ("an object store is no volume", data(mode="Mount"), (f"{INPUT}.mode", MODE), data(mode="Copy")),
    ("a claim is no stream", stream("claim://c"), (f"{INPUT}.mode", MODE), stream()),
    ("an image is no stream", stream("image://r/i"), (f"{INPUT}.mode", MODE), stream("hf://datasets/a/b")),
    ("git is no stream", stream("git+https://h/r"), (f"{INPUT}.mode", STREAM_GIT), stream("https://h/f")),
    ("a stream has no sum", stream(sha256="0" * 64), (f"{INPUT}.sha256", STREAM_SUM), stream(revision="1")),
    ("a stream has no directory", stream(path="/data"), (f"{INPUT}.path", STREAM_PATH), stream(secret="s")),
    (
        "a copy has a directory",
        {"inputs": [{"name": "data", "from": "s3://b/p"}]},
        (f"{INPUT}.path", NO_PATH),
        stream("gs://b/p"),
    ),
    (
        "a volume has no revision",
        data("claim://c", revision="1"),
        (f"{INPUT}.from", "claim:// and image:// are volumes, which have no secret, revision or sha256: remove these"),
        data("image://r/data:1"),
    ),
    (
        "one field determines the data",
        data(revision="1", sha256="0" * 64),
        (f"{INPUT}.sha256", "set revision or sha256, not both: each of them determines the data"),
        data(sha256="0" * 64),
    ),
    (
        "a system is named once",
        {"compatibility": ["Slurm", "Slurm"]},
        ("spec.compatibility", "must have each value once"),
        {"compatibility": ["Slurm", "SageMaker"]},
    ),
    (
        "hosts that change while ranks run have no variables of other systems",
        {"framework": "horovod", "elastic": {"minReplicas": 1, "maxReplicas": 2}, "compatibility": ["Slurm"]},
        (
            "spec.compatibility",
            "cannot be set in an elastic job whose hosts change while it runs: its variables would name others",
        ),
        {"elastic": {"minReplicas": 1, "maxReplicas": 2}, "compatibility": ["Slurm"]},
    ),
    ("a volume is not unpacked", data("claim://c", unpack=True), (f"{INPUT}.unpack", UNPACK), data(unpack=True)),
    ("a stream is not unpacked", stream(unpack=True), (f"{INPUT}.unpack", UNPACK), stream(unpack=False)),
    (
        "names of inputs differ",
        {"inputs": [*data()["inputs"], *data()["inputs"]]},
        ("spec.inputs", "two of them have the same name: choose another one"),
        {"inputs": [*data()["inputs"], *data(name="b")["inputs"]]},
    ),
    ("an input is not at the root", data(path="/"), (f"{INPUT}.path", DIRECTORY), data(path="/d")),
    ("an output has a destination", out("s3://b"), ("spec.outputs[0].to", TO), out("s3://b/p")),
    ("a destination leads nowhere else", out("claim://c/../d"), ("spec.outputs[0].to", DOTS), out("claim://c")),
    (
        "checkpoints that are uploaded are those of the job",
        saved(path="/out"),
        ("spec.outputs", SAVED),
        saved(),
    ),
    (
        "checkpoints that are uploaded are reported",
        {key: value for key, value in saved().items() if key != "progress"},
        ("spec.outputs", SAVED),
        saved(),
    ),
    (
        "TensorFlow jobs cannot be elastic",
        {"framework": "tensorflow", "elastic": {"minReplicas": 1, "maxReplicas": 2}},
        ("spec.elastic", NOT_ELASTIC),
        {"elastic": {"minReplicas": 1, "maxReplicas": 2}},
    ),
    (
        "MPI jobs cannot be elastic",
        MPI | {"elastic": {"minReplicas": 1, "maxReplicas": 2}},
        ("spec.elastic", "elastic Horovod needs controller Gloo: MPI cannot add or remove ranks of a running job"),
        {"framework": "horovod", "elastic": {"minReplicas": 1, "maxReplicas": 2}},
    ),
    (
        "an elastic job has at least minReplicas workers",
        {"roles": {"worker": 1}, "elastic": {"minReplicas": 2, "maxReplicas": 3}},
        ("spec.roles.worker.replicas", WITHIN),
        {"roles": {"worker": 2}, "elastic": {"minReplicas": 2, "maxReplicas": 3}},
    ),
    (
        "an elastic job has at most maxReplicas workers",
        {"roles": {"worker": 4}, "elastic": {"minReplicas": 2, "maxReplicas": 3}},
        ("spec.roles.worker.replicas", WITHIN),
        {"roles": {"worker": 3}, "elastic": {"minReplicas": 2, "maxReplicas": 3}},
    ),
    (
        "an elastic job has restart scope group",
        {"elastic": {"minReplicas": 1, "maxReplicas": 3}, "restart": {"scope": "Pod"}},
        ("spec.restart.scope", "cannot be Pod in an elastic job, where the framework decides: remove it or use Group"),
        {"elastic": {"minReplicas": 1, "maxReplicas": 3}, "restart": {"scope": "Group"}},
    ),
    (
        "an elastic Horovod job has no success role",
        {"framework": "horovod", "elastic": {"minReplicas": 1, "maxReplicas": 3}, "success": "worker"},
        ("spec.success", "cannot be set in an elastic Horovod job, which is complete when worker 0 is: remove it"),
        {"framework": "horovod", "elastic": {"minReplicas": 1, "maxReplicas": 3}},
    ),
    (
        "an elastic job has workers",
        {"roles": {"master": 1}, "elastic": {"minReplicas": 1, "maxReplicas": 3}},
        ("spec.roles.worker.replicas", WITHIN),
        {"roles": {"master": 1, "worker": 1}, "elastic": {"minReplicas": 1, "maxReplicas": 3}},
    ),
    (
        "a topology is either required or preferred",
        {"scheduling": {"topology": {"required": "rack", "preferred": "zone"}}},
        ("spec.scheduling.topology", "set exactly one of required and preferred"),
        {"scheduling": {"topology": {"preferred": "zone"}}},
    ),
    (
        "a topology has one form",
        {"scheduling": {"topology": {"required": "rack"}, "topologyKey": "rack"}},
        (
            "spec.scheduling.topologyKey",
            "is the older form of topology: remove it, and write topology: {required: KEY}",
        ),
        {"scheduling": {"topology": {"required": "rack"}}},
    ),
]


def build(fields: dict[str, Any]) -> dict[str, Any]:
    document = manifest(**fields)
    document["spec"] = {name: value for name, value in document["spec"].items() if value is not None}
    return document


@table(*RULES)
def test_rule(case):
    bad, (field, message), good = case
    # The messages of the API server are fixed texts.
    assert problems(build(bad)) == [(field, message.replace("ALLRANKS_INPUT_NAME", "ALLRANKS_INPUT_DATA"))]
    assert problems(build(good)) == []


OTHER_RULES = {"minReplicas must not be larger than maxReplicas", "has an unknown role: "}
"""Rules of objects, whose messages have no field, and one that `allranks validate` replaces by one for each role."""


def test_every_rule_has_a_case_here():
    tried = {problem[1] for _, _, problem, _ in RULES} | OTHER_RULES
    untried = {
        text
        for text in _messages(root_schema())
        if not any(text.endswith(message) or text.startswith(message) for message in tried)
    }
    assert {text for text in untried if "find one another" not in text} == set()


def _messages(schema: dict[str, Any]) -> set[str]:
    found = {rule["message"] for rule in schema.get("x-kubernetes-validations", ()) if "oldSelf" not in rule["rule"]}
    for child in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        found |= _messages(child) if isinstance(child, dict) else set()
    return found


RESERVED = [
    (framework, name)
    for framework, names in {
        "pytorch": """
            MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK NNODES NPROC_PER_NODE
            PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT
            PET_RDZV_BACKEND PET_RDZV_ENDPOINT PET_RDZV_ID""",
        "tensorflow": "TF_CONFIG",
        "horovod": """
            HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE
            HOROVOD_HOSTNAME HOROVOD_CONTROLLER HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT""",
        "mpi": "HYDRA_HOST_FILE I_MPI_HYDRA_HOST_FILE OMPI_MCA_orte_default_hostfile PRTE_MCA_prte_default_hostfile",
    }.items()
    for name in names.split()
]


@pytest.mark.parametrize(("framework", "name"), RESERVED)
def test_a_variable_by_which_ranks_find_one_another_is_rejected(framework, name):
    env = [X, {"name": name, "value": "1"}]
    more = {"launcher": {"replicas": 1}} if framework == "mpi" else {}
    base = {"roles": {"worker": 1, **more}}
    of_role = {"roles": {"worker": {"replicas": 1, "env": env}, **more}}
    for place, fields in (("spec.env", {"env": env}), ("spec.roles.worker.env", of_role)):
        ((path, message),) = problems(manifest(framework, **{**base, **fields}))
        assert path == place
        assert name in message
        assert message.endswith(f"find one another are set by allranks: remove {name}")


@pytest.mark.parametrize("name", ["TF_CONFIG", "HOROVOD_RANK", "PYTHONUNBUFFERED", "NCCL_DEBUG", "PET_LOG_DIR"])
def test_any_other_variable_is_accepted(name):
    assert problems(manifest(env=[{"name": name, "value": "1"}])) == []


# Sentence, job, (path, message).
TYPES = [
    (
        "a number in quotes is not a number",
        of(replicas="2"),
        ("spec.roles.worker.replicas", "must be a whole number, not a string: remove the quotes"),
    ),
    ("2.5 is not a whole number", of(replicas=2.5), ("spec.roles.worker.replicas", "must be a whole number, not 2.5")),
    ("true is not a number", of(replicas=True), ("spec.roles.worker.replicas", "must be a whole number, not true")),
    (
        "replicas are not negative",
        of(replicas=-1),
        ("spec.roles.worker.replicas", "should be greater than or equal to 0"),
    ),
    (
        "replicas are at most 10,000",
        of(replicas=10_001),
        ("spec.roles.worker.replicas", "should be less than or equal to 10000"),
    ),
    ("an image is a string", {"image": 3}, ("spec.image", "must be a string, not 3: put it in quotes")),
    ("an image is not a list", {"image": ["a"]}, ("spec.image", "must be a string, not a list")),
    (
        "true as the value of a variable needs quotes",
        {"env": [{"name": "X", "value": True}]},
        ("spec.env[0].value", "must be a string, not true: put it in quotes"),
    ),
    (
        "a variable's value is a string",
        {"env": [{"name": "X", "value": 1}]},
        ("spec.env[0].value", "must be a string, not 1: put it in quotes"),
    ),
    (
        "an argument is a string",
        {"command": ["sleep", 1]},
        ("spec.command[1]", "must be a string, not 1: put it in quotes"),
    ),
    (
        "a command is a list",
        {"command": "python x.py"},
        ("spec.command", "must be a list, not a string: write [python, x.py]"),
    ),
    (
        "variables are a list",
        {"env": {"X": "1"}},
        ("spec.env", 'must be a list, not a mapping: write [{name: X, value: "1"}]'),
    ),
    (
        "roles are a mapping",
        {"roles": {"worker": ["replicas"]}},
        ("spec.roles.worker", "must be a mapping, not a list"),
    ),
    ("a block is a mapping", {"pytorch": 3}, ("spec.pytorch", "must be a mapping, not 3")),
    ("a template is a mapping", {"template": "x"}, ("spec.template", "must be a mapping, not a string")),
    ("yes is not a boolean", {"suspend": "yes"}, ("spec.suspend", "must be true or false, not a string")),
    (
        "a working directory is absolute",
        {"workingDir": "x"},
        ("spec.workingDir", "must be an absolute path, which begins with /"),
    ),
    ("a name is a string", {"name": 3}, ("metadata.name", "must be a string, not 3: put it in quotes")),
    (
        "half a CPU needs quotes",
        {"resources": {"limits": {"cpu": 0.5}}},
        ("spec.resources.limits.cpu", "must be a whole number or a string, not 0.5: put it in quotes"),
    ),
    (
        "a resource's amount is not a list",
        {"resources": {"limits": {"nvidia.com/gpu": []}}},
        ("spec.resources.limits[nvidia.com/gpu]", "must be a whole number or a string, not a list"),
    ),
    (
        "processesPerNode is a number or Auto",
        {"pytorch": {"processesPerNode": "all"}},
        ("spec.pytorch.processesPerNode", "must be a whole number from 1 to 64, or Auto"),
    ),
    (
        "processesPerNode is at least 1",
        {"pytorch": {"processesPerNode": 0}},
        ("spec.pytorch.processesPerNode", "must be a whole number from 1 to 64, or Auto"),
    ),
    ("a port is at least 1", {"pytorch": {"port": 0}}, ("spec.pytorch.port", "should be greater than or equal to 1")),
    (
        "for an unknown framework the valid ones are listed",
        {"framework": "caffe"},
        (
            "spec.framework",
            "should be 'pytorch', 'tensorflow', 'horovod', 'jax', 'ray', 'mpi' or 'spmd', not 'caffe'",
        ),
    ),
    (
        "for an unknown policy the valid ones are listed",
        {"cleanPodPolicy": "running"},
        ("spec.cleanPodPolicy", "should be 'Running', 'All' or 'None', did you mean Running?"),
    ),
    (
        "for an unknown role in success the valid ones are listed",
        {"success": 3},
        ("spec.success", "must be a string, not 3: put it in quotes"),
    ),
    (
        "for an unknown gang scheduler the valid ones are listed",
        {"scheduling": {"gang": "x"}},
        ("spec.scheduling.gang", "should be 'Auto', 'Native', 'Kueue', 'Volcano', 'Coscheduling' or 'None', not 'x'"),
    ),
    (
        "the key of a topology is the key of a label",
        {"scheduling": {"topology": {"required": "my rack"}}},
        (
            "spec.scheduling.topology.required",
            "must be the key of a label of nodes, for example topology.kubernetes.io/zone",
        ),
    ),
    (
        "the time for a gang cannot be negative",
        {"scheduling": {"gangTimeoutSeconds": -1}},
        ("spec.scheduling.gangTimeoutSeconds", "should be greater than or equal to 0"),
    ),
    (
        "an exit code is at most 255",
        {"restart": {"rules": [{"exitCodes": [300], "action": "Fail"}]}},
        ("spec.restart.rules[0].exitCodes[0]", "should be less than or equal to 255"),
    ),
    (
        "a restart rule has an action",
        {"restart": {"rules": [{"exitCodes": [1]}]}},
        ("spec.restart.rules[0].action", "is required"),
    ),
    (
        "times are not negative",
        {"ttlSecondsAfterFinished": -1},
        ("spec.ttlSecondsAfterFinished", "should be greater than or equal to 0"),
    ),
]


@table(*TYPES)
def test_type(case):
    fields, problem = case
    assert problems(manifest(**fields)) == [problem]


# Sentence, job, (path, message).
UNKNOWN = [
    ("an unknown field is rejected", {"bogus": 1}, ("spec.bogus", "unknown field")),
    (
        "the right name of a misspelt field is suggested",
        of(replica=1),
        ("spec.roles.worker.replica", "unknown field, did you mean replicas?"),
    ),
    (
        "the right name of a misspelt nested field is suggested",
        {"restart": {"rules": [{"exitCode": [1], "reasons": ["x"], "action": "Fail"}]}},
        ("spec.restart.rules[0].exitCode", "unknown field, did you mean exitCodes?"),
    ),
    (
        "camelCase is suggested for snake_case",
        {"restart": {"max_restarts": 3}},
        ("spec.restart.max_restarts", "unknown field, did you mean maxRestarts?"),
    ),
    (
        "camelCase is suggested for snake_case of two words",
        {"working_dir": "/x"},
        ("spec.working_dir", "unknown field, did you mean workingDir?"),
    ),
    (
        "camelCase is suggested for snake_case of many words",
        {"ttl_seconds_after_finished": 3},
        ("spec.ttl_seconds_after_finished", "unknown field, did you mean ttlSecondsAfterFinished?"),
    ),
    (
        "the right name of a misspelt resource block is suggested",
        {"resources": {"limit": {}}},
        ("spec.resources.limit", "unknown field, did you mean limits?"),
    ),
    (
        "the name that another framework has for the processes of a pod",
        {"pytorch": {"slotsPerWorker": 2}},
        ("spec.pytorch.slotsPerWorker", "unknown field, did you mean processesPerNode?"),
    ),
    (
        "an unknown role is rejected with the roles of the framework",
        {"roles": {"boss": 1, "worker": 1}},
        ("spec.roles.boss", "unknown field: pytorch has master and worker"),
    ),
]


@table(*UNKNOWN)
def test_unknown_field(case):
    fields, problem = case
    assert problems(manifest(**fields)) == [problem]


@pytest.mark.parametrize("word", WORDS_OF_OTHER_SYSTEMS)
def test_a_word_of_another_system_is_answered_with_the_field(word):
    field = WORDS_OF_OTHER_SYSTEMS[word].format(job="spec")
    [problem] = problems(manifest("tensorflow", **{word: 1}))
    assert problem == (f"spec.{word}", f"unknown field: here it is {field}")


@pytest.mark.parametrize("word", WORDS_OF_OTHER_SYSTEMS)
def test_no_word_of_another_system_is_a_misspelling_of_its_field(word):
    spec = root_schema()["properties"]["spec"]["properties"]
    near = similar(word, spec, 0.7)
    assert near is None or not re.search(rf"\b{near}\b", WORDS_OF_OTHER_SYSTEMS[word].partition(",")[0])


@table(
    ("snake case", {"node_count": 4}, ("spec.node_count", "spec.roles.worker.replicas")),
    ("camel case", {"useSpotInstances": True}, ("spec.useSpotInstances", "spec.pool, which names a TrainingPool")),
    ("a role", {"roles": {"worker": 1, "parameterServer": 1}}, ("spec.roles.parameterServer", "spec.roles.ps")),
)
def test_words_of_other_systems_have_any_spelling(case):
    fields, (path, field) = case
    fields["roles"] = {name: {"replicas": n} for name, n in fields.get("roles", {"worker": 2}).items()}
    [(where, message)] = problems(manifest("tensorflow", **fields))
    assert where == path
    assert message.startswith(f"unknown field: here it is {field}")


def trainer(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


TRAINER = "spec.template.spec.containers[0]"

# Sentence, template, (path, message). The API server accepts these jobs and rejects only their pods.
TEMPLATES = [
    (
        "labels have a number",
        {"metadata": {"labels": {f"k{number}": "" for number in range(65)}}},
        ("spec.template.metadata.labels", "has 65 labels, and at most 64 fit: remove the others"),
    ),
    (
        "annotations have a number",
        {"metadata": {"annotations": {f"k{number}": "" for number in range(18_000)}}},
        ("spec.template.metadata.annotations", "has 18000 annotations, and at most 64 fit: remove the others"),
    ),
    (
        "annotations have a size",
        {"metadata": {"annotations": {"k": "x" * 32_768}}},
        (
            "spec.template.metadata.annotations",
            "has 32769 bytes, and at most 32768 fit: move data to a ConfigMap or image",
        ),
    ),
    ("a pod spec is a mapping", {"spec": "x"}, ("spec.template.spec", "must be a mapping, not a string")),
    ("metadata is a mapping", {"metadata": [1]}, ("spec.template.metadata", "must be a mapping, not a list")),
    (
        "labels are a mapping",
        {"metadata": {"labels": [1]}},
        ("spec.template.metadata.labels", "must be a mapping, not a list"),
    ),
    (
        "containers are a list",
        {"spec": {"containers": {"trainer": {}}}},
        ("spec.template.spec.containers", "must be a list, not a mapping"),
    ),
    ("a container is a mapping", {"spec": {"containers": ["trainer"]}}, (TRAINER, "must be a mapping, not a string")),
    ("a container has a name", {"spec": {"containers": [{"image": "x"}]}}, (f"{TRAINER}.name", "is required")),
    (
        "init containers are a list",
        {"spec": {"initContainers": 3}},
        ("spec.template.spec.initContainers", "must be a list, not 3"),
    ),
    ("volumes are a list", {"spec": {"volumes": {}}}, ("spec.template.spec.volumes", "must be a list, not a mapping")),
    (
        "a volume is a mapping",
        {"spec": {"volumes": ["a"]}},
        ("spec.template.spec.volumes[0]", "must be a mapping, not a string"),
    ),
    (
        "tolerations are a list",
        {"spec": {"tolerations": "a"}},
        ("spec.template.spec.tolerations", "must be a list, not a string"),
    ),
    (
        "a grace period is a number",
        {"spec": {"terminationGracePeriodSeconds": "30"}},
        ("spec.template.spec.terminationGracePeriodSeconds", "must be a whole number, not a string: remove the quotes"),
    ),
    (
        "variables are a list",
        trainer(env={"X": "1"}),
        (f"{TRAINER}.env", 'must be a list, not a mapping: write [{name: X, value: "1"}]'),
    ),
    ("a variable is a mapping", trainer(env=[1]), (f"{TRAINER}.env[0]", "must be a mapping, not 1")),
    ("a variable has a name", trainer(env=[{"value": "1"}]), (f"{TRAINER}.env[0].name", "is required")),
    ("mounts are a list", trainer(volumeMounts={}), (f"{TRAINER}.volumeMounts", "must be a list, not a mapping")),
    ("a port is a mapping", trainer(ports=[80]), (f"{TRAINER}.ports[0]", "must be a mapping, not 80")),
    (
        "a security context is a mapping",
        trainer(securityContext=3),
        (f"{TRAINER}.securityContext", "must be a mapping, not 3"),
    ),
    ("resources are a mapping", trainer(resources="x"), (f"{TRAINER}.resources", "must be a mapping, not a string")),
    ("a command is a list", trainer(command="x"), (f"{TRAINER}.command", "must be a list, not a string: write [x]")),
]


@table(*TEMPLATES)
def test_template(case):
    template, problem = case
    assert problems(manifest(template=template)) == [problem]


def test_a_problem_in_a_roles_template_has_the_path_of_the_role():
    assert problems(manifest(**of(template={"spec": 1}))) == [
        ("spec.roles.worker.template.spec", "must be a mapping, not 1")
    ]


def test_rules_that_read_a_wrong_field_are_not_reported():
    fields = {"framework": "pytorhc", "roles": {"master": 1}, "pytorch": {"nprocPerNode": 0}, "success": "chief"}
    found = dict(problems(build(fields)))
    assert found.keys() == {"spec.framework", "spec.pytorch.nprocPerNode", "spec.success"}
    assert "'pytorch'" in found["spec.framework"]


def test_all_errors_are_reported_in_the_order_of_the_manifest():
    document = manifest(
        roles={"worker": {"replicas": "1", "imag": "x"}},
        restart={"maxRestarts": -1},
        pool="",
        template={"spec": {"containers": {}}},
        checkpoint={"claim": "a", "path": "here"},
        name="A",
    )
    assert sorted(problems(document)) == [
        ("metadata.name", NAME_CHARACTERS),
        ("spec.checkpoint.path", "must be an absolute path, which begins with /"),
        ("spec.pool", "must not be empty"),
        ("spec.restart.maxRestarts", "should be greater than or equal to 0"),
        ("spec.roles.worker.imag", "unknown field, did you mean image?"),
        ("spec.roles.worker.replicas", "must be a whole number, not a string: remove the quotes"),
        ("spec.template.spec.containers", "must be a list, not a mapping"),
    ]


def patterns(schema: dict[str, Any]) -> set[str]:
    """Those of all fields of text below this one."""
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    own = {schema["pattern"]} if "pattern" in schema and not schema.get("x-kubernetes-int-or-string") else set()
    return own.union(*(patterns(one) for one in inner if isinstance(one, dict)))


@pytest.mark.parametrize("kind", [job.KIND, pool.KIND, sweep.KIND])
def test_each_pattern_of_a_field_is_explained_in_words(kind):
    found = patterns(root_schema(kind)["properties"]["spec"])
    assert found
    assert found <= PATTERNS.keys()


# Sentence, document, problems.
DOCUMENTS = [
    ("a list is not a manifest", [], [("", "a manifest must be a mapping, not a list")]),
    ("a word is not a manifest", "x", [("", "a manifest must be a mapping, not a string")]),
    (
        "for another kind only the kind is reported",
        {"apiVersion": "allranks.dev/v1alpha1", "kind": "Job"},
        [("kind", "must be DistributedTraining, not 'Job'")],
    ),
    (
        "for another version only the version is reported",
        {"apiVersion": "allranks.dev/v1", "kind": "DistributedTraining"},
        [("apiVersion", "must be allranks.dev/v1alpha1, not 'allranks.dev/v1'")],
    ),
    (
        "metadata and spec are required",
        {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining"},
        [("metadata", "is required"), ("spec", "is required")],
    ),
    (
        "framework and roles are required",
        {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": "a"}, "spec": {}},
        [("spec.framework", "is required"), ("spec.roles", "is required")],
    ),
]


@table(*DOCUMENTS)
def test_document(case):
    document, expected = case
    found = problems(document)
    assert [problem for problem in found if problem[0] != "spec.image"] == expected


def test_status_and_other_metadata_are_ignored():
    document = manifest()
    document["status"] = {"phase": "Running", "whatever": 1}
    document["metadata"] |= {"resourceVersion": "7", "managedFields": [], "labels": {"a": "b"}}
    assert problems(document) == []


def test_a_document_is_not_changed_by_parsing_it():
    document = manifest(restart={"rules": [{"exitCodes": [1], "action": "Fail"}]})
    before = copy.deepcopy(document)
    parse(document)
    assert document == before


GARBAGE: list[Any] = [None, 2.5, "x", [None], {}, {"": []}]
FULL = manifest(
    roles={"master": {"replicas": 1, "env": [X], "resources": {"limits": {"cpu": 1}}}, "worker": {"replicas": 2}},
    pytorch={"processesPerNode": 2},
    restart={"rules": [{"exitCodes": [1], "action": "Fail"}]},
    checkpoint={"claim": "a"},
    scheduling={"gang": "Auto"},
    template=trainer(env=[X]),
    env=[X],
    resources={"limits": {"cpu": 1}},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


@pytest.mark.parametrize("place", places(FULL)[1:], ids=lambda place: ".".join(map(str, place)))
def test_garbage_at_any_place_is_reported_as_a_problem_and_raises_no_other_exception(place):
    for garbage in GARBAGE:
        document = copy.deepcopy(FULL)
        here: Any = document
        for step in place[:-1]:
            here = here[step]
        here[place[-1]] = garbage
        for path, message in problems(document):  # any exception but InvalidManifest fails the test
            assert isinstance(path, str)
            assert message
            assert "instance of" not in message, "a name of the code's own"


def test_rules_get_no_content_of_templates_which_they_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[Any] = []

    class Spy:
        def execute(self, variables: Any) -> bool:
            values.append(variables["self"])
            return True

    monkeypatch.setattr(validation, "_program", lambda rule: Spy())
    template = {"spec": {"containers": [{"name": "trainer", "image": "unread"}]}}
    variable = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "unread"}}}
    checkpoint = {"path": "/c", "volume": {"hostPath": {"path": "unread"}}}
    parse(manifest(template=template, env=[variable], checkpoint=checkpoint))
    assert values
    assert "unread" not in str(values)
    whole = next(value["spec"] for value in values if "spec" in value)
    assert (whole["template"], whole["env"][0]["valueFrom"]) == ({}, {})
    assert whole["checkpoint"]["volume"] == {"hostPath": {}}
