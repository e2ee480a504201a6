"""The exact objects that a cluster gets for each manifest, so that a change of them is visible in review.

`examples/NAME.yaml` and `tests/model/golden/manifests/NAME.yaml` make `tests/model/golden/NAME.yaml`.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from allranks.cli.main import cli

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SWEEPS = ("penguins-sweep",)
"""Their objects are jobs, which the operator creates one after the other."""
MANIFESTS = sorted(
    [
        *(path for path in (ROOT / "examples").glob("*.yaml") if path.stem not in SWEEPS),
        ROOT / "examples" / "queues" / "penguins.yaml",
        *(HERE / "manifests").glob("*.yaml"),
    ],
    key=lambda p: p.name,
)
UPDATE = "make golden"
# Not the real image, whose tag is the version: a release must not change golden files.
OPTIONS = ["--helper-image", "allranks/operator:golden", "--data-image", "allranks/data:golden"]


def golden(manifest: Path) -> Path:
    return HERE / manifest.name


def render(*manifests: Path) -> str:
    result = CliRunner().invoke(cli, ["render", *OPTIONS, *map(str, manifests)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_has_exactly_the_objects_in_its_golden_file(manifest, update_golden):
    now, file = render(manifest), golden(manifest)
    if update_golden:
        file.write_text(now)
        return
    name = file.relative_to(ROOT)
    if not file.exists():
        pytest.fail(f"{name} is missing: look at what '{UPDATE}' writes, and commit it", pytrace=False)
    before = file.read_text()
    if before != now:
        shown = difflib.unified_diff(before.splitlines(), now.splitlines(), str(name), "allranks render", lineterm="")
        text = "\n".join(shown)
        pytest.fail(f"{text}\n\nIf this is meant, run '{UPDATE}' and commit the files that it writes.", pytrace=False)


def test_every_golden_file_has_its_manifest(update_golden):
    expected = {golden(manifest) for manifest in MANIFESTS}
    orphans = [file for file in HERE.glob("*.yaml") if file not in expected]
    if update_golden:
        for file in orphans:
            file.unlink()
        return
    assert orphans == [], f"their manifests are gone: '{UPDATE}' removes them"


def test_each_manifest_has_its_own_golden_file():
    assert len({manifest.name for manifest in MANIFESTS}) == len(MANIFESTS)


def test_rendering_twice_is_byte_identical():
    assert render(*MANIFESTS) == render(*MANIFESTS)


def test_rendering_in_another_process_with_another_hash_seed_is_byte_identical():
    """The order of sets differs there and must not affect the output."""
    again = subprocess.run(
        [sys.executable, "-m", "allranks", "render", *OPTIONS, *map(str, MANIFESTS)],
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        capture_output=True,
        timeout=300,
        check=True,
    )
    assert again.stdout.decode() == render(*MANIFESTS)
