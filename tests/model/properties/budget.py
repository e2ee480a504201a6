"""Distributes the histories of a run over the properties. All use one seed, which is printed at the start and after a
failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
import pytest

Test = TypeVar("Test", bound=Callable[..., Any])

DEFAULT = 1500
DEFAULT_SEED = 20261123
histories = DEFAULT
seed = 0


def share(part: float, least: int = 1) -> Callable[[Test], Test]:
    """A property with this share of all histories: the shares add up to 1. It does not use the database of examples."""

    def decorate(test: Test) -> Test:
        settings = hypothesis.settings(
            max_examples=max(least, round(part * histories)),
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        seconds = max(300, histories)
        return pytest.mark.timeout(seconds)(hypothesis.seed(seed)(settings(test)))  # type: ignore[no-any-return]

    return decorate


def note(text: str) -> None:
    """Adds text to the report of a failing example; without effect in tests that do not use hypothesis."""
    if hypothesis.currently_in_test_context():
        hypothesis.note(text)
