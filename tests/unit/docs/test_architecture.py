"""docs/dev/architecture.md: the files and functions of the traced event exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())


def test_the_steps_of_the_traced_event_exist() -> None:
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text()
    steps = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| `(\w+)` \|", page, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, 13))
    for number, file, function in steps:
        source = (ROOT / "operator" / "allranks" / file).read_text()
        assert re.search(rf"^ *(async )?def {function}\(", source, re.MULTILINE), f"{number}: {file} {function}"
