"""What a release says of itself: one version everywhere, no image without a version, the packages that were tested."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from allranks.cli.commands.render import render
from allranks.operator.settings import Settings
from allranks.version import OPERATOR_IMAGE, __version__

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "allranks"
IMAGE = re.compile(r"\bghcr\.io/allranks/\w+:[\w.-]*\w")


def listed(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in (ROOT / name for name in names) if path.is_file()]


def test_the_chart_and_its_operator_have_the_version_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_citation_has_the_version_of_the_package():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_the_changelog_has_the_version_after_the_unreleased_changes():
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", titles[1])


def test_the_helper_image_is_the_operators_image_of_this_version():
    [option] = [parameter for parameter in render.params if parameter.name == "helper_image"]
    assert Settings().helper_image == option.default == OPERATOR_IMAGE == f"ghcr.io/allranks/operator:{__version__}"


@pytest.mark.parametrize("path", listed("README.md", "docs", "examples", "charts", "train"), ids=lambda path: path.name)
def test_every_image_of_allranks_has_the_tag_of_this_version(path):
    if path.suffix == ".png":
        pytest.skip("a picture")
    # A placeholder; recorded sessions show the tag of the images of the tests; the chart's own tests set one.
    allowed = {__version__, "VERSION", "e2e"} | ({"9.8.7"} if path.parent == CHART / "tests" else set())
    assert {image.partition(":")[2] for image in IMAGE.findall(path.read_text())} <= allowed


def test_no_file_names_the_latest_image():
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in listed(
            "README.md", "SECURITY.md", "docs", "examples", "charts", "images", "operator", "tools", "train"
        )
        if path.suffix not in (".png", ".sum", ".mod")
        for line in path.read_text().splitlines()
        if re.search(r"[\w}]:latest\b", line)
    ]
    assert found == []


def test_image_tags_follow_the_version(monkeypatch):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import image_tags
    finally:
        sys.path.pop(0)
    monkeypatch.setattr(image_tags, "version", lambda: "9.9.9")
    assert image_tags.tagged("FROM ghcr.io/allranks/pytorch:0.2.0\n") == "FROM ghcr.io/allranks/pytorch:9.9.9\n"
    assert image_tags.tagged("ghcr.io/allranks/pytorch:latest.") == "ghcr.io/allranks/pytorch:9.9.9."
    assert image_tags.tagged("  ok       allranks       version 0.1.0, Python 3") == (
        "  ok       allranks       version 9.9.9, Python 3"
    )
    recorded = "Image: ghcr.io/allranks/pytorch:e2e\nallranks, version 0.1.0"
    assert image_tags.tagged(recorded) == recorded


def pins_of(image):
    text = (ROOT / "images" / image / "requirements.txt").read_text()
    return dict(re.findall(r"^([a-z0-9_.-]+)==([^\s;]+)", text, re.MULTILINE))


@pytest.mark.parametrize("image", ["ui", "data", "archiver"])
def test_the_images_of_allranks_have_the_same_version_of_a_package(image):
    operator, other = pins_of("operator"), pins_of(image)
    common = operator.keys() & other.keys()
    assert "pyyaml" in common
    assert {name: other[name] for name in common} == {name: operator[name] for name in common}


def test_the_tests_use_the_packages_of_the_operators_image():
    """tools/venv.sh installs these versions. A failure: run `make check` again, which installs them."""
    joined = (ROOT / "images" / "operator" / "requirements.txt").read_text().replace("\\\n", " ")
    pins = [Requirement(line.split(" --hash")[0]) for line in joined.splitlines() if "==" in line]
    wanted = {pin.name: str(pin.specifier) for pin in pins if not pin.marker or pin.marker.evaluate()}
    assert len(wanted) > 30
    assert {name: f"=={metadata.version(name)}" for name in wanted} == wanted
