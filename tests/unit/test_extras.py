"""The command that installs an extra, for each way in which allranks can have been installed."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from allranks import extras

COMMIT = 40 * "a"
# Sentence, what the installer recorded (direct_url.json), the command.
ORIGINS = [
    ("a package index", None, "pip install 'allranks[cli]'"),
    ("a clone", {"url": "file:///home/me/my%20clone", "dir_info": {}}, "pip install '/home/me/my clone[cli]'"),
    (
        "an editable clone",
        {"url": "file:///home/me/allranks", "dir_info": {"editable": True}},
        "pip install --editable '/home/me/allranks[cli]'",
    ),
    (
        "a wheel",
        {"url": "file:///tmp/allranks-0.2.0-py3-none-any.whl", "archive_info": {}},
        "pip install '/tmp/allranks-0.2.0-py3-none-any.whl[cli]'",
    ),
    (
        "a wheel of a web server",
        {"url": "https://example.com/allranks-0.2.0-py3-none-any.whl", "archive_info": {}},
        "pip install 'allranks[cli] @ https://example.com/allranks-0.2.0-py3-none-any.whl'",
    ),
    (
        "git",
        {"url": "https://example.com/allranks.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
        f"pip install 'allranks[cli] @ git+https://example.com/allranks.git@{COMMIT}'",
    ),
]


class Installed:
    def __init__(self, origin: object) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return json.dumps(self.origin) if self.origin else None


@pytest.mark.parametrize(("origin", "command"), [case[1:] for case in ORIGINS], ids=[case[0] for case in ORIGINS])
def test_the_command_takes_allranks_from_where_it_came(monkeypatch, origin, command) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(origin))
    assert extras.install_command("cli") == command


def test_a_copy_that_no_installer_recorded_is_installed_from_a_clone(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert extras.install_command("login") == "pip install '.[cli,login]' in a clone of allranks"


@pytest.mark.parametrize(
    ("file", "command"),
    [("uv-receipt.toml", "uv tool install --force"), ("pipx_metadata.json", "pipx install --force")],
)
def test_an_environment_of_uv_or_pipx_is_installed_again_by_its_tool(monkeypatch, tmp_path, file, command) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(None))
    assert extras.install_command("cli") == f"{command} 'allranks[cli]'"


def test_every_extra_that_a_message_can_name_exists() -> None:
    root = Path(__file__).parents[2]
    text = (root / "pyproject.toml").read_text()
    for extra in extras.Extra.__args__:
        assert f"\n{extra} = [" in text
