"""Where things are, and what needs what: rules of the repository that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "operator"
HELPERS = sorted((SOURCE / "allranks" / "inpod").glob("[!_]*.py"))
MAX_LINES = 400


def test_operator_is_only_a_source_root():
    """With an `__init__.py` in it, `operator/` would shadow the standard library's module of that name."""
    assert not (SOURCE / "__init__.py").exists()


def test_the_standard_librarys_operator_is_found_from_the_repository():
    done = subprocess.run(
        [sys.executable, "-c", "import operator; operator.itemgetter"], cwd=ROOT, timeout=30, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_no_module_is_too_long_to_be_read_at_once():
    lengths = {
        str(path.relative_to(ROOT)): path.read_text().count("\n")
        for path in SOURCE.rglob("*.py")
        if "egg-info" not in str(path)
    }
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_every_module_says_why_it_exists():
    silent = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if tree.body and not ast.get_docstring(tree):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


def imported_by(statement: str) -> set[str]:
    """Top-level names of all modules that a fresh interpreter has after `statement`."""
    program = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


HEAVY = {"pydantic", "pydantic_core", "yaml", "rich", "cel", "asyncio", "kopf", "kubernetes", "torch", "tensorflow"}


@pytest.mark.parametrize(
    "statement",
    [
        "import allranks",
        "import allranks.cli.main",
        "from allranks.cli.main import cli\ntry: cli(['--help'])\nexcept SystemExit: pass",
        "from allranks.cli.main import cli\ntry: cli(['--version'])\nexcept SystemExit: pass",
    ],
    ids=["import allranks", "import allranks.cli.main", "allranks --help", "allranks --version"],
)
def test_the_command_line_is_instant_because_it_imports_nothing_heavy(statement):
    assert imported_by(statement) & HEAVY == set()


def test_validating_imports_no_framework_and_no_client():
    statement = "import allranks.cli.manifests, allranks.cli.render, allranks.core.reconcile"
    assert imported_by(statement) & {"torch", "tensorflow", "horovod", "kubernetes", "kopf", "rich", "numpy"} == set()


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower() for requirement in requirements}


def test_installing_allranks_needs_no_framework_and_no_client():
    """The operator's image is made of these."""
    assert names(project()["dependencies"]) == {"pydantic", "pyyaml", "click", "common-expression-language"}


def test_no_extra_but_those_of_development_needs_a_framework():
    frameworks = {"torch", "tensorflow", "tensorflow-cpu", "horovod"}
    for extra, requirements in project().get("optional-dependencies", {}).items():
        assert extra == "dev" or not names(requirements) & frameworks, extra


def test_the_official_client_is_the_command_lines_alone():
    """It doubles the operator's memory."""
    extras = project()["optional-dependencies"]
    assert [extra for extra, requirements in extras.items() if "kubernetes" in names(requirements)] == ["cli"]


def test_help_of_a_command_on_a_cluster_imports_no_client():
    statement = "from allranks.cli.main import cli\ntry: cli(['describe', '--help'])\nexcept SystemExit: pass"
    assert imported_by(statement) & {"kubernetes", "aiohttp", "kopf", "rich", "msgspec"} == set()


def test_every_requirement_has_an_upper_bound():
    for requirement in project()["dependencies"]:
        assert "<" in requirement, requirement


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").split(".")[0] if not node.level else ".")
    return found


@pytest.mark.parametrize("helper", HELPERS, ids=lambda path: path.name)
def test_an_in_pod_helper_needs_only_the_standard_library(helper):
    """It runs in images that hold nothing of ours. Horovod's helper needs Horovod, and only in a function: it can say
    so where there is none."""
    tree = ast.parse(helper.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {name for function in functions for name in imports(function)}
    allowed = {"horovod"} if helper.name == "horovod_gloo.py" and "horovod" in inside else set()
    assert imports(tree) - set(sys.stdlib_module_names) - allowed == set()
    top = ast.Module([node for node in tree.body if not isinstance(node, ast.FunctionDef)], [])
    assert "horovod" not in imports(top)


@pytest.mark.parametrize("helper", HELPERS, ids=lambda path: path.name)
def test_an_in_pod_helper_runs_on_older_Pythons_too(helper):
    """Users' images have Python 3.9 and later."""
    ast.parse(helper.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize(
    "file", ["README.md", "LICENSE", "pyproject.toml", "Makefile", "crds/distributedtrainings.yaml"]
)
def test_the_top_level_has_what_the_design_says(file):
    assert (ROOT / file).is_file()
