"""Every Python block of the documentation runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unit.docs.snippets import ROOT, SNIPPETS, blocks

PLAIN = [snippet for snippet in SNIPPETS if not (snippet.framework or snippet.elsewhere)]
WITH_FRAMEWORK = [snippet for snippet in SNIPPETS if snippet.framework]


def test_every_block_has_a_snippet() -> None:
    """A new block needs an entry in snippets.py."""
    for page, text in blocks():
        assert len([snippet for snippet in SNIPPETS if snippet.part in text]) == 1, f"{page}: {text}"
    assert all((ROOT / snippet.elsewhere).is_file() for snippet in SNIPPETS if snippet.elsewhere)


def test_every_block_without_a_framework_runs(tmp_path) -> None:
    for snippet in PLAIN:
        run(sys.executable, snippet.text, tmp_path)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("snippet", WITH_FRAMEWORK, ids=lambda snippet: snippet.part)
def test_a_block_with_a_framework_runs(snippet, frameworks, tmp_path) -> None:
    run(str(frameworks / "bin" / "python"), snippet.text, tmp_path)


def run(python: str, text: str, folder) -> None:
    environment = {"PYTHONPATH": str(ROOT / "operator"), "TF_CPP_MIN_LOG_LEVEL": "3", "HOME": str(folder)}
    done = subprocess.run(
        [python, "-c", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stderr}"
