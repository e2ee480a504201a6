"""FRAMEWORKS is the only list of frameworks: every other one is derived from it, or compared with it here."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from bench import train_runs

from allranks.api.job import ROLES, Spec
from allranks.frameworks import FRAMEWORKS
from allranks.local.environment import machine_environment
from model.properties import jobs
from support.images import IMAGES

ROOT = Path(__file__).parents[3]


def shell_list(script: str) -> list[str]:
    """The words of the array `all` in a script under tools/."""
    [words] = re.findall(r"^all=\((.*?)\)", (ROOT / "tools" / script).read_text(), re.MULTILINE)
    return words.split()


def test_each_framework_is_one_file_of_its_name():
    files = {path.stem for path in (ROOT / "operator" / "allranks" / "frameworks").glob("*.py")}
    shared = {"base", "command_line", "hints", "mpirun", "rank_report", "torchrun_log"}
    assert files - {"__init__", *shared} == set(FRAMEWORKS)


def test_no_other_module_names_a_framework():
    """Except what reads the kinds of other operators and the former spelling, and what runs inside pods."""
    package = ROOT / "operator" / "allranks"
    named = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in FRAMEWORKS
    }
    allowed = ("frameworks/", "inpod/", "authoring/convert/")
    assert {path for path in named if not path.startswith(allowed)} == set()


def test_the_page_on_adding_a_framework_lists_the_files_of_jax():
    page = (ROOT / "docs" / "dev" / "frameworks.md").read_text()
    listed = {path for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for path in re.findall("`(.*?)`", row)}
    assert [path for path in listed if "jax" not in (ROOT / path).read_text().lower()] == []
    folders = ("bench", "examples", "images", "operator", "tests/frameworks", "tests/model", "tests/unit", "train")
    found = (path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    ours = {path.as_posix() for path in found if "jax" in path.as_posix() and path.suffix != ".pyc"}
    assert {path for path in ours if "/convert/" not in path} == {path for path in listed if "jax" in path}
    lines = len((ROOT / "operator" / "allranks" / "frameworks" / "jax.py").read_text().splitlines())
    assert f"**the framework**: {lines} lines" in page


def test_the_resource_has_the_options_and_roles_of_every_framework():
    assert set(FRAMEWORKS) <= set(Spec.model_fields)
    assert set(ROLES) == {role for framework in FRAMEWORKS.values() for role in framework.roles}


def test_the_script_for_frameworks_installs_every_framework():
    assert shell_list("frameworks.sh") == IMAGES
    script = (ROOT / "tools" / "frameworks.sh").read_text()
    assert set(re.findall(r"^install_(\w+)\(\)", script, re.MULTILINE)) >= set(IMAGES)
    [usage] = re.findall(r"^usage: tools/frameworks.sh (.*)$", script, re.MULTILINE)
    assert " ".join(usage.split()) == " ".join(f"[{name}]" for name in [*IMAGES, "libraries"])


def test_the_script_for_images_builds_one_image_for_each_framework_and_the_operators():
    assert shell_list("images.sh") == ["operator", "ui", "data", "archiver", *IMAGES]
    script = (ROOT / "tools" / "images.sh").read_text()
    [usage] = re.findall(r"^usage: tools/images.sh \[options\] (.*?)\s+\[base\]$", script, re.MULTILINE | re.DOTALL)
    names = ["operator", "ui", "data", "archiver", *IMAGES, "libraries"]  # the last one only by its name
    assert " ".join(usage.split()) == " ".join(f"[{name}]" for name in names)
    assert {path.parent.name for path in ROOT.glob("images/*/Dockerfile")} == set(names)


def test_a_release_has_the_images_that_are_built_by_default():
    [names] = re.findall(r"^IMAGES = \((.*)\)$", (ROOT / "tools" / "dist.py").read_text(), re.MULTILINE)
    assert re.findall(r'"(.*?)"', names) == shell_list("images.sh")


def test_properties_and_benchmarks_cover_every_framework():
    assert set(jobs._ROLES) == set(FRAMEWORKS)
    measured = [framework.name for framework in train_runs.FRAMEWORKS]
    assert measured == [name for name in FRAMEWORKS if name not in train_runs.UNMEASURED]


def test_the_keywords_of_the_package_and_of_the_chart_name_every_framework():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((ROOT / "charts" / "allranks" / "Chart.yaml").read_text())
    assert set(FRAMEWORKS) <= set(project["keywords"])
    assert set(FRAMEWORKS) <= set(chart["keywords"])


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_local_run_does_not_inherit_a_frameworks_wiring(name):
    framework = FRAMEWORKS[name]
    launcher = [variable + "X" if variable.endswith("_") else variable for variable in framework.launcher_env]
    inherited = dict.fromkeys([*framework.reserved_env, *launcher], "1")
    assert set(machine_environment({**inherited, "HOME": "/home/me"})) == {"HOME", "PATH"}
