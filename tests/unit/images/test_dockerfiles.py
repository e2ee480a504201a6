"""What can be said of the Dockerfiles without building them: pinned, small, nobody's root, and labelled."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from allranks.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[3]
IMAGES = ["operator", *FRAMEWORKS]
BASE = "ARG BASE_IMAGE=python:3.12-slim-bookworm"
LABELS = ["title", "description", "url", "licenses", "version", "revision", "created", "base.name"]

every_image = pytest.mark.parametrize("image", IMAGES)
training_images = pytest.mark.parametrize("image", FRAMEWORKS)


def text_of(image: str) -> str:
    return (ROOT / "images" / image / "Dockerfile").read_text()


@cache
def instructions(image: str) -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction, in order, with continued lines joined and comments left out."""
    lines = [line for line in text_of(image).splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines()]


def of(image: str, keyword: str) -> list[str]:
    return [rest for word, rest in instructions(image) if word == keyword]


def last_stage(image: str) -> list[tuple[str, str]]:
    found = instructions(image)
    start = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def requirements(path: Path) -> list[Requirement]:
    """What a requirements file pins, without hashes."""
    joined = path.read_text().replace("\\\n", " ")
    lines = [line.split("#")[0].split("--hash")[0].strip() for line in joined.splitlines()]
    return [Requirement(line) for line in lines if line]


@every_image
def test_the_base_is_an_argument_and_the_first_thing_said(image):
    assert instructions(image)[0] == tuple(BASE.split(" ", 1))


@every_image
def test_every_stage_begins_with_the_base_or_an_earlier_stage(image):
    stages: set[str] = set()
    for rest in of(image, "FROM"):
        source, _, name = rest.partition(" AS ")
        assert source == "${BASE_IMAGE}" or source in stages or source == "wheel-${WHEEL}", rest
        stages.add(name)


@every_image
def test_no_instruction_asks_for_the_latest_of_anything(image):
    assert not re.search(r":latest\b", "\n".join(rest for _, rest in instructions(image)))


@every_image
def test_nothing_comes_from_an_address_while_building(image):
    assert not of(image, "ADD")
    assert not [rest for rest in of(image, "RUN") if re.search(r"\b(curl|wget|git clone)\b|https?://", rest)]


@every_image
def test_the_image_runs_as_a_number_that_is_not_root(image):
    """Kubernetes cannot tell of a name whether it is root (runAsNonRoot)."""
    users = [rest for word, rest in last_stage(image) if word == "USER"]
    assert users == ["65532:65532"]
    after = [word for word, _ in last_stage(image)]
    assert "RUN" not in after[after.index("USER") :]


@every_image
def test_package_lists_do_not_stay_in_a_layer(image):
    for rest in of(image, "RUN"):
        if "apt-get" in rest:
            assert "apt-get update" in rest
            assert "--no-install-recommends" in rest
            assert "rm -rf" in rest
            assert "/var/lib/apt/lists/*" in rest
        assert "apt-get upgrade" not in rest
        assert "sudo" not in rest


@every_image
def test_pip_installs_what_files_pin_and_keeps_no_downloads(image):
    for rest in of(image, "RUN"):
        for command in re.findall(r"pip (?:--python \S+ )?install ([^&;]*)", rest):
            pinned = re.search(r"--requirement \S*requirements[\w-]*\.txt", command)
            own = command.startswith("--no-deps")  # our own source, a wheel, an argument
            assert pinned or own, command
    assert "PIP_NO_CACHE_DIR=1" in text_of(image)


@every_image
def test_every_requirement_is_pinned(image):
    for path in sorted((ROOT / "images" / image).glob("requirements*.txt")):
        for requirement in requirements(path):
            assert [spec.operator for spec in requirement.specifier] == ["=="], f"{path.name}: {requirement}"


@every_image
def test_requirements_are_installed_before_programs_are_copied(image):
    """A changed program must not install PyTorch again."""
    order = [f"{word} {rest}" for word, rest in instructions(image)]
    programs = max(index for index, line in enumerate(order) if re.match(r"COPY (train|operator) ", line))
    frameworks = max(index for index, line in enumerate(order) if "pip" in line and "equirement" in line)
    assert frameworks < programs
    assert all(
        index > programs for index, line in enumerate(order) if re.match(r"ARG (VERSION|REVISION|CREATED)", line)
    )


@every_image
def test_labels_say_what_it_is_and_where_it_came_from(image):
    [labels] = of(image, "LABEL")
    assert re.findall(r"org\.opencontainers\.image\.([\w.]+)=", labels) == LABELS


@every_image
def test_home_is_where_any_user_can_write(image):
    assert any("HOME=/tmp" in rest for word, rest in last_stage(image) if word == "ENV")


@training_images
def test_no_image_asks_for_gpus_by_itself(image):
    """With this variable in an image, pods that ask for no GPU see all of a node's."""
    assert "NVIDIA_VISIBLE_DEVICES" not in text_of(image)


def test_horovod_shares_the_large_layers_of_pytorch():
    """Builders reuse a layer where all before it is the same."""
    pytorch = [(word, rest.removesuffix(" AS frameworks")) for word, rest in instructions("pytorch")]
    horovod = [(word, rest.removesuffix(" AS frameworks")) for word, rest in instructions("horovod")]
    horovod.remove(("ARG", "WHEEL=built"))
    shared = max(index for index, (word, rest) in enumerate(pytorch) if word == "RUN" and "pip install" in rest) + 1
    assert horovod[:shared] == pytorch[:shared]


@training_images
def test_examples_find_their_programs_and_their_image(image):
    """Their commands are relative to the image's working directory."""
    used = 0
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] != "DistributedTraining":
                continue
            name = document["spec"]["image"].removeprefix("ghcr.io/allranks/").partition(":")[0]
            assert name in IMAGES, path
            programs = [word for word in document["spec"]["command"] if word.startswith("train/")]
            assert all((ROOT / program).is_file() for program in programs), path
            used += name == image
    assert used
    assert ("COPY", "train /workspace/train") in instructions(image)
    assert ("WORKDIR", "/workspace") in instructions(image)


def test_the_operators_image_has_what_the_extra_asks_for_and_no_client():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["operator"]]
    pins = {canonicalize_name(pin.name): pin for pin in requirements(ROOT / "images" / "operator" / "requirements.txt")}
    for requirement in asked:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin, f"{requirement} is not in images/operator/requirements.txt"
        [version] = [spec.version for spec in pin.specifier]
        assert requirement.specifier.contains(version), f"{pin} is not {requirement}: make the file anew, as it says"
    assert not set(pins) & {"kubernetes", "torch", "tensorflow", "tensorflow-cpu", "horovod"}


def test_the_operators_pins_have_hashes():
    text = (ROOT / "images" / "operator" / "requirements.txt").read_text()
    pins = re.findall(r"^\S+==", text, re.MULTILINE)
    assert pins
    assert len(re.findall(r"^\S+==.*\\\n    --hash=sha256:", text, re.MULTILINE)) == len(pins)


def test_what_is_sent_to_the_builder_is_named_and_nothing_else_is():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line for line in lines if line.startswith("!")} == {
        "!LICENSE", "!README.md", "!images", "!operator", "!pyproject.toml", "!train"
    }  # fmt: skip
