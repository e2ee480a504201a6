"""`make dist`: the same files from two clones of a commit, each described by checksums and provenance."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from allranks.version import __version__
from support import helm

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).parents[2]
WHEEL = f"allranks-{__version__}-py3-none-any.whl"
CHART = f"allranks-{__version__}.tgz"
PROVENANCE = f"allranks-{__version__}.provenance.json"
MANIFESTS = f"allranks-{__version__}-kustomize.tar.gz"
SDIST = f"allranks-{__version__}.tar.gz"
BILLS = {image: f"allranks-{image}-{__version__}.cdx.json" for image in ("operator", "ui", "data", "archiver")}


def nightly(test: Any) -> Any:
    """Installs the packages of four images: some minutes."""
    return pytest.mark.slow(pytest.mark.nightly(test))


def git(folder: Path, *arguments: str, **variables: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
    environment = os.environ | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()


def clone(folder: Path, umask: int) -> Path:
    """A clone of this repository with the state of its working tree as a commit."""
    subprocess.run(["git", "clone", "--quiet", "--no-tags", ROOT, folder], check=True, timeout=300, umask=umask)
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in git(folder, "ls-files").splitlines():
        (folder / name).unlink()
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
            (folder / name).chmod((ROOT / name).stat().st_mode & ~umask)
    git(folder, "add", "--all")
    date = {"GIT_AUTHOR_DATE": "@1700000000 +0000", "GIT_COMMITTER_DATE": "@1700000000 +0000"}
    git(folder, "commit", "--quiet", "--allow-empty", "-mx", **date)
    return folder


def dist(folder: Path, *arguments: str, umask: int = 0o022, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs tools/dist.py of a clone, with the tools that this repository has installed."""
    (ROOT / "build" / "dist").mkdir(parents=True, exist_ok=True)
    (folder / "build").mkdir(exist_ok=True)
    if not (folder / "build" / "dist").exists():
        (folder / "build" / "dist").symlink_to(ROOT / "build" / "dist")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(
        [sys.executable, "tools/dist.py", *arguments],
        cwd=folder,
        env=environment,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_the_package_and_the_chart_depend_only_on_the_commit(tmp_path):
    """The quick part of the next test."""
    program = """
import pathlib, sys
sys.path.insert(0, "tools")
from dist import files, source
folder, found = pathlib.Path(sys.argv[1]), source.head()
found.export(folder / "allranks")
files.python_packages(folder / "allranks", folder, found)
files.chart(folder / "allranks", folder, found)
files.manifests(folder / "allranks", folder, found)
"""
    made = []
    for name, umask, zone in (("a", 0o022, "UTC"), ("b", 0o077, "Asia/Tokyo")):
        folder = tmp_path / name
        folder.mkdir()
        command = [sys.executable, "-c", program, str(folder)]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"TZ": zone}, umask=umask, check=True, timeout=900)
        made.append({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
    assert set(made[0]) == {WHEEL, SDIST, CHART, MANIFESTS}
    assert made[0] == made[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    helm.built("helm")
    folder = clone(tmp_path_factory.mktemp("one") / "allranks", 0o022)
    done = dist(folder, "--images", "none")
    assert done.returncode == 0, done.stderr
    images = "operator, ui, data, archiver, pytorch, tensorflow, horovod, jax, ray, mpi"
    assert done.stderr == f"dist: WITHOUT THE IMAGES {images}: --images none\n"
    return folder / "dist"


@nightly
def test_two_builds_of_a_commit_are_the_same(made, tmp_path):
    folder = clone(tmp_path / "elsewhere", 0o077)
    done = dist(folder, "--images", "none", umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", SOURCE_DATE_EPOCH="1")
    assert done.returncode == 0, done.stderr
    first = {path.name: path.read_bytes() for path in made.iterdir()}
    second = {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}
    assert [name for name in first if first[name] != second.get(name)] == []
    assert set(first) == set(second)


@nightly
def test_the_files_of_a_release(made):
    assert {path.name for path in made.iterdir()} == {
        WHEEL,
        SDIST,
        CHART,
        MANIFESTS,
        PROVENANCE,
        *BILLS.values(),
        "SHA256SUMS",
    }
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made, check=True, timeout=300)
    listed = {line.split()[1] for line in (made / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in made.iterdir()} - {"SHA256SUMS"}


@nightly
def test_provenance_names_the_commit_and_the_digest_of_every_file(made):
    statement = json.loads((made / PROVENANCE).read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    files = {path.name: path for path in made.iterdir() if path.name not in (PROVENANCE, "SHA256SUMS")}
    assert digests == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    source, *materials = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": git(made.parent, "rev-parse", "HEAD")}
    requirements = ROOT / "images" / "operator" / "requirements.txt"
    pinned = {each["name"]: each["digest"]["sha256"] for each in materials}
    assert pinned["images/operator/requirements.txt"] == hashlib.sha256(requirements.read_bytes()).hexdigest()


@nightly
@pytest.mark.parametrize("image", BILLS)
def test_the_bill_of_materials_has_the_packages_of_the_image_and_no_path(made, image):
    text = (made / BILLS[image]).read_text()
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX"
    pins = (ROOT / "images" / image / "requirements.txt").read_text()
    found = {component["name"].lower().replace("_", "-"): component["version"] for component in bill["components"]}
    assert found
    assert all(f"{name}=={version} " in pins for name, version in found.items())
    assert {"pydantic", "pyyaml"} <= set(found)
    assert ("kopf" in found) == (image == "operator")
    assert str(made.parent) not in text


@nightly
def test_the_archive_of_the_chart_installs_the_operator_of_its_version(made, tmp_path):
    program = helm.Helm(helm.built("helm"), tmp_path)
    assert f"ghcr.io/allranks/operator:{__version__}" in program("template", "allranks", str(made / CHART))
    with tarfile.open(made / CHART) as archive:
        assert {member.mtime for member in archive} == {1700000000}


@pytest.mark.parametrize(
    ("base", "warned"), [("python:3", True), (f"python:3@sha256:{'0' * 64}", False), ("test", False)]
)
def test_a_base_of_the_images_without_a_digest_is_reported(tmp_path, monkeypatch, capsys, base, warned):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("dist_program", ROOT / "tools" / "dist.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    files = program.files

    def images(names, base, out, source):
        for name in names:
            files.archive(out, name, source).touch()
        return ""

    for name in ("python_packages", "chart", "manifests", "bill_of_materials", "checksums"):
        monkeypatch.setattr(files, name, lambda *arguments: None)
    monkeypatch.setattr(files, "images", images)
    monkeypatch.setattr(program.provenance, "write", lambda *arguments: None)
    assert program.build(argparse.Namespace(out=tmp_path / "dist", images=["operator"], base=base, bundle=None)) == 0
    assert (f"the base {base} has no digest" in capsys.readouterr().err) == warned


@pytest.mark.slow
def test_a_tag_of_another_version_is_an_error(tmp_path):
    folder = clone(tmp_path / "allranks", 0o022)
    git(folder, "tag", "v9.9.9")
    done = dist(folder, "--images", "none")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"dist: error: the commit has the tag v9.9.9, but operator/allranks/version.py says {__version__}\n"
    )


@pytest.mark.slow
def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    folder = clone(tmp_path / "allranks", 0o022)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    done = dist(folder, "--images", "none", "--out", str(tmp_path / "mine"))
    assert done.returncode == 1
    assert done.stderr == f"dist: error: {tmp_path}/mine holds other files: choose an empty folder with --out\n"
    assert (tmp_path / "mine" / "file").exists()


@pytest.mark.slow
def test_images_that_were_asked_for_and_cannot_be_built_are_an_error(tmp_path):
    folder = clone(tmp_path / "allranks", 0o022)
    (folder / "untracked").touch()
    done = dist(folder, "--images", "operator")
    assert done.returncode == 1
    reason = "there are uncommitted changes or untracked files, which the images would contain"
    assert done.stderr.endswith(f"dist: error: no images: {reason}\n")
