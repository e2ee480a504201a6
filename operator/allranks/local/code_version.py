"""code.json and code.diff in the run directory: the git commit of the working directory at the start of the run, and
what its files differed from it in."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from allranks.code import differences, repository
from allranks.code.selection import HOLDS_CREDENTIALS, secret_by_name
from allranks.local.run_directories import DIFFERENCES_FILE, ROOT

_DESCRIBE = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
_UNTRACKED = (
    *("git", "-c", "core.quotePath=false", "ls-files", "-z", "--others", "--exclude-standard", "--directory"),
    *("--no-empty-directory", "--", ".", f":(exclude,top){ROOT}", f":(exclude){ROOT}"),
)
_DESCRIPTION = re.compile(r"(?P<commit>[0-9a-f]{40,64})(?P<dirty>-dirty)?")
_END_SECONDS = 1.0


class CodeVersion:
    """Asks git in the background, so that it delays no run: a large working tree takes seconds."""

    def __init__(self, directory: Path) -> None:
        self._outputs = [
            _Output(directory, _DESCRIBE),
            _Output(directory, repository.PATCH, repository.MAX_PATCH_BYTES),
            _Output(directory, _UNTRACKED),
        ]

    def write(self, path: Path, timeout: float = _END_SECONDS) -> None:
        """Write the files: code.json at `path`, code.diff beside it. Without a repository, or if git takes longer than
        `timeout` seconds, there is none."""
        deadline = time.monotonic() + timeout
        described, patch, untracked = (output.text(deadline) for output in self._outputs)
        if not (description := _DESCRIPTION.fullmatch(described.strip())):
            return
        with contextlib.suppress(OSError):
            path.write_text(json.dumps({"commit": description["commit"], "dirty": bool(description["dirty"])}) + "\n")
            text = differences.text_of(description["commit"], patch, (), _hidden, untracked.split("\0"))
            if text:
                path.with_name(DIFFERENCES_FILE).write_text(text, encoding="utf-8")


def _hidden(name: str) -> str:
    return HOLDS_CREDENTIALS if secret_by_name(name) else ""


class _Output:
    """What a command prints, or the first bytes of it. The command does not wait until somebody reads them."""

    def __init__(self, directory: Path, command: Sequence[str], size: int = 0) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # `text` closes it
        self._processes: list[subprocess.Popen[bytes]] = []
        with contextlib.suppress(OSError):  # git is not installed
            git = self._start(directory, command, subprocess.DEVNULL, subprocess.PIPE if size else self._file)
            if git.stdout:
                with git.stdout:
                    self._start(directory, ("head", "-c", str(size)), git.stdout, self._file)

    def _start(
        self, directory: Path, command: Sequence[str], stdin: int | IO[bytes], stdout: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=repository.environment(),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the ranks
        )
        self._processes.append(process)
        return process

    def text(self, deadline: float) -> str:
        """Empty if the command has not ended at this time of the monotonic clock."""
        with self._file as file:
            try:
                for process in self._processes:
                    process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return ""
            finally:
                for process in self._processes:
                    process.kill()
                    process.wait()
            file.seek(0)
            return file.read().decode("utf-8", "replace")
