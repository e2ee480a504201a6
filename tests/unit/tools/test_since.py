"""`tools/test.py --since`: which parts and folders a change needs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import parts  # noqa: E402
import since  # noqa: E402

SOURCE = "operator/allranks"


def names(*paths: str) -> set[str]:
    return {part.name for part in since.choose(paths).parts}


def folders(*paths: str) -> set[str]:
    """The folders with which the part `unit` would run; empty: all, or the part does not run."""
    commands = [part.commands[0] for part in since.choose(paths).parts if part.name == "unit"]
    words = [str(word) for command in commands for word in command]
    return {word for word in words if word.startswith(since.UNIT) and not word.endswith(".py")}


def test_without_a_change_nothing_runs():
    assert since.choose([]) == ([], "nothing has changed")


@pytest.mark.parametrize(
    ("path", "needs"),
    [
        (f"{SOURCE}/core/sync/active.py", {"static", "unit-all", "frameworks", "apiserver", "more-scenarios"}),
        (f"{SOURCE}/operator/apply.py", {"static", "unit", "processes", "apiserver", "more-scenarios"}),
        (f"{SOURCE}/local/new.py", {"static", "unit", "processes", "more-processes", "frameworks"}),
        (f"{SOURCE}/ui/templates/new.html", {"static", "unit", "browser"}),
        (f"{SOURCE}/new_room/file.py", {"static", "processes", "frameworks", "apiserver"}),
        ("images/operator/Dockerfile", {"static", "unit", "nodes", "pods"}),
        ("docs/start.md", {"static", "unit"}),
        ("tests/queueing/README.md", {"static", "unit"}),
        ("tests/apiserver/test_scenarios.py", {"static", "apiserver", "more-scenarios"}),
        ("tests/faults/runs.py", {"static", "apiserver-all"}),
        ("something/new", {"static", "unit", "processes", "frameworks", "apiserver"}),
    ],
)
def test_the_path_decides_which_parts_run(path, needs):
    assert names(path) == needs


def test_folders_that_import_what_has_changed_are_chosen_also_through_other_modules():
    assert {"tests/unit/kube", "tests/unit/cli", "tests/unit/archive"} <= folders(f"{SOURCE}/kube/pod_logs.py")
    assert {"tests/unit/archive", "tests/unit/ui"} <= folders("tests/support/job_api.py")
    assert folders(f"{SOURCE}/ui/templates/new.html") == {"tests/unit/ui"}
    assert "tests/unit/core" not in folders(f"{SOURCE}/ui/new.py")


def test_the_reason_is_a_path():
    text = since.choose(["images/operator/Dockerfile", "docs/start.md"]).text
    assert re.search(r"^pods +30 min  images/operator/Dockerfile$", text, re.MULTILINE)
    assert "  tests/unit/docs: docs/start.md" in text


def test_every_rule_names_parts_and_folders_that_exist():
    for _, needs in since.AREAS:
        for need in needs.split():
            assert need in parts.PARTS or (ROOT / need).is_dir(), need
