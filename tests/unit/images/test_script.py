"""tools/images.sh, with a builder that only writes down what it is asked for."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from allranks.version import __version__

SCRIPT = Path(__file__).parents[3] / "tools" / "images.sh"
BASE = "BASE_IMAGE=python:3.12-slim-bookworm"
RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >>"$ASKED"
case "$1 $*" in
  *{refuses}*) echo "{refuses}: no" >&2; exit 1 ;;
  image*--format*) echo 123456789 ;;
  save*--output*) touch "$3" ;;
  save*) echo "an archive" ;;
esac
"""


@dataclass
class Builders:
    """Programs on the PATH in front of all others, and what they were asked for."""

    folder: Path

    def add(self, name: str, refuses: str = "nothing") -> None:
        program = self.folder / name
        program.write_text(RECORDER.format(refuses=refuses))
        program.chmod(0o755)

    def run(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = os.environ | {
            "PATH": f"{self.folder}:/usr/bin:/bin",
            "ASKED": str(self.folder / "asked"),
            "ALLRANKS_CACHE": str(self.folder / "cache"),
        }
        done = subprocess.run([SCRIPT, *args], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        return done

    def asked(self, of: str) -> list[str]:
        return [line for line in (self.folder / "asked").read_text().splitlines() if line.startswith(of)]


@pytest.fixture
def builders(tmp_path: Path) -> Builders:
    return Builders(tmp_path)


def test_an_image_is_built_with_docker_and_its_name_is_all_that_stdout_has(builders):
    builders.add("docker")
    done = builders.run("operator")
    assert done.stdout == f"ghcr.io/allranks/operator:{__version__}\n"
    assert "operator: 124MB in " in done.stderr
    [build] = builders.asked("docker build")
    assert "--file images/operator/Dockerfile" in build
    assert f"--tag ghcr.io/allranks/operator:{__version__} --tag ghcr.io/allranks/operator:latest" in build
    assert f"--build-arg {BASE} --build-arg VERSION={__version__} --build-arg REVISION=" in build


def test_without_names_all_four_are_built(builders):
    builders.add("docker")
    builders.run()
    files = [line.split("--file images/")[1].split("/")[0] for line in builders.asked("docker build")]
    assert files == ["operator", "pytorch", "tensorflow", "horovod"]
    # buildah does not find a stage whose name holds an argument that was not given.
    assert "--build-arg WHEEL=built" in builders.asked("docker build")[3]


def test_a_builder_that_is_there_but_does_not_work_is_passed_over(builders):
    """docker's client without its daemon, for example."""
    builders.add("docker", refuses="info")
    builders.add("podman")
    builders.run("operator")
    assert builders.asked("docker build") == []
    assert len(builders.asked("podman build")) == 1


def test_prefix_tag_and_build_arguments_are_handed_on(builders):
    builders.add("docker")
    arguments = ["--build-arg", "TENSORFLOW_VARIANT=cuda", "--build-arg", "PIP_INDEX_URL=https://mirror/simple"]
    done = builders.run("--prefix", "registry.example.com/me/", "--tag", "dev", *arguments, "tensorflow")
    assert done.stdout == "registry.example.com/me/tensorflow:dev\n"
    [build] = builders.asked("docker build")
    assert build.count("--tag") == 1
    assert " ".join(arguments) in build


def test_an_image_that_is_for_tests_only_is_named_so(builders):
    builders.add("docker")
    done = builders.run("--build-arg", "TEST_ONLY_STUB_CUDA=1", "pytorch")
    assert done.stdout == "ghcr.io/allranks/pytorch:test-only\n"
    assert "latest" not in builders.asked("docker build")[0]


def test_a_base_that_was_named_is_used_as_it_is(builders):
    builders.add("docker", refuses="pull")
    builders.run("--base", "registry.example.com/python:3.13", "operator")
    assert "--build-arg BASE_IMAGE=registry.example.com/python:3.13 " in builders.asked("docker build")[0]


def test_an_archive_is_written_when_one_is_asked_for(builders, tmp_path):
    builders.add("docker")
    archive = tmp_path / "archives" / "operator.tar"
    builders.run("--push-tar", str(archive.parent), "operator")
    assert archive.exists()
    assert "is up to date" in builders.run("--push-tar", str(archive.parent), "operator").stderr
    assert len(builders.asked("docker save")) == 1


def test_an_archive_may_go_to_a_command_alone(builders, tmp_path):
    builders.add("docker")
    builders.run("--into", f"cat >>{tmp_path}/got", "operator", "pytorch")
    assert [line.split()[-1] for line in builders.asked("docker save")] == [
        f"ghcr.io/allranks/{image}:{__version__}" for image in ("operator", "pytorch")
    ]
    assert (tmp_path / "got").read_text() == 2 * "an archive\n"
    done = builders.run("--into", "cat >/dev/null; exit 3", "operator", code=1)
    assert "'cat >/dev/null; exit 3' failed, see above" in done.stderr


def test_a_build_that_fails_says_where_its_log_is(builders, tmp_path):
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
def test_a_mistake_is_answered_in_a_sentence(builders, args, said):
    done = builders.run(*args, code=1)
    assert done.stderr.splitlines()[-1].startswith(f"images: error: {said}")


def test_help_needs_nothing(builders):
    assert builders.run("--help").stdout.startswith("usage: tools/images.sh")
