"""Mistakes in manifests, and exactly what `allranks validate` prints for each: `mistakes.txt`.

A case is a title, what the user writes, the exit status and the output. What the user writes replaces fields of the
spec below (null removes one), or is a whole file if it has an apiVersion, a kind or metadata.
`python tests/unit/cli/test_mistakes.py` rewrites the outputs; review the difference.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from allranks.cli.main import cli

FILE = Path(__file__).with_name("mistakes.txt")
JOB: dict[str, Any] = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "DistributedTraining",
    "metadata": {"name": "sine"},
    "spec": {
        "framework": "pytorch",
        "image": "me/sine:1",
        "command": ["torchrun", "train.py"],
        "roles": {"worker": {"replicas": 2}},
    },
}


class Case(NamedTuple):
    """A section of the file."""

    title: str
    written: str
    expected: str

    @property
    def manifest(self) -> str:
        if re.search(r"^(apiVersion|kind|metadata):", self.written, re.MULTILINE):
            return self.written + "\n"
        spec = {**JOB["spec"], **yaml.safe_load(self.written)}
        kept = {name: value for name, value in spec.items() if value is not None or name == "roles"}
        return yaml.safe_dump({**JOB, "spec": kept})


def cases() -> list[Case]:
    sections = FILE.read_text().split("\n## ")[1:]
    parts = [section.partition("\n=> ") for section in sections]
    return [Case(*(text.strip("\n") for text in (*head.split("\n", 1), expected))) for head, _, expected in parts]


def printed(case: Case) -> str:
    """`STATUS` and the lines of both outputs."""
    result = CliRunner().invoke(cli, ["validate", "-"], input=case.manifest, catch_exceptions=False)
    return f"{result.exit_code}\n{result.stderr}{result.stdout}".strip("\n")


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.title)
def test_what_validate_prints(case: Case):
    assert printed(case) == case.expected


def test_every_message_is_at_most_a_few_lines_long():
    """A terminal has 80 or more columns; a message of more than four lines is not read."""
    too_long = [line for case in cases() for line in case.expected.splitlines() if len(line) > 320]
    assert too_long == []


if __name__ == "__main__":
    introduction = FILE.read_text().partition("\n## ")[0]
    made = [f"## {case.title}\n{case.written}\n=> {printed(case)}\n" for case in cases()]
    FILE.write_text("\n".join([introduction.rstrip("\n") + "\n", *made]))
