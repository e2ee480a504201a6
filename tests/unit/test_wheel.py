"""The wheel holds the package and nothing else, and works where only it and its requirements are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support import environment
from support.some_api import SomeApi

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "penguins-pytorch.yaml"


def clean() -> dict[str, str]:
    """The environment without PYTHONPATH, which would make pip take the repository for an installed allranks."""
    return {name: value for name, value in environment.USERS.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "-w", str(out), "-q"]
    subprocess.run([*command, "--disable-pip-version-check", "--no-input"], check=True, timeout=300, env=clean())
    [built] = out.glob("allranks-*.whl")
    return built


def test_the_wheel_holds_the_files_of_the_package_and_no_others(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in names if ".dist-info/" not in name}
    source = ROOT / "operator"
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "allranks"],
        cwd=source,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout.splitlines()
    assert package == {name for name in tracked if (source / name).exists()}


def test_the_wheel_holds_no_code_of_tests(wheel):
    words = ("test", "simulator", "conftest", "support/")
    assert [name for name in zipfile.ZipFile(wheel).namelist() if any(word in name for word in words)] == []


def install(wheel: Path, venv: Path) -> Path:
    """The `bin` of a new virtual environment that holds the wheel and what it requires, without extras."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=300, env=clean())
    command = [venv / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*command, str(wheel)], check=True, timeout=300, env=clean())
    return venv / "bin"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("venv"))


def allranks(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs in an empty folder and environment, so that the repository is not importable."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    command = [str(installed / "allranks"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--version"], "allranks, version "),
        (["validate", str(EXAMPLE)], "penguins-pytorch is valid: pytorch, 3 pods"),
        (["render", str(EXAMPLE)], "kind: Service"),
        (["run", "--help"], "Usage: allranks run"),
        (["run", str(EXAMPLE), "--dry-run"], "kind: Pod"),
        (["get", "--help"], "Usage: allranks get"),
        (["submit", "--help"], "Usage: allranks submit"),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value) if isinstance(value, list) else None,
)
def test_a_command_works_without_extras(installed, tmp_path, arguments, output):
    done = allranks(installed, tmp_path, *arguments)
    problems = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert (done.returncode, problems) == (0, [])
    assert output in done.stdout


@pytest.mark.slow
def test_a_job_runs_without_extras(installed, wheel, tmp_path):
    manifest = f"""
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata: {{name: hello}}
spec:
  framework: pytorch
  image: none
  command: [{sys.executable}, -c, "import os; print('rank', os.environ['RANK'])"]
  roles: {{worker: {{replicas: 2}}}}
  hang: {{timeoutSeconds: 60}}
"""
    (tmp_path / "job.yaml").write_text(manifest)
    done = allranks(installed, tmp_path, "run", "job.yaml")
    assert done.returncode == 0, done.stderr
    assert "rank 0" in done.stdout
    assert "rank 1" in done.stdout
    note = f"hang and progress do nothing here without further Python packages: pip install '{wheel}[cli]'"
    assert note in done.stdout + done.stderr


ON_A_CLUSTER = [
    *("get", "list", "top"),
    *(f"{command} job" for command in ("describe", "report", "logs", "wait", "suspend", "resume", "delete")),
    "scale job --replicas 2",
    f"submit {EXAMPLE}",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        *((command, "cli") for command in ON_A_CLUSTER),
        ("operator", "operator"),
        ("operator --help", "operator"),
        ("ui", "cli,ui"),
    ],
    ids=lambda value: value.replace(str(EXAMPLE), EXAMPLE.name),
)
def test_a_command_that_needs_an_extra_names_it_in_one_line(installed, wheel, tmp_path, command, extra):
    done = allranks(installed, tmp_path, *command.split())
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.endswith(f": pip install '{wheel}[{extra}]'")


def test_the_wheel_puts_only_allranks_and_the_plugin_of_kubectl_on_path(wheel):
    archive = zipfile.ZipFile(wheel)
    [listed] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    scripts = re.findall(r"^(\S+) = ", archive.read(listed).decode(), re.MULTILINE)
    assert sorted(scripts) == ["allranks", "kubectl-allranks"]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_that_a_message_names_installs_the_extra_without_the_official_client(wheel, tmp_path):
    folder = install(wheel, tmp_path / "venv")
    message = allranks(folder, tmp_path, "get").stderr.strip()
    command = message.rpartition("): ")[2]
    environment = clean() | {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", f"{command} -q"], check=True, timeout=300, env=environment)
    assert not list((tmp_path / "venv").glob("lib/*/site-packages/kubernetes"))
    with SomeApi(tmp_path) as api:
        done = allranks(folder, tmp_path, "get", "--kubeconfig", str(api.kubeconfig), "-o", "json")
    assert (done.returncode, done.stderr) == (0, ""), done
