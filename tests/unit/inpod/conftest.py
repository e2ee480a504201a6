"""Runs a program as in a pod: through `watch.py`, with the start-up code and a fake report server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allranks.pod_bundle import copy
from support.fake_report_server import FakeReportServer, hub_in, ok

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def helpers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("allranks")
    copy(made)
    watch, usual = made / "program_run.py", "LAST_OUTPUT_SECONDS = 10.0"
    text = watch.read_text()
    assert usual in text
    # On a busy machine more output may still be on its way; and a test waits for less time than this.
    watch.write_text(text.replace(usual, "LAST_OUTPUT_SECONDS = 600.0"))
    return made


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeReportServer]:
    with hub_in(tmp_path) as hub:
        hub.answers = [ok(interval=0.1)]
        yield hub


@pytest.fixture
def run(helpers: Path, hub: FakeReportServer, tmp_path: Path) -> Run:
    """Runs a program through `watch.py`, beside modules that it may import."""

    def one(text: str, modules: dict[str, str] | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        site = tmp_path / "site"
        for name, content in {"unused.py": "", **(modules or {})}.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(content)
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON"))}
        return subprocess.run(
            [sys.executable, helpers / "watch.py", "--", sys.executable, "-c", text],
            env=ours | hub.environment | {"PYTHONPATH": str(site), "RANK": "0"} | environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return one
