"""`allranks run` with code and packages: real processes that run a copy of the shipped files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.builders import manifest
from unit.code.test_bundle import committed
from unit.inpod.test_install_packages import wheel

SECONDS = 300.0
TRAIN = """
import os, sys
import lib.net
print("runs in", os.getcwd(), "with", sorted(os.listdir(".")), lib.net.VALUE, flush=True)
with open("out-" + os.environ["ALLRANKS_INDEX"], "w") as file:
    file.write(sys.argv[1] if len(sys.argv) > 1 else "")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "lib" / "net.py").write_text("VALUE = 42\n")
    (folder / ".env").write_text("TOKEN=1")
    return folder


def run(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "allranks", "run", *words]
    env = {**os.environ, "ALLRANKS_CACHE": str(folder / "cache"), **environ}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS)


def written(folder: Path, **spec: object) -> str:
    job = manifest("spmd", command=["python3", "train.py"], **spec)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return "job.yaml"


def test_the_ranks_run_a_copy_without_what_is_not_shipped(project) -> None:
    file = written(project, code=".", args=["/workspace/train.py"])
    done = run(project, file, "--run-dir", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    copy = project / "run" / "code"
    for line in ("worker-0 | runs in", "worker-1 | runs in"):
        assert f"{line} {copy} with ['" in done.stdout
    assert "'.env'" not in done.stdout
    assert "note: job.yaml: job: spec.code: .env is not shipped" in done.stdout
    assert f"note: the ranks run a copy of . (3 files): {copy}" in done.stdout
    assert (copy / "out-0").read_text() == f"{copy}/train.py"  # paths of the pods are those of the copy
    assert not (project / "out-0").exists()
    code = json.loads((project / "run" / "code.json").read_text())
    stored = json.loads((project / "run" / "job.json").read_text())
    assert code["sha256"] == stored["spec"]["code"]["sha256"] == stored["status"]["code"]["sha256"]


@pytest.mark.parametrize("spec", [{}, {"env": [{"name": "PYTHONPATH", "value": "/opt/mine"}]}, {"progress": {}}])
def test_code_imports_the_report_library_and_its_own_modules(project, spec) -> None:
    (project / "train.py").write_text(
        "import os, sys, lib.net, allranks.report\n"
        "print('the library is in', os.path.dirname(allranks.report.__file__), sys.path, flush=True)\n"
        "allranks.report.report(step=7)\n"
    )
    done = run(project, written(project, code=".", **spec), "--run-dir", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    library = re.search(r"the library is in (\S+)", done.stdout)
    assert library
    assert Path(library[1]).is_relative_to(project / "run"), library[1]
    assert ("/opt/mine" in done.stdout) == ("env" in spec)
    assert json.loads((project / "run" / "job.json").read_text())["status"]["progress"]["step"] == 7


def test_the_report_on_a_run_has_what_its_code_differs_from_the_commit_in(project) -> None:
    committed(project, {})
    (project / "lib" / "net.py").write_text("VALUE = 43\n")
    (project / "new.py").write_text("NEW = 1\n")
    done = run(project, written(project, code="."), "--run-dir", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    command = [sys.executable, "-m", "allranks", "report", "--run-dir", "run", "-o", "diff"]
    shown = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=SECONDS)
    assert "\n-VALUE = 42\n+VALUE = 43\n" in shown.stdout
    assert "\n+++ b/new.py\n@@ -0,0 +1,1 @@\n+NEW = 1\n" in shown.stdout
    assert "TOKEN" not in shown.stdout


def test_a_script_runs_from_the_directory_of_the_option(project) -> None:
    done = run(project.parent, "project/train.py", "--framework", "spmd", "--code", "project", "--run-dir", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"worker-0 | runs in {project.parent}/run/code with" in done.stdout
    assert (project.parent / "run" / "code" / "out-0").is_file()
    elsewhere = run(project, "train.py", "--framework", "spmd", "--code", "lib")
    assert elsewhere.returncode == 2
    assert "train.py is not in lib, the directory of --code" in elsewhere.stderr


def test_a_saved_manifest_of_a_script_names_the_directory(project) -> None:
    done = run(project, "train.py", "--framework", "spmd", "--code", ".", "--save", "saved.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((project / "saved.yaml").read_text())["spec"]["code"] == "."


def test_code_of_a_cluster_is_not_on_this_machine(project) -> None:
    done = run(project, written(project, code={"configMap": "allranks-code-x", "sha256": "0" * 64}))
    assert done.returncode == 2
    assert "the code is in the ConfigMap allranks-code-x of a cluster (spec.code)" in done.stderr
    pulled = run(project, written(project, code={"image": "r/code:1"}))
    assert "volume allranks-code (image) is not on this machine: give its directory with --volume" in pulled.stderr


def test_code_of_a_claim_runs_from_the_directory_of_the_claim(project) -> None:
    file = written(project, code={"claim": "mine", "subPath": "project", "path": "/app"})
    done = run(project, file, "--volume", f"mine={project.parent}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"worker-0 | runs in {project} with" in done.stdout


@pytest.mark.nightly
def test_packages_are_installed_once_for_all_ranks_and_runs(project, tmp_path) -> None:
    wheel(tmp_path / "wheels", "penguins", "1.0")
    (project / "train.py").write_text("import penguins\nprint('penguins', penguins.version)\n")
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    file = written(project, packages=["penguins==1.0"])
    for _ in range(2):
        done = run(project, file, **pip)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {"worker-0 | penguins 1.0", "worker-1 | penguins 1.0"} <= set(done.stdout.splitlines())
    assert "note: pip provides penguins==1.0 before the start" in done.stdout
    assert len(list((project / "cache" / "allranks-packages").iterdir())) == 1


@pytest.mark.nightly
def test_packages_that_cannot_be_installed_start_nothing(project) -> None:
    done = run(project, written(project, packages=["penguins==1.0"]), PIP_NO_INDEX="1")
    assert done.returncode == 2
    assert "error: the packages penguins==1.0 cannot be installed: " in done.stderr
    assert "No matching distribution found for penguins==1.0" in done.stderr
