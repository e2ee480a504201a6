"""Install without Helm: the kustomization of a release, the Application of Argo CD, the plugin of kubectl."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import environment
from support.controlplane import ControlPlane
from support.helm import CHART, ROOT, Helm, built
from support.live import wait_until_served

pytestmark = pytest.mark.nightly

REGISTRY = "registry.example.com/me/operator"


@pytest.fixture(scope="module")
def bare(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without CRDs."""
    cluster = ControlPlane(programs, tmp_path_factory.mktemp("paths"))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def kustomization(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked kustomization of the working tree, as tools/dist.py writes it, with another registry."""
    built("helm")
    program = """
import pathlib, sys
sys.path.insert(0, "tools")
from dist import files, source
files.manifests(source.ROOT, pathlib.Path(sys.argv[1]), source.head())
"""
    place = tmp_path_factory.mktemp("kustomize")
    subprocess.run([sys.executable, "-c", program, place], cwd=ROOT, env=environment.USERS, check=True, timeout=300)
    [archive] = place.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    folder = place / archive.name.removesuffix(".tar.gz")
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("newName: ghcr.io/allranks/operator", f"newName: {REGISTRY}"))
    return folder


def ids(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects if each}


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def test_kubectl_applies_the_kustomization_of_a_release_and_applies_it_again_without_a_change(
    bare: ControlPlane, kustomization: Path, tmp_path: Path
) -> None:
    apply = ("apply", "--server-side", "-k", str(kustomization))
    done = bare.kubectl(*apply)
    assert done.returncode == 0, done.stderr
    wait_until_served(bare.api)
    assert len(bare.api.list("CustomResourceDefinition")) == 3
    objects = documents(bare.kubectl("kustomize", str(kustomization)).stdout)
    chart = documents(
        Helm(built("helm"), tmp_path)("template", "allranks", str(CHART), "--no-hooks", "-n", "allranks-system")
    )
    assert ids(objects) == ids(chart) | {("Namespace", "allranks-system")}
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    [container] = [c for c in deployment["spec"]["template"]["spec"]["containers"] if c["name"] == "operator"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert container["image"].startswith(f"{REGISTRY}:")
    assert variables["ALLRANKS_HELPER_IMAGE"] == container["image"], "pods of jobs get the helper from the same image"
    managers = {each["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") for each in objects}
    assert managers == {"kustomize"}
    diff = bare.kubectl("diff", "--server-side", "-k", str(kustomization))
    assert (diff.returncode, diff.stdout) == (0, ""), diff.stderr


def test_the_application_of_argo_cd_renders_objects_that_the_api_server_accepts(
    bare: ControlPlane, tmp_path: Path
) -> None:
    """As Argo CD does: `helm template` with the values of the Application, and a server-side apply."""
    application = yaml.safe_load((CHART.parent / "argo-cd.yaml").read_text())
    spec, chart = application["spec"], yaml.safe_load((CHART / "Chart.yaml").read_text())
    source, namespace = spec["source"], spec["destination"]["namespace"]
    assert (source["chart"], source["targetRevision"]) == (chart["name"], chart["version"])
    assert {"CreateNamespace=true", "ServerSideApply=true"} <= set(spec["syncPolicy"]["syncOptions"])
    helm, options = Helm(built("helm"), tmp_path), ("--namespace", namespace, "--no-hooks")
    text = helm("template", source["helm"]["releaseName"], str(CHART), *options, values=source["helm"]["valuesObject"])
    assert f'image: "{source["helm"]["valuesObject"]["image"]["repository"]}:{chart["appVersion"]}"' in text
    bare.kubectl("create", "namespace", namespace)
    done = bare.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", input=text)
    assert done.returncode == 0, done.stderr


def test_kubectl_finds_its_plugin_on_path(bare: ControlPlane) -> None:
    """The entry point of the wheel is all that a plugin needs."""
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(bare.folder)}
    for words, output in (
        (("plugin", "list"), "/kubectl-allranks\n"),
        (("allranks", "get", "--help"), "Usage: kubectl allranks get "),
    ):
        command = [str(bare.programs / "kubectl"), *words]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
        assert (done.returncode, output in done.stdout) == (0, True), done.stdout + done.stderr
