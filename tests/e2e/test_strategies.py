"""Strategies that no manifest of examples/ selects by itself: the rows of docs/reference/frameworks.md with options."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from .cluster import REPOSITORY
from .jobs import Team, example
from .test_examples import RANK_0, assert_learned

sys.path.insert(0, str(REPOSITORY / "tools"))
import strategies  # type: ignore[import-not-found]

pytestmark = pytest.mark.nightly
CASES = [case for case in strategies.CASES if strategies.first_option(case) and not strategies.is_of_manifest(case)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.strategy)
def test_a_strategy_trains_in_pods(team: Team, case: Any) -> None:
    [*_, document] = documents = example(case.manifest)
    spec = document["spec"]
    spec["args"] = [strategies.first_option(case), *(word for word in spec.get("args", ()) if not chooses(word, case))]
    for setting in case.settings:
        field, value = setting.split("=")
        _, role, name = field.split(".")
        spec["roles"][role][name] = int(value)
    job = team.start(documents)
    team.completes(job)
    first = RANK_0.get(case.manifest, "master" if "master" in spec["roles"] else "worker")
    assert_learned(team.kubectl("logs", f"{job}-{first}-0-0"))


def chooses(word: str, case: Any) -> bool:
    """Whether this argument of the manifest selects another strategy."""
    return word.startswith(strategies.first_option(case).partition("=")[0] + "=")
