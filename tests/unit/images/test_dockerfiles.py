"""Checks of the Dockerfiles without building them: pinned versions, small layers, no root, labels."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.images import IMAGES as FRAMEWORKS

ROOT = Path(__file__).parents[3]
IMAGES = ["operator", "ui", "data", "archiver", *FRAMEWORKS, "libraries"]
BASE = "ARG BASE_IMAGE=python:3.12-slim-bookworm"
LABELS = ["title", "description", "url", "licenses", "version", "revision", "created", "base.name"]

every_image = pytest.mark.parametrize("image", IMAGES)
training_images = pytest.mark.parametrize("image", [*FRAMEWORKS, "libraries"])


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
    """The pins of a requirements file, without hashes."""
    joined = path.read_text().replace("\\\n", " ")
    lines = [line.split("#")[0].split("--hash")[0].strip() for line in joined.splitlines()]
    return [Requirement(line) for line in lines if line]


@every_image
def test_the_first_instruction_is_the_argument_for_the_base(image):
    assert instructions(image)[0] == tuple(BASE.split(" ", 1))


@every_image
def test_every_stage_begins_with_the_base_or_an_earlier_stage(image):
    stages: set[str] = set()
    for rest in of(image, "FROM"):
        source, _, name = rest.partition(" AS ")
        chosen = re.sub(r"\$\{(?:WHEEL|HOROVOD_NCCL)\}", "", source)
        assert source in {"${BASE_IMAGE}", *stages} or any(stage.startswith(chosen) for stage in stages), rest
        stages.add(name)


@every_image
def test_no_instruction_uses_a_latest_version(image):
    assert not re.search(r":latest\b", "\n".join(rest for _, rest in instructions(image)))


@every_image
def test_nothing_is_downloaded_from_a_url_while_building(image):
    assert not of(image, "ADD")
    assert not [rest for rest in of(image, "RUN") if re.search(r"\b(curl|wget|git clone)\b|https?://", rest)]


@every_image
def test_the_user_is_a_number_that_is_not_root(image):
    """Kubernetes cannot verify runAsNonRoot for a user name."""
    users = [rest for word, rest in last_stage(image) if word == "USER"]
    assert users == ["65532:65532"]
    after = [word for word, _ in last_stage(image)]
    assert "RUN" not in after[after.index("USER") :]


@every_image
def test_no_layer_contains_package_lists(image):
    for rest in of(image, "RUN"):
        if "apt-get" in rest:
            assert "apt-get update" in rest
            assert "--no-install-recommends" in rest
            assert "rm -rf" in rest
            assert "/var/lib/apt/lists/*" in rest
        assert "apt-get upgrade" not in rest
        assert "sudo" not in rest


@every_image
def test_pip_installs_from_pinned_files_and_keeps_no_downloads(image):
    for rest in of(image, "RUN"):
        for command in re.findall(r"pip (?:--python \S+ )?install ([^&;]*)", rest):
            pinned = re.search(r"--requirement \S*requirements[\w-]*\.txt", command)
            own = command.startswith("--no-deps")  # the source of allranks, a wheel, an argument
            assert pinned or own, command
    assert "PIP_NO_CACHE_DIR=1" in text_of(image)


@every_image
def test_every_requirement_is_pinned(image):
    for path in sorted((ROOT / "images" / image).glob("requirements*.txt")):
        for requirement in requirements(path):
            assert [spec.operator for spec in requirement.specifier] == ["=="], f"{path.name}: {requirement}"


@every_image
def test_requirements_are_installed_before_programs_are_copied(image):
    """A changed program must not cause PyTorch to be installed again."""
    order = [f"{word} {rest}" for word, rest in instructions(image)]
    programs = max(index for index, line in enumerate(order) if re.match(r"COPY (train|operator) ", line))
    frameworks = max(index for index, line in enumerate(order) if "pip" in line and "equirement" in line)
    assert frameworks < programs
    assert all(
        index > programs for index, line in enumerate(order) if re.match(r"ARG (VERSION|REVISION|CREATED)", line)
    )


@every_image
def test_labels_describe_the_image_and_its_origin(image):
    [labels] = of(image, "LABEL")
    assert re.findall(r"org\.opencontainers\.image\.([\w.]+)=", labels) == LABELS


@every_image
def test_any_user_can_write_to_home(image):
    assert any("HOME=/tmp" in rest for word, rest in last_stage(image) if word == "ENV")


@training_images
def test_no_image_requests_gpus(image):
    """Pods that request no GPU would see all GPUs of the node if an image set this variable."""
    assert "NVIDIA_VISIBLE_DEVICES" not in text_of(image)


@pytest.mark.parametrize("image", ["horovod", "ray", "libraries"])
def test_images_with_pytorch_share_its_large_layers(image):
    """Builders reuse a layer if all previous ones are the same."""
    pytorch = instructions("pytorch")
    other = [(word, rest.removesuffix(" AS with-pytorch")) for word, rest in instructions(image)]
    if image == "horovod":
        other.remove(("ARG", "WHEEL=built"))
        other.remove(("ARG", "HOROVOD_NCCL=none"))
    shared = max(index for index, (word, rest) in enumerate(pytorch) if word == "RUN" and "pip install" in rest) + 1
    assert other[:shared] == pytorch[:shared]


@training_images
def test_images_whose_frameworks_use_NCCL_have_the_libraries_for_InfiniBand(image):
    if image != "mpi":
        assert any("ibverbs-providers libibverbs1" in rest for rest in of(image, "RUN"))


def test_horovod_with_NCCL_has_one_framework():
    """The wheels of both have libraries of two versions of CUDA under the same paths."""
    stages = dict(re.findall(r"^FROM (?:\S+) AS (\S+)\n(.*?)(?=^FROM)", text_of("horovod"), re.M | re.S))
    assert 'if [ "${HOROVOD_NCCL}" != pytorch ]; then python3 -m pip' in stages["with-pytorch"]
    assert stages["frameworks-pytorch"].strip() == stages["frameworks-none"].strip() == ""
    assert "tensorflow[and-cuda]==" in stages["frameworks-tensorflow"]
    assert "images/pytorch" not in stages["frameworks-tensorflow"]


def test_the_final_stage_of_horovod_has_no_compiler():
    installed = " ".join(rest for word, rest in last_stage("horovod") if word == "RUN")
    assert not re.search(r"\b(cmake|g\+\+|make|python3-dev|libopenmpi-dev)\b|cuda-toolkit", installed)
    assert "HOROVOD_GPU_OPERATIONS" not in "".join(rest for _, rest in last_stage("horovod"))


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


@pytest.mark.parametrize(
    ("image", "extras"),
    [
        ("operator", ["operator"]),
        ("ui", ["cli", "ui", "archive", "gs", "az"]),
        ("data", ["cli", "data", "gs", "az"]),
        ("archiver", ["archive", "gs", "az"]),
    ],
)
def test_an_image_has_the_packages_of_its_extras_and_no_client(image, extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for extra in extras for line in project["optional-dependencies"][extra]]
    asked = [Requirement(line) for line in project["dependencies"] + lines]
    pins = {canonicalize_name(pin.name): pin for pin in requirements(ROOT / "images" / image / "requirements.txt")}
    for requirement in asked:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin, f"{requirement} is not in images/{image}/requirements.txt"
        [version] = [spec.version for spec in pin.specifier]
        assert requirement.specifier.contains(version), (
            f"{pin} is not {requirement}: generate the file again, as it describes"
        )
    assert not set(pins) & {"kubernetes", "torch", "tensorflow", "tensorflow-cpu", "horovod"}
    own = {"operator": {"kopf"}, "ui": {"fastapi", "s3fs"}, "data": {"s3fs"}, "archiver": {"s3fs"}}
    assert set(pins) & {"kopf", "fastapi", "s3fs"} == own[image]


@pytest.mark.parametrize("image", ["operator", "ui", "data", "archiver"])
def test_pins_of_our_own_images_have_hashes(image):
    text = (ROOT / "images" / image / "requirements.txt").read_text()
    pins = re.findall(r"^\S+==", text, re.MULTILINE)
    assert pins
    assert len(re.findall(r"^\S+==.*\\\n    --hash=sha256:", text, re.MULTILINE)) == len(pins)


def test_only_listed_files_are_sent_to_the_builder():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line for line in lines if line.startswith("!")} == {
        "!LICENSE", "!README.md", "!images", "!operator", "!pyproject.toml", "!train"
    }  # fmt: skip
