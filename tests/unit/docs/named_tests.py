"""The tests that pages and tests/rules.yaml name, as `FILE::FUNCTION`."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())


@cache
def _functions() -> dict[str, list[str]]:
    functions = defaultdict[str, list[str]](list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for function in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE):
            functions[f"{path.name}::{function}"].append(path.as_posix())
    return functions


def exists(test: str) -> bool:
    """Return whether there is exactly one such test; the file's path may begin with a folder."""
    file, _, function = test.partition("::")
    return sum(path.endswith(f"/{file}") for path in _functions().get(f"{Path(file).name}::{function}", ())) == 1
