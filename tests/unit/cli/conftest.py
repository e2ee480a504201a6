"""An archive on this machine, and the CLI with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from support.archives import WrittenArchive
from support.some_api import SomeApi

Run = Callable[..., Result]


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    (tmp_path / "archive").mkdir()
    return WrittenArchive(tmp_path / "archive")


@pytest.fixture
def allranks(api: SomeApi, archive: WrittenArchive) -> Run:
    """Runs `allranks WORDS` with the API server of the test module and the archive."""

    def run(*words: str, url: str | None = archive.url, kubeconfig: Path = api.kubeconfig) -> Result:
        return CliRunner().invoke(cli, [*words, "--kubeconfig", str(kubeconfig)], env={"ALLRANKS_ARCHIVE": url})

    return run
