"""The ways in which users install the command line, from an index and from a bundle, with what `make dist` writes."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.version import __version__
from support import environment, helm, tools

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PYTHON = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archive for air-gapped clusters."""
    program = """
import pathlib, sys
sys.path.insert(0, "tools")
from dist import files, source
folder, version, source = pathlib.Path(sys.argv[1]), sys.argv[2], source.head()
source.export(folder / "allranks")
for write in (files.python_packages, files.chart, files.manifests):
    write(folder / "allranks", folder, source)
files.bundle([version], folder, source)
"""
    helm.built("helm")
    folder = tmp_path_factory.mktemp("dist")
    variables = {name: value for name, value in environment.USERS.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", program, str(folder), PYTHON]
    subprocess.run(command, cwd=ROOT, env=variables, check=True, timeout=900)
    [archive] = folder.glob(f"allranks-{__version__}-airgap-*.tar")
    place = tmp_path_factory.mktemp("bundle")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    return place / archive.stem


@pytest.fixture(scope="module")
def index(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a package index with the wheels of the bundle."""
    root = tmp_path_factory.mktemp("index")
    for wheel in (bundle / "wheels").iterdir():
        project = root / "simple" / wheel.name.partition("-")[0].lower().replace("_", "-").replace(".", "-")
        project.mkdir(parents=True, exist_ok=True)
        (project / wheel.name).write_bytes(wheel.read_bytes())
    handler = functools.partial(Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple/"
        server.shutdown()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Lists the files of a folder as links, as a simple index does."""

    def log_message(self, format: str, *arguments: object) -> None: ...


def run(*command: str | Path, **variables: str) -> str:
    """Run a program with the variables of the user except those for indexes. Return its output."""
    ours = ("PIP_", "UV_", "PIPX_", "PYTHONPATH")
    kept = {name: value for name, value in environment.USERS.items() if not name.startswith(ours)}
    kept |= {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=kept | variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def works(programs: Path, home: Path) -> str:
    """Check both programs. Return the command that they name for an extra that is missing."""
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home)}
    assert run(programs / "allranks", "--version", **variables).startswith(f"allranks, version {__version__}")
    assert run(programs / "kubectl-allranks", "get", "--help", **variables).startswith("Usage: kubectl allranks get ")
    done = subprocess.run(
        [programs / "allranks", "ui"], env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    return done.stderr.strip().rpartition(": ")[2]


def test_pip_installs_the_command_line_from_an_index(index, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", "--index-url", index, "allranks[cli]")
    assert works(programs, tmp_path) == "pip install 'allranks[cli,ui]'"


def test_uv_installs_it_as_a_tool_from_an_index(index, tmp_path):
    uv = tools.built("packages.sh", "installers") / "bin" / "uv"
    places = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(
        uv,
        "tool",
        "install",
        "--no-cache",
        "--python",
        sys.executable,
        "--default-index",
        index,
        "allranks[cli]",
        **places,
    )
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {"allranks", "kubectl-allranks"}
    assert works(tmp_path / "bin", tmp_path) == "uv tool install --force 'allranks[cli,ui]'"


def test_pipx_installs_it_from_an_index(index, tmp_path):
    pipx = tools.built("packages.sh", "installers") / "bin" / "pipx"
    places = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    run(pipx, "install", "--python", sys.executable, "--index-url", index, "allranks[cli]", **places)
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {"allranks", "kubectl-allranks"}
    assert works(tmp_path / "bin", tmp_path) == "pipx install --force 'allranks[cli,ui]'"


def test_the_bundle_installs_the_command_line_without_an_index(bundle, tmp_path):
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=bundle, check=True, timeout=300)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    options = ["--quiet", "--no-index", "--find-links", bundle / "wheels"]
    run(programs / "python", "-m", "pip", "install", *options, "allranks[cli,python,ui]")
    assert run(programs / "allranks", "ui", "--help", HOME=str(tmp_path)).startswith("Usage: allranks ui")
    run(programs / "python", "-m", "pip", "check")


def test_the_bundle_has_the_chart_and_the_kustomization(bundle):
    files = {path.name for path in bundle.iterdir()}
    chart, manifests = f"allranks-{__version__}.tgz", f"allranks-{__version__}-kustomize.tar.gz"
    assert files == {chart, manifests, "wheels", "SHA256SUMS"}
