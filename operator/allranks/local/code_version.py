"""code.json in the run directory: the git commit of the working directory at the start of the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

_COMMAND = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
_DESCRIPTION = re.compile(r"(?P<commit>[0-9a-f]{40,64})(?P<dirty>-dirty)?")
_END_SECONDS = 1.0


class CodeVersion:
    """Asks git in the background, so that it delays no run: a large working tree takes seconds."""

    def __init__(self, directory: Path) -> None:
        self._git: subprocess.Popen[str] | None = None
        with contextlib.suppress(OSError):  # git is not installed
            self._git = subprocess.Popen(
                _COMMAND,
                cwd=directory,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the ranks
            )

    def write(self, path: Path, timeout: float = _END_SECONDS) -> None:
        """Writes the file. Without a repository, or if git takes longer than `timeout` seconds, there is none."""
        git, self._git = self._git, None
        if git is None:
            return
        with git:
            try:
                described, _ = git.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                git.kill()
                return
        if found := _DESCRIPTION.fullmatch(described.strip()):
            with contextlib.suppress(OSError):
                path.write_text(json.dumps({"commit": found["commit"], "dirty": bool(found["dirty"])}) + "\n")
