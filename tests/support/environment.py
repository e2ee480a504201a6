"""The environment of tests: the same on every machine, whatever the user has set, stored or left behind.

`tests/conftest.py` replaces the variables of each process that runs tests, its home and its working directory; programs
that tests start inherit these. Programs that the tests build are built with the user's own (`support.tools`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAMS = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "SUDO_UID")
"""Without these, programs do not start, have no space, or (git) refuse a repository of another user."""
OPTIONS = (
    *("HISTORIES", "HISTORIES_SEED", "FAULTS", "FAULTS_SEED", "SPEC_SEED", "SPEC_CHANGES"),
    *("KUBERNETES_VERSION", "GOGC", "SCREENSHOTS", "STATUSES"),
    *("ALLRANKS_TEST_CLUSTER", "ALLRANKS_E2E", "ALLRANKS_E2E_IMAGES", "ALLRANKS_IMAGES_WITH_CUDA"),
    *("ALLRANKS_FLOOD_BYTES", "ALLRANKS_FLOOD_SECONDS", "ALLRANKS_OUTAGE_SECONDS"),
)
"""Options of the tests themselves."""
PATHS = ("ALLRANKS_E2E", "KUBECONFIG", "SCREENSHOTS", "STATUSES")
"""Options that are relative to the user's working directory."""
FIXED = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "xterm-256color"}

USERS: dict[str, str] = dict(os.environ)
"""The environment before `replace`."""


def clean(environ: Mapping[str, str] = USERS) -> dict[str, str]:
    """Return the variables that tests get."""
    names = PROGRAMS + OPTIONS
    if environ.get("ALLRANKS_TEST_CLUSTER") == "yes":  # otherwise it may name a production cluster
        names += ("KUBECONFIG",)
    kept = {name: value for name, value in environ.items() if name in names or name.startswith("PYTEST_")}
    return kept | {name: str(Path(kept[name]).absolute()) for name in PATHS if name in kept} | FIXED


def interpreter() -> dict[str, str]:
    """Return the user's variables without those that a Python reads before it runs pytest."""
    kept = {name: value for name, value in USERS.items() if not name.startswith(("PYTHON", "LC_"))}
    return kept | {"LANG": FIXED["LANG"], "LC_ALL": FIXED["LC_ALL"]}


class Environment:
    """The variables, an empty home and an empty working directory, until `close`."""

    def __init__(self) -> None:
        self._directory = Path.cwd()
        self._folder = Path(tempfile.mkdtemp(prefix="allranks-tests-"))
        self.home, self.directory = self._folder / "home", self._folder / "directory"
        self.home.mkdir()
        self.directory.mkdir()
        # The user's own git may need the same to read a repository of another user.
        (self.home / ".gitconfig").write_text(f"[safe]\n\tdirectory = {ROOT}\n")
        _set(clean() | {"HOME": str(self.home)})

    def enter(self) -> None:
        """Change into the working directory: not before pytest has read the paths of its options."""
        os.chdir(self.directory)

    def check(self) -> None:
        """Raise AssertionError if a test has left a file in the working directory, or another working directory."""
        left = [path.name for path in self.directory.iterdir()]
        for name in left:
            path = self.directory / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        moved = Path.cwd() != self.directory.resolve()
        os.chdir(self.directory)
        assert not left, f"the test has written into the working directory, which all tests share: {', '.join(left)}"
        assert not moved, "the test has changed the working directory: use monkeypatch.chdir"

    def close(self) -> None:
        os.chdir(self._directory)
        _set(USERS)
        shutil.rmtree(self._folder, ignore_errors=True)


def _set(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
