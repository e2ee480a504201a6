"""The code and the packages of a job: what its pods get, and which combinations are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import CodeStatus, Status
from allranks.api.validation import parse
from allranks.core import transitions
from allranks.core.objects import pods
from allranks.errors import InvalidManifest
from support.builders import CLUSTER, NOW, job, manifest, table

SHA = "0123456789abcdef" * 4
STORED = {"configMap": "allranks-code-x", "sha256": SHA}


def pod(**fields: Any) -> dict[str, Any]:
    return pods.objects(job(**fields), Status(), CLUSTER).pods[0]


def trainer(made: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in made["spec"]["containers"] if c["name"] == "trainer")


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def volume(made: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((one for one in made["spec"]["volumes"] if one["name"] == name), None)


def mount(container: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((one for one in container["volumeMounts"] if one["name"] == name), None)


def test_the_helper_unpacks_the_config_map_where_the_program_starts() -> None:
    made = pod(code=STORED)
    [helper] = made["spec"]["initContainers"]
    archive = ["--code", "/etc/allranks-code/code.tar.gz", "--sha256", SHA, "--to", "/workspace"]
    assert helper["command"] == ["allranks", "inject", "/allranks", *archive]
    assert mount(helper, "allranks-code") == {"name": "allranks-code", "mountPath": "/workspace"}
    assert volume(made, "allranks-code-archive") == {
        "name": "allranks-code-archive",
        "configMap": {"name": "allranks-code-x"},
    }
    program = trainer(made)
    assert mount(program, "allranks-code") == {"name": "allranks-code", "mountPath": "/workspace"}
    assert mount(program, "allranks-code-archive") is None
    assert (program["workingDir"], variables(program)["PYTHONPATH"]) == ("/workspace", "/workspace:/allranks/python")


def test_a_claim_and_an_image_are_mounted_read_only_and_need_no_helper() -> None:
    claimed, pulled = pod(code={"claim": "me", "subPath": "a/b"}), pod(code={"image": "r/code:1", "path": "/app"})
    assert volume(claimed, "allranks-code")["persistentVolumeClaim"] == {"claimName": "me"}  # type: ignore[index]
    assert mount(trainer(claimed), "allranks-code") == {
        "name": "allranks-code",
        "mountPath": "/workspace",
        "readOnly": True,
        "subPath": "a/b",
    }
    assert volume(pulled, "allranks-code")["image"] == {"reference": "r/code:1"}  # type: ignore[index]
    assert trainer(pulled)["workingDir"] == "/app"
    assert "initContainers" not in claimed["spec"]
    assert "initContainers" not in pulled["spec"]


def test_the_users_working_directory_and_pythonpath_are_kept() -> None:
    made = trainer(
        pod(code=STORED, workingDir="/workspace/src", env=[{"name": "PYTHONPATH", "value": "/opt/own"}, {"name": "A"}])
    )
    assert made["workingDir"] == "/workspace/src"
    assert variables(made)["PYTHONPATH"] == "/workspace:/opt/own:/allranks/python"
    own = {"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}
    assert own in trainer(pod(code=STORED, env=[own]))["env"]


def test_packages_are_installed_in_the_programs_image_with_its_variables_and_volumes() -> None:
    container = {"name": "trainer", "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}
    template = {"spec": {"containers": [container], "volumes": [{"name": "cache", "emptyDir": {}}]}}
    env = [{"name": "PIP_CACHE_DIR", "value": "/cache"}]
    made = pod(packages=["timm==1.0"], env=env, template=template, command=["/opt/bin/python3.11", "train.py"])
    helper, installs = made["spec"]["initContainers"]
    assert helper["command"] == ["allranks", "inject", "/allranks"]
    assert installs["name"] == "allranks-packages"
    assert installs["image"] == trainer(made)["image"]
    program = ["/opt/bin/python3.11", "/allranks/install_packages.py", "/allranks-packages", "timm==1.0"]
    assert installs["command"] == program
    assert variables(installs)["PIP_CACHE_DIR"] == "/cache"
    assert mount(installs, "cache") == {"name": "cache", "mountPath": "/cache"}
    assert mount(installs, "allranks-packages") == {"name": "allranks-packages", "mountPath": "/allranks-packages"}
    assert mount(trainer(made), "allranks-packages")["readOnly"]  # type: ignore[index]
    assert variables(trainer(made))["PYTHONPATH"] == "/allranks-packages/site:/allranks/python"
    assert "workingDir" not in trainer(made)


def test_every_role_has_the_code_also_the_workers_of_mpi() -> None:
    made = pods.objects(job("mpi", {"launcher": 1, "worker": 2}, code=STORED), Status(), CLUSTER)
    assert {mount(trainer(one), "allranks-code")["mountPath"] for one in made.pods} == {"/workspace"}  # type: ignore[index]
    [launcher] = [one for one in made.pods if one["metadata"]["labels"]["allranks.dev/role"] == "launcher"]
    program = trainer(launcher)
    others = {variable["name"]: str(variable) for variable in program["env"] if variable["name"] != "PYTHONPATH"}
    assert "PYTHONPATH" in str((program["command"], others))  # mpirun passes it on


def test_a_local_run_has_no_init_containers_for_code_and_packages() -> None:
    local = replace(CLUSTER, local=True)
    [made, *_] = pods.objects(job(code=STORED, packages=["x"]), Status(), local).pods
    assert "initContainers" not in made["spec"]
    assert mount(trainer(made), "allranks-code") is not None


def test_the_status_names_the_code_of_the_attempt() -> None:
    shipped = job(code={**STORED, "commit": "abcdef0", "dirty": True})
    status = transitions.begin(shipped, Status(), NOW)
    assert status.code == CodeStatus(config_map=STORED["configMap"], sha256=SHA, commit="abcdef0", dirty=True, time=NOW)
    assert transitions.begin(job(code={"claim": "me"}), Status(), NOW).code is None


@table(
    ("nothing", {}, "spec.code: set exactly one of configMap, claim and image"),
    ("two", {"claim": "a", "image": "b"}, "spec.code: set exactly one of configMap, claim and image"),
    ("no hash", {"configMap": "a"}, "spec.code.sha256: configMap and sha256 belong together: let allranks submit"),
    ("a bad hash", {"configMap": "a", "sha256": "x"}, "spec.code.sha256: "),
    ("a folder of a config map", {**STORED, "subPath": "a"}, "spec.code.subPath: is for a claim or an image"),
    ("a folder outside", {"claim": "a", "subPath": "a/../.."}, "spec.code.subPath: must be a relative path that"),
    ("an absolute folder", {"claim": "a", "subPath": "/a"}, "spec.code.subPath: must be a relative path that"),
    ("the root", {"claim": "a", "path": "/"}, "spec.code.path: must be a directory below /"),
    ("dots", {"claim": "a", "path": "/a/../etc"}, "spec.code.path: must be a directory below /"),
    ("a relative path", {"claim": "a", "path": "app"}, "spec.code.path: must be an absolute path"),
)
def test_bad_code_is_refused(case: tuple[dict[str, Any], str]) -> None:
    code, message = case
    with pytest.raises(InvalidManifest) as error:
        parse(manifest(code=code))
    assert message in str(error.value)


@table(
    ("an option", ["--index-url=x"], "spec.packages: must be requirements such as timm==1.0"),
    ("an empty list", [], "spec.packages: must have at least 1 item"),
)
def test_bad_packages_are_refused(case: tuple[list[str], str]) -> None:
    packages, message = case
    with pytest.raises(InvalidManifest) as error:
        parse(manifest(packages=packages))
    assert message in str(error.value)


@table(
    ("the checkpoints", {"checkpoint": {"claim": "runs"}, "code": {"claim": "me", "path": "/checkpoints/"}}),
    ("the helper", {"code": {**STORED, "path": "/allranks"}}),
    ("the system", {"code": {**STORED, "path": "/usr"}}),
)
def test_code_at_the_path_of_another_volume_is_refused(case: tuple[dict[str, Any]]) -> None:
    [fields] = case
    path = fields["code"]["path"].rstrip("/")
    message = "is taken by another volume or by the system: choose another directory"
    assert any(
        place == "spec.code.path" and text.startswith(path) and text.endswith(message)
        for place, text in pods.problems(job(**fields))
    )
