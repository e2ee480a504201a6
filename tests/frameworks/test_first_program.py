"""The first program of the README and of the page for newcomers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.commands import allranks

ROOT = Path(__file__).parents[2]


def program(page: str) -> str:
    """hello.py of a page, without comments."""
    found = re.search(
        r"^```python\n(?:# hello.py\n)?(import torch\n.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, page
    return re.sub(r"^#.*\n", "", found[1], flags=re.MULTILINE)


@pytest.mark.slow
def test_the_first_program_of_the_documentation_runs_as_two_ranks(frameworks, tmp_path):
    assert program("README.md") == program("docs/start.md")
    (tmp_path / "hello.py").write_text(program("README.md"))
    done = allranks("run", "hello.py", "--replicas", "2", folder=tmp_path, programs=frameworks / "bin")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"worker-{rank} | rank {rank} of 2: the sum is 2\n" in done.stdout
    assert re.search(r"^hello Succeeded in ", done.stdout + done.stderr, re.MULTILINE)
