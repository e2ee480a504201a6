"""tools/images.sh, with a builder that only records its arguments."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from allranks.version import __version__
from support.images import IMAGES as FRAMEWORKS

SCRIPT = Path(__file__).parents[3] / "tools" / "images.sh"
BASE = "BASE_IMAGE=python:3.12-slim-bookworm"
RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
case "$1 $*" in
  *{refuses}*) echo "{refuses}: no" >&2; exit 1 ;;
  image*--format*) echo 123456789 ;;
  save*--output*) touch "$3" ;;
  save*) echo "an archive" ;;
esac
"""


@dataclass
class Builders:
    """Programs at the beginning of PATH, and their recorded arguments."""

    folder: Path

    def add(self, name: str, refuses: str = "nothing") -> None:
        program = self.folder / name
        program.write_text(RECORDER.format(refuses=refuses))
        program.chmod(0o755)

    def run(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = os.environ | {
            "PATH": f"{self.folder}:/usr/bin:/bin",
            "CALLS": str(self.folder / "calls"),
            "ALLRANKS_CACHE": str(self.folder / "cache"),
        }
        done = subprocess.run([SCRIPT, *args], env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        return done

    def calls(self, of: str) -> list[str]:
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith(of)]


@pytest.fixture
def builders(tmp_path: Path) -> Builders:
    return Builders(tmp_path)


def test_an_image_is_built_with_docker_and_its_name_is_all_that_stdout_has(builders):
    builders.add("docker")
    done = builders.run("operator")
    assert done.stdout == f"ghcr.io/allranks/operator:{__version__}\n"
    assert "operator: 124MB in " in done.stderr
    [build] = builders.calls("docker build")
    assert "--file images/operator/Dockerfile" in build
    assert re.findall(r"--tag (\S+)", build) == [f"ghcr.io/allranks/operator:{__version__}"]
    assert f"--build-arg {BASE} --build-arg VERSION={__version__} --build-arg REVISION=" in build


def test_without_names_all_images_are_built(builders):
    builders.add("docker")
    builders.run()
    files = [line.split("--file images/")[1].split("/")[0] for line in builders.calls("docker build")]
    assert files == ["operator", "ui", "data", "archiver", *FRAMEWORKS]
    # buildah does not find a stage whose name contains an argument without a value.
    assert "--build-arg WHEEL=built" in builders.calls("docker build")[6]


def test_a_builder_that_does_not_work_is_skipped(builders):
    """For example docker's client without its daemon."""
    builders.add("docker", refuses="info")
    builders.add("podman")
    builders.run("operator")
    assert builders.calls("docker build") == []
    assert len(builders.calls("podman build")) == 1


def test_prefix_tag_and_build_arguments_are_passed_on(builders):
    builders.add("docker")
    arguments = ["--build-arg", "TENSORFLOW_VARIANT=cuda", "--build-arg", "PIP_INDEX_URL=https://mirror/simple"]
    done = builders.run("--prefix", "registry.example.com/me/", "--tag", "dev", *arguments, "tensorflow")
    assert done.stdout == "registry.example.com/me/tensorflow:dev\n"
    [build] = builders.calls("docker build")
    assert build.count("--tag") == 1
    assert " ".join(arguments) in build


def test_an_image_for_tests_only_has_that_tag(builders):
    builders.add("docker")
    done = builders.run("--build-arg", "TEST_ONLY_STUB_CUDA=1", "pytorch")
    assert done.stdout == "ghcr.io/allranks/pytorch:test-only\n"
    assert "latest" not in builders.calls("docker build")[0]


def test_a_given_base_is_used_unchanged(builders):
    builders.add("docker", refuses="pull")
    builders.run("--base", "registry.example.com/python:3.13", "operator")
    assert "--build-arg BASE_IMAGE=registry.example.com/python:3.13 " in builders.calls("docker build")[0]


def test_an_archive_is_written_on_request(builders, tmp_path):
    builders.add("docker")
    archive = tmp_path / "archives" / "operator.tar"
    builders.run("--push-tar", str(archive.parent), "operator")
    assert archive.exists()
    assert "is up to date" in builders.run("--push-tar", str(archive.parent), "operator").stderr
    assert len(builders.calls("docker save")) == 1


def test_an_archive_can_be_piped_to_a_command(builders, tmp_path):
    builders.add("docker")
    builders.run("--into", f"cat >>{tmp_path}/got", "operator", "pytorch")
    assert [line.split()[-1] for line in builders.calls("docker save")] == [
        f"ghcr.io/allranks/{image}:{__version__}" for image in ("operator", "pytorch")
    ]
    assert (tmp_path / "got").read_text() == 2 * "an archive\n"
    done = builders.run("--into", "cat >/dev/null; exit 3", "operator", code=1)
    assert "'cat >/dev/null; exit 3' failed, see above" in done.stderr


def test_a_failed_build_prints_the_path_of_its_log(builders, tmp_path):
    builders.add("docker", refuses="build")
    done = builders.run("operator", code=1)
    assert done.stdout == ""
    assert "build: no" in done.stderr
    assert done.stderr.endswith(f"the full log is in {tmp_path}/cache/images/operator.log\n")


# Sentence, arguments, status, last line.
MISTAKES = [
    ("an unknown image", ["pytroch"], "unknown argument 'pytroch'"),
    ("an option without its value", ["--tag"], "--tag needs a value"),
    ("a builder that is not there", ["--engine", "kaniko", "operator"], "kaniko does not work here"),
]


@pytest.mark.parametrize(("args", "said"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_a_wrong_argument_is_reported_in_one_sentence(builders, args, said):
    done = builders.run(*args, code=1)
    assert done.stderr.splitlines()[-1].startswith(f"images: error: {said}")


def test_help_needs_nothing(builders):
    assert builders.run("--help").stdout.startswith("usage: tools/images.sh")
