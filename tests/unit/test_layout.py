"""Rules for files and imports of the repository that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from allranks.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "operator"
HELPERS = sorted((SOURCE / "allranks" / "inpod").rglob("[!_]*.py"))
REPORT = sorted((SOURCE / "allranks" / "report").glob("*.py"))
INSIDE_PODS = [*HELPERS, *REPORT, SOURCE / "allranks" / "__init__.py", SOURCE / "allranks" / "version.py"]
FRAMEWORKS = {
    "pytorch.py": {"torch"},
    "keras.py": {"tensorflow"},
    "lightning.py": {"lightning", "pytorch_lightning"},
    "ray.py": {"ray"},
    "transformers.py": {"transformers"},
    "jax.py": {"jax", "numpy"},  # JAX requires numpy
    "mlflow.py": {"mlflow"},
}


def test_operator_is_only_a_source_root():
    """An `__init__.py` in `operator/` would make it shadow the standard library's module of that name."""
    assert not (SOURCE / "__init__.py").exists()


def test_import_operator_in_the_repository_finds_the_standard_library():
    done = subprocess.run(
        [sys.executable, "-c", "import operator; operator.itemgetter"], cwd=ROOT, timeout=300, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_every_module_has_a_docstring():
    without = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if tree.body and not ast.get_docstring(tree):
            without.append(str(path.relative_to(ROOT)))
    assert without == []


def imported_by(statement: str) -> set[str]:
    """Top-level names of all modules that a new interpreter has loaded after `statement`."""
    program = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
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
def test_the_command_line_starts_fast_because_it_imports_nothing_heavy(statement):
    assert imported_by(statement) & HEAVY == set()


def test_the_help_of_each_command_imports_no_client_and_no_renderer():
    modules = {target.partition(":")[0] for target, _ in COMMANDS.values()}
    assert imported_by(f"import {', '.join(sorted(modules))}") & {"msgspec", "aiohttp", "rich", "jinja2"} == set()


def test_validating_imports_no_framework_and_no_client():
    statement = "import allranks.authoring.manifests, allranks.cli.commands.render, allranks.core.reconcile"
    assert imported_by(statement) & {"torch", "tensorflow", "horovod", "kubernetes", "kopf", "rich", "numpy"} == set()


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower() for requirement in requirements}


def test_installing_allranks_needs_no_framework_and_no_client():
    """These are installed in the operator's image."""
    assert names(project()["dependencies"]) == {"pydantic", "pyyaml", "click", "common-expression-language"}


def test_no_extra_but_those_of_development_needs_a_framework():
    frameworks = {"torch", "tensorflow", "tensorflow-cpu", "horovod"}
    for extra, requirements in project().get("optional-dependencies", {}).items():
        assert extra == "dev" or not names(requirements) & frameworks, extra


def test_only_the_extra_for_logins_needs_the_official_client():
    """It would double the operator's memory, and triple the size of the command line."""
    extras = project()["optional-dependencies"]
    assert [extra for extra, requirements in extras.items() if "kubernetes" in names(requirements)] == ["login"]


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
    """It runs in the user's image, beside the other helpers. Those for Horovod and Ray import it inside functions, so
    that they can report if it is missing."""
    tree = ast.parse(helper.read_text())
    allowed = {"horovod"} if helper.name.startswith("horovod_") else set()
    if helper.name in ("ray_nodes.py", "ray_idle.py"):
        allowed = {"ray"}
    startup = ("sitecustomize.py", "allranks_automatic_reports.py")
    reporting = ("watch.py", "supervisor.py", "order_channel.py", "job_code.py", "set_aside.py")
    if helper.name in (*reporting, *startup):
        allowed = {"allranks"}  # the report library, which is copied beside it
    if helper.name == "call_function.py":
        allowed = {"cloudpickle"}  # inside a function, which works without it
    if helper.name == "plain_value.py":
        allowed = {"numpy"}  # inside a function, for an array that the program has made
    if helper.name == "preflight.py":
        allowed = {"torch", "patterns"}  # inside functions: torch may be missing, and the other is copied
    beside = {other.stem for other in HELPERS}
    assert imports(tree) - set(sys.stdlib_module_names) - allowed - beside == set()
    top = ast.Module([node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.Try))], [])
    assert not {"horovod", "ray"} & imports(top)


@pytest.mark.parametrize("module", REPORT, ids=lambda path: path.name)
def test_the_report_library_needs_only_the_standard_library(module):
    """It runs in the user's image. The module of a framework may import that framework."""
    startup = {helper.stem for helper in HELPERS if helper.parent.name == "startup"}  # it may be absent
    allowed = FRAMEWORKS.get(module.name, set()) | {"allranks"} | startup
    tree = ast.parse(module.read_text())
    assert imports(tree) - set(sys.stdlib_module_names) - allowed == set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("allranks"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            assert all(name.startswith("allranks.report") for name in names)


def test_reporting_imports_nothing_heavy():
    statement = "from allranks.report import report\nreport(step=1)"
    assert imported_by(statement) & (HEAVY | {"http", "email", "ssl", "socket", "threading", "logging"}) == set()


@pytest.mark.parametrize("module", INSIDE_PODS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_code_inside_pods_runs_on_Python_3_9(module):
    """Users' images have Python 3.9 or later. The parser checks the syntax, the rest checks newer functions."""
    tree = ast.parse(module.read_text(), feature_version=(3, 9))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words = {keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords}
    assert not names & {"aiter", "anext", "ExceptionGroup", "BaseExceptionGroup"}
    assert not words & {"slots", "kw_only"}
    assert not [node for node in ast.walk(tree) if is_called(node, "zip") and node.keywords]  # strict=
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert future or not [node for node in ast.walk(tree) if isinstance(node, (ast.AnnAssign, ast.arg))]


def is_called(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


@pytest.mark.parametrize(
    "file", ["README.md", "LICENSE", "pyproject.toml", "Makefile", "crds/distributedtrainings.yaml"]
)
def test_the_top_level_has_the_file(file):
    assert (ROOT / file).is_file()


def test_the_readme_has_at_most_130_lines():
    assert (ROOT / "README.md").read_text().count("\n") <= 130
