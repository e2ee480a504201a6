"""Loading manifests: names that are made, names that occur twice, warnings and notes, and the output for programs."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.api.job import SpecBase
from allranks.api.validation_messages import CONTAINER_FIELDS, POD_FIELDS
from allranks.authoring.checks import schema
from allranks.authoring.manifests import load_documents
from allranks.cli.main import cli
from allranks.errors import InvalidManifest
from support.builders import manifest, table

SIDECAR = {"spec": {"containers": [{"name": "train", "image": "x"}]}}
SIDECAR_WARNING = (
    "container train runs beside the training container, which is named trainer: name it trainer if it is the training "
    "program"
)


def allranks(*args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, args, input=stdin, catch_exceptions=False)


def text(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents)


def unnamed(prefix: str = "sweep-", **spec: Any) -> dict[str, Any]:
    return manifest(**spec) | {"metadata": {"generateName": prefix}}


# --- generateName ----------------------------------------------------------------------------------------------------


def test_jobs_with_generate_name_have_different_names():
    loaded = load_documents([("-", unnamed()), ("-", unnamed())])
    assert [job.name for job in loaded.jobs] == ["sweep-00001", "sweep-00002"]
    assert loaded.titles == ("sweep-*", "sweep-*")


def test_the_document_is_left_as_it_was_written():
    """The API server makes the name."""
    written = unnamed()
    assert load_documents([("-", written)]).documents[0]["metadata"] == {"generateName": "sweep-"}


def test_random_names_have_a_suffix_as_the_api_server_makes_one():
    names = {load_documents([("-", unnamed())], random_names=True).jobs[0].name for _ in range(20)}
    assert len(names) > 10
    assert all(len(name) == len("sweep-12345") and name.startswith("sweep-") for name in names)


def test_a_name_takes_precedence_over_generate_name():
    both = manifest() | {"metadata": {"name": "job", "generateName": "sweep-"}}
    assert load_documents([("-", both)]).jobs[0].name == "job"


def test_render_prints_the_same_name_each_time():
    outputs = {allranks("render", "-", stdin=text(unnamed())).stdout for _ in range(2)}
    assert len(outputs) == 1
    assert "name: sweep-00001-worker-0-0" in outputs.pop()


def test_a_dry_run_has_a_random_name():
    outputs = {allranks("run", "-", "--dry-run", stdin=text(unnamed())).stdout for _ in range(4)}
    assert len(outputs) > 1
    assert all("name: sweep-" in output for output in outputs)


# --- names -----------------------------------------------------------------------------------------------------------


def test_objects_of_other_namespaces_or_kinds_may_have_the_same_name():
    elsewhere = manifest() | {"metadata": {"name": "job", "namespace": "other"}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "job", "namespace": "team"}}
    assert len(load_documents([("-", manifest()), ("-", elsewhere), ("-", claim)]).documents) == 3


def test_two_other_objects_with_one_name_are_an_error():
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}}
    with pytest.raises(InvalidManifest) as raised:
        load_documents([("a.yaml", manifest()), ("a.yaml", claim), ("b.yaml", claim)])
    assert raised.value.problems == [
        (
            "b.yaml: runs: metadata.name",
            "another PersistentVolumeClaim has the same name, runs (document 2 of a.yaml): rename or remove one of "
            "them",
        )
    ]


# --- lists -----------------------------------------------------------------------------------------------------------


def test_the_items_of_a_list_count_as_documents():
    """`kubectl get dt -o yaml` prints a list."""
    listed = {"apiVersion": "v1", "kind": "List", "items": [manifest(), manifest() | {"metadata": {"name": "Other"}}]}
    result = allranks("validate", "-", "-o", "json", stdin=text(manifest(), listed))
    problems = json.loads(result.stdout)["problems"]
    assert [(one["document"], one["name"], one["path"]) for one in problems] == [
        (2, "job", "metadata.name"),
        (3, "Other", "metadata.name"),
    ]


def test_an_empty_list_has_no_job():
    result = allranks("validate", "-", stdin="{apiVersion: v1, kind: List, items: []}")
    assert (result.exit_code, result.stderr) == (2, "error: stdin: contains no DistributedTraining\n")


# --- warnings and notes ----------------------------------------------------------------------------------------------


def test_warnings_do_not_fail_without_strict():
    document = text(manifest(template=SIDECAR))
    path = "stdin: job: spec.template.spec.containers[0].name"
    result = allranks("validate", "-", stdin=document)
    assert (result.exit_code, result.stderr.splitlines()[0]) == (0, f"warning: {path}: {SIDECAR_WARNING}")
    strict = allranks("validate", "-", "--strict", stdin=document)
    assert (strict.exit_code, strict.stderr, strict.stdout) == (2, f"warning: {path}: {SIDECAR_WARNING}\n", "")


def test_notes_do_not_fail_with_strict():
    logger = {"spec": {"containers": [{"name": "logger", "image": "x"}]}}
    result = allranks("validate", "-", "--strict", stdin=text(manifest(template=logger)))
    assert (result.exit_code, result.stdout) == (0, "job is valid: pytorch, 2 pods\n")
    assert result.stderr.startswith("note: stdin: job: spec.template.spec.containers[0].name: container logger runs")


NETWORK = {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"}}}
GLOO = [{"name": "GLOO_SOCKET_IFNAME", "value": "net1"}]


def pool(**spec: Any) -> dict[str, Any]:
    document = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingPool", "metadata": {"name": "rdma"}}
    return {**document, "spec": spec}


def of_role(name: str, **spec: Any) -> dict[str, Any]:
    """A job whose workers have a pool of their own."""
    return manifest(roles={"master": 1, "worker": {"replicas": 1, "pool": name}}, **spec)


@table(
    ("of the job", [manifest(template=NETWORK)], "job: spec.template: "),
    (
        "of a role",
        [manifest(roles={"worker": {"replicas": 2, "template": NETWORK}})],
        "job: spec.roles.worker.template: ",
    ),
    ("of the pool", [pool(template=NETWORK), manifest(pool="rdma")], "job: spec.pool: "),
    ("of the pool of a role", [pool(template=NETWORK), of_role("rdma")], "job: spec.roles.worker.pool: "),
    ("with its interface", [manifest(template=NETWORK, env=GLOO)], ""),
    ("with the interface of the pool", [pool(env=GLOO), manifest(pool="rdma", template=NETWORK)], ""),
    ("with a pool that is elsewhere", [manifest(pool="rdma", template=NETWORK)], ""),
    ("of a launcher", [manifest("mpi", roles={"launcher": {"replicas": 1, "template": NETWORK}, "worker": 2})], ""),
)
def test_a_second_network_that_no_variable_names_is_noted(case):
    documents, path = case
    result = allranks("validate", "-", stdin=text(*documents))
    assert result.exit_code == 0, result.stderr
    notes = [line for line in result.stderr.splitlines() if "adds a network" in line]
    assert [line.startswith(f"note: stdin: {path}the annotation k8s") for line in notes] == [True] * bool(path)


DIFFERENT = "spec.roles.worker.pool: the roles have different schedulers (default-scheduler and mine)"


def scheduled(name: str, **spec: Any) -> dict[str, Any]:
    """A job whose pods name a scheduler."""
    return manifest(template={"spec": {"schedulerName": name}}, **spec)


ONE_ROLE = {"worker": {"replicas": 2, "template": {"spec": {"schedulerName": "volcano"}}}, "master": {"replicas": 1}}
OF_ROLE = (
    "spec.roles.worker.template.spec.schedulerName: the roles have different schedulers (default-scheduler and volcano)"
)


@table(
    ("unknown", [scheduled("kai-scheduler")], "spec.template.spec.schedulerName: pods of scheduler kai-scheduler are"),
    ("different ones", [manifest(roles=ONE_ROLE)], OF_ROLE),
    ("of the pool", [pool(schedulerName="mine"), manifest(pool="rdma")], "spec.pool: pods of scheduler mine are"),
    ("of the pool of a role", [pool(schedulerName="mine"), of_role("rdma")], DIFFERENT),
    ("Volcano's", [scheduled("volcano")], ""),
    ("of scheduler-plugins", [scheduled("scheduler-plugins-scheduler")], ""),
    ("the default one", [scheduled("default-scheduler")], ""),
    ("none named", [manifest()], ""),
    ("intended", [scheduled("mine", scheduling={"gang": "None"})], ""),
    ("with a kind of PodGroup", [scheduled("mine", scheduling={"gang": "Coscheduling"})], ""),
    ("of a single pod", [scheduled("mine", roles={"worker": 1})], ""),
    ("of a pool that is elsewhere", [scheduled("mine", pool="rdma")], ""),
)
def test_a_scheduler_without_gang_scheduling_is_a_warning(case):
    documents, beginning = case
    result = allranks("validate", "-", stdin=text(*documents))
    assert result.exit_code == 0, result.stderr
    warnings = [line for line in result.stderr.splitlines() if "schedul" in line and line.startswith("warning")]
    assert [line.startswith(f"warning: stdin: job: {beginning}") for line in warnings] == [True] * bool(beginning)


def test_render_prints_warnings_beside_the_objects():
    result = allranks("render", "-", stdin=text(manifest(template=SIDECAR)))
    assert (result.exit_code, result.stderr.startswith("warning: stdin: job: ")) == (0, True)
    assert len(list(yaml.safe_load_all(result.stdout))) == 3


def test_run_prints_warnings_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    template = {"spec": {"containers": [{"name": "train", "image": "x", "command": ["true"]}]}}
    document = manifest(template=template, command=["true"], roles={"worker": 1})
    result = allranks("run", "-", stdin=text(document))
    assert result.exit_code == 0, result.output
    assert f"warning: stdin: job: spec.template.spec.containers[0].name: {SIDECAR_WARNING}\n" in result.stdout
    assert "warning" not in allranks("run", "-", "--quiet", stdin=text(document)).stdout


# --- output for programs ---------------------------------------------------------------------------------------------


def test_json_has_the_place_of_every_problem():
    bad = manifest(name="bad", template={"spec": {"gpuType": "h100", "nodeSelectr": {}}})
    result = allranks("validate", "-", "-o", "json", stdin=text(manifest(template=SIDECAR), bad))
    data = json.loads(result.stdout)
    assert (result.exit_code, data["valid"]) == (2, False)
    parts = ("document", "name", "path", "severity")
    assert sorted(tuple(problem[part] for part in parts) for problem in data["problems"]) == [
        (1, "job", "spec.template.spec.containers[0].name", "warning"),
        (2, "bad", "spec.template.spec.gpuType", "warning"),
        (2, "bad", "spec.template.spec.nodeSelectr", "error"),
    ]
    assert {problem["file"] for problem in data["problems"]} == {"stdin"}


def test_json_has_the_line_of_what_is_not_yaml():
    result = allranks("validate", "-", "-o", "json", stdin="a: 1\nb: [\n")
    [problem] = json.loads(result.stdout)["problems"]
    assert (problem["file"], problem["line"], problem["column"], problem["path"]) == ("stdin", 3, 1, "")
    assert "\n" not in problem["message"]


def test_json_has_problems_of_set():
    result = allranks("validate", "-", "-o", "json", "--set", "image", stdin=text(manifest()))
    [problem] = json.loads(result.stdout)["problems"]
    assert (problem["file"], problem["severity"]) == ("--set image", "error")


# --- layers of a template --------------------------------------------------------------------------------------------


def problems(**spec: Any) -> list[tuple[str, str]]:
    try:
        load_documents([("-", manifest(**spec))])
    except InvalidManifest as error:
        return [(path.removeprefix("-: job: "), message) for path, message in error.problems]
    return []


def probe(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "livenessProbe": fields}]}}


def test_a_required_field_may_be_in_another_layer():
    job, role = probe(httpGet={"port": 80}), probe(httpGet={"path": "/healthy"})
    assert problems(template=job, roles={"worker": {"template": role}}) == []


def test_a_required_field_must_be_in_some_layer_of_every_role():
    incomplete = probe(httpGet={"path": "/healthy"})
    roles = {"master": {"template": probe(httpGet={"port": 80})}, "worker": {}}
    path = "spec.template.spec.containers[0].livenessProbe.httpGet.port"
    assert problems(template=incomplete, roles=roles) == [(path, "is required")]


def test_a_mount_of_a_role_may_have_its_volume_in_the_job():
    mounting = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"name": "d", "mountPath": "/d"}]}]}}
    roles = {"worker": {"template": mounting}}
    assert problems(template={"spec": {"volumes": [{"name": "d"}]}}, roles=roles) == []
    [(path, _)] = problems(roles=roles)
    assert path == "spec.roles.worker.template.spec.containers[0].volumeMounts[0].name"


def test_the_volume_of_a_mount_may_be_in_the_pool():
    mounting = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"name": "d", "mountPath": "/d"}]}]}}
    meta = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingPool", "metadata": {"name": "gpu"}}
    pool = meta | {"spec": {"template": {"spec": {"volumes": [{"name": "d", "emptyDir": {}}]}}}}
    job = manifest(pool="gpu", template=mounting)
    assert load_documents([("-", job), ("-", pool)]).findings == ()
    assert [severity for severity, _ in load_documents([("-", job)]).notes()] == ["warning"]


def test_what_is_missing_in_a_role_may_be_in_its_own_pool():
    mounting = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [{"name": "d", "mountPath": "/d"}]}]}}
    meta = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingPool"}
    with_volume = {"spec": {"template": {"spec": {"volumes": [{"name": "d", "emptyDir": {}}]}}}}
    gpu, cpu = meta | {"metadata": {"name": "gpu"}} | with_volume, meta | {"metadata": {"name": "cpu"}, "spec": {}}
    job = manifest(
        pool="gpu", roles={"master": {"template": mounting}, "worker": {"pool": "cpu", "template": mounting}}
    )
    with pytest.raises(InvalidManifest, match=r"spec\.roles\.worker\.template\S+: no volume is named d") as raised:
        load_documents([("-", job), ("-", gpu), ("-", cpu)])
    assert "spec.roles.master" not in str(raised.value)
    [(severity, text)] = [note for note in load_documents([("-", job), ("-", gpu)]).notes() if "volume" in note[1]]
    assert (severity, "unless pool cpu has it" in text) == ("warning", True)


def test_a_pool_that_no_role_uses_is_a_warning():
    [(severity, text)] = [note for note in load_documents([("-", of_one_role())]).notes() if "pool" in note[1]]
    assert (severity, text) == ("warning", "-: job: spec.pool: no role uses it: each role names a pool of its own")


def of_one_role() -> dict[str, Any]:
    return manifest(pool="gpu", roles={"worker": {"replicas": 1, "pool": "cpu"}})


def test_a_pool_is_checked():
    meta = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingPool", "metadata": {"name": "gpu"}}
    spec = {
        "sharedMemory": "64GB",
        "rdma": {"rdma/hca": "one"},
        "inputCache": {"sizeLimit": "2TB"},
        "template": {"spec": {"nodeSelectr": {}}},
    }
    with pytest.raises(InvalidManifest) as raised:
        load_documents([("-", meta | {"spec": spec})])
    assert raised.value.problems == [
        ("-: gpu: spec.inputCache.sizeLimit", "'2TB' is not a quantity: write it as 500Gi or 2T, for example"),
        ("-: gpu: spec.template.spec.nodeSelectr", "unknown field, did you mean nodeSelector?"),
        (
            "-: gpu: spec.sharedMemory",
            "'64GB' is not a quantity: write a number with a unit, such as 64Gi or 500M",
        ),
        ("-: gpu: spec.rdma[rdma/hca]", "'one' is not a quantity: write a whole number, such as 1"),
    ]


# --- odd values ------------------------------------------------------------------------------------------------------

FULL = manifest(
    env=[{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    resources={"limits": {"cpu": "1", "nvidia.com/gpu": 1}, "requests": {"cpu": 1}},
    checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "a"}}},
    roles={"worker": {"replicas": 2, "template": probe(httpGet={"port": 80})}},
    template={
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                    }
                }
            },
            "volumes": [{"name": "d", "projected": {"sources": [{"configMap": {"name": "a"}}]}}],
            "containers": [
                {
                    "name": "trainer",
                    "ports": [{"containerPort": 80, "name": "http"}],
                    "envFrom": [{"secretRef": {"name": "s"}}],
                    "volumeMounts": [{"name": "d", "mountPath": "/d"}],
                    "livenessProbe": {"httpGet": {"port": "http"}},
                },
                {"name": "logger", "image": "x", "resources": {"claims": [{"name": "a"}]}},
            ],
        },
    },
)
ODD = [None, True, -1, 1.5, "", "x", "4GB", "MASTER_PORT", [], {}, ["x"], [["x"]], {"x": "y"}, [{}], [None]]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.mark.parametrize("seed", range(3))
def test_odd_values_have_messages_and_no_traceback(seed):
    source = random.Random(seed)
    every = list(places(FULL))
    for _ in range(40):
        document = copy.deepcopy(FULL)
        for path in source.sample(every, 2):
            here = document
            with contextlib.suppress(TypeError, KeyError, IndexError):  # the first value may have removed the place
                for step in path[:-1]:
                    here = here[step]
                here[path[-1]] = copy.deepcopy(source.choice(ODD))
        with contextlib.suppress(InvalidManifest):
            load_documents([("-", document)])


# --- tables ----------------------------------------------------------------------------------------------------------


def test_the_fields_that_belong_under_a_template_are_those_of_kubernetes():
    own = {SpecBase.model_fields[name].alias or name for name in SpecBase.model_fields} | {"name", "restartPolicy"}
    types = schema.kubernetes()
    assert set(types.fields("PodSpec")) - own == POD_FIELDS - own
    container = set(types.fields("Container")) - set(types.fields("PodSpec")) - own
    assert container == CONTAINER_FIELDS


def test_validation_does_not_load_the_types_of_kubernetes():
    """The operator uses api.validation; only commands read the file."""
    import subprocess
    import sys

    program = "import allranks.operator.app, sys; print([name for name in sys.modules if 'checks' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"
