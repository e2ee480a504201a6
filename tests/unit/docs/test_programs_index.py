"""The index of train/README.md has every program and manifest, and the table of strategies links to manifests."""

from __future__ import annotations

import re

from .test_docs import ROOT

INDEX = (ROOT / "train" / "README.md").read_text().partition("## Find a program")[2].partition("\n## ")[0]


def test_the_index_has_every_program() -> None:
    programs = {path.name for path in (ROOT / "train").glob("*.py")} - {"measure.py"}
    assert programs - set(re.findall(r"\w+\.py", INDEX)) == set()


def test_the_index_has_every_example_that_trains() -> None:
    examples = {path.stem for path in (ROOT / "examples").glob("*.yaml")} - {"trainingpool", "trainingpools"}
    assert set(re.findall(r"\(\.\./examples/([\w-]+)\.yaml\)", INDEX)) == examples


def test_the_page_about_frameworks_links_to_manifests_that_exist() -> None:
    page = (ROOT / "docs" / "reference" / "frameworks.md").read_text()
    found = re.findall(r"\(\.\./\.\./(examples/[\w-]+\.yaml)\)", page)
    assert len(found) > 20
    assert [name for name in found if not (ROOT / name).is_file()] == []
