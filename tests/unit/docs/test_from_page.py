"""The page for people who know another system names fields that exist."""

from __future__ import annotations

import re

import pytest

from allranks.api.crd import root_schema

from .test_docs import ROOT

PAGE = ROOT / "docs" / "guides" / "from.md"
SPEC = root_schema()["properties"]["spec"]
CODE = re.compile(r"`([A-Za-z]\w*(?:\.\w+)*)(?::[^`]*)?`")
"""A field, which a value may follow."""


def second_columns() -> list[str]:
    """The second columns of the tables with two columns."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return [cell for _, cell in rows if CODE.search(cell)]


def exists(path: str, schema: dict) -> bool:
    for name in path.split("."):
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return True  # a pod template
        schema = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        if not schema:
            return False
    return True


@pytest.mark.parametrize("cell", second_columns())
def test_a_field_on_the_page_exists_in_the_job_or_in_a_part_that_the_same_cell_names(cell: str) -> None:
    names = CODE.findall(cell)
    parts = [SPEC, *(SPEC["properties"].get(name, {}) for name in names)]
    for name in names:
        if "." in name or re.search(r"[a-z][A-Z]", name):
            assert any(exists(name, part) for part in parts), f"{name} is no field"
