"""Marks tests that start programs: `processes`, and `nightly` if they do not run for each change."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.processes import PROCESSES

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        chosen = PROCESSES.get(item.path.relative_to(HERE).as_posix()) if item.path.is_relative_to(HERE) else None
        if chosen is not None:
            item.add_marker(pytest.mark.processes)
            if item.originalname not in chosen:  # type: ignore[attr-defined]
                item.add_marker(pytest.mark.nightly)
