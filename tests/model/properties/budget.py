"""Shares the histories of a run among the properties, all from one seed that is told at the start and at a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
import pytest

Test = TypeVar("Test", bound=Callable[..., Any])

DEFAULT = 2400
DEFAULT_SEED = 20261123
histories = DEFAULT
seed = 0


def share(part: float, least: int = 1) -> Callable[[Test], Test]:
    """A property that plays this part of all histories. It neither reads nor writes a database of examples."""

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


def tell(text: str) -> None:
    """What happened, for a failing example of hypothesis; an example that is kept by name shows its own."""
    if hypothesis.currently_in_test_context():
        hypothesis.note(text)
