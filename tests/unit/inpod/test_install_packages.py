"""Packages of a job, installed by the real pip from wheels in a folder: no index is asked."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from allranks.pod_bundle import HELPERS

PROGRAM = HELPERS / "install_packages.py"


def wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


class Pip:
    """The program with an index of its own, in an environment without the caller's settings of pip."""

    def __init__(self, folder: Path) -> None:
        self.wheels, self.folder = folder / "wheels", folder
        # PyYAML is installed in the environment of the tests, and has no wheel here.
        wheel(self.wheels, "penguins", "1.0", ("birds>=2", "PyYAML"))
        wheel(self.wheels, "penguins", "2.0")
        wheel(self.wheels, "birds", "2.1")

    def __call__(self, *words: str, site: str = "packages", **environ: str) -> subprocess.CompletedProcess[str]:
        env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": "/dev/null", "PATH": "/bin"}
        command = [sys.executable, str(PROGRAM), *self._with_folder(list(words), site)]
        return subprocess.run(command, env=env | environ, capture_output=True, text=True, timeout=300)

    def _with_folder(self, words: list[str], site: str) -> list[str]:
        folder = str(self.folder / site)
        return [*words[:2], folder, *words[2:]] if words[0] == "--cache" else [folder, *words]


@pytest.fixture
def pip(tmp_path: Path) -> Pip:
    return Pip(tmp_path)


def imported(site: Path, name: str) -> str:
    code = f"import {name}; print({name}.version)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


def test_only_packages_are_installed_that_this_python_does_not_have(pip, tmp_path) -> None:
    done = pip("penguins==1.0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("allranks: installed birds==2.1, penguins==1.0 in ")
    site = tmp_path / "packages" / "site"
    assert imported(site, "penguins") == "1.0"
    assert sorted(path.name for path in site.iterdir() if path.name.isalpha()) == ["birds", "penguins"]
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["site"]


@pytest.mark.nightly
def test_a_helper_that_is_started_again_installs_again(pip, tmp_path) -> None:
    pip("penguins==1.0")
    assert pip("penguins==2.0").returncode == 0
    assert imported(tmp_path / "packages" / "site", "penguins") == "2.0"


@pytest.mark.parametrize("how", ["--cache", pytest.param("PIP_CACHE_DIR", marks=pytest.mark.nightly)])
def test_the_second_run_with_the_same_packages_takes_them_from_the_cache(pip, tmp_path, how) -> None:
    cache = str(tmp_path / "cache")
    words = ("--cache", cache) if how == "--cache" else ()
    environ = {} if words else {"PIP_CACHE_DIR": cache}
    assert "installed" in pip(*words, "birds", **environ).stdout
    again = pip(*words, "birds", site="second", **environ)
    assert (again.returncode, again.stdout) == (0, "")
    site = tmp_path / "second" / "site"
    assert site.is_symlink()
    assert imported(site, "birds") == "2.1"
    assert "installed" in pip(*words, "penguins==2.0", site="third", **environ).stdout


@pytest.mark.nightly
def test_packages_that_are_there_already_are_not_installed(pip, tmp_path) -> None:
    assert "installed nothing, because all are there" in pip("PyYAML").stdout
    assert list((tmp_path / "packages" / "site").iterdir()) == []


def test_packages_that_cannot_be_installed_are_named_with_the_reason_of_pip(pip, tmp_path) -> None:
    done = pip("penguins==9", "birds")
    assert done.returncode == 1
    assert done.stderr.startswith("allranks: the packages penguins==9, birds cannot be installed: ")
    assert "No matching distribution found for penguins==9" in done.stderr
    assert not (tmp_path / "packages" / "site").exists()


def test_a_python_without_pip_is_named(pip, tmp_path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True, timeout=300)
    python = tmp_path / "bare" / "bin" / "python"
    done = subprocess.run([python, PROGRAM, tmp_path / "x", "birds"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert f"{python} has no pip: use an image with pip, or one that has the packages" in done.stderr
