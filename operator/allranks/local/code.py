"""The code and the packages of a job on this machine: a clean copy in the run directory, and a cached layer.

The ranks run the copy, so that a file that is not shipped is missing here as well. `code.json` and `code.diff` in the
run directory hold the git commit of the working directory at the start of the run, and what its files differed from it
in.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from allranks.api.job import Job
from allranks.code import differences, repository
from allranks.code.bundle import Bundle
from allranks.code.selection import HOLDS_CREDENTIALS, secret_by_name
from allranks.core.facts import pod_template
from allranks.core.facts.model import ANY_PLATFORM
from allranks.core.objects import code as in_pods
from allranks.errors import CannotRun
from allranks.inpod import unpack
from allranks.inpod.install_packages import LAYERS
from allranks.local.environment import machine_environment
from allranks.local.errors import explain
from allranks.local.run_directories import CODE_FILE, DIFFERENCES_FILE, ROOT
from allranks.pod_bundle import HELPERS

CACHE = "ALLRANKS_CACHE"
"""Variable with the directory of caches. Default: ~/.cache/allranks."""


class LocalCode:
    """The code and the packages of one run, made before its first pod."""

    def __init__(self, job: Job, bundle: Bundle | None, run_dir: Path, users_environ: Mapping[str, str]) -> None:
        self._job, self._bundle, self._run_dir = job, bundle, run_dir
        self._environ = machine_environment(users_environ)
        self._cache = Path(users_environ.get(CACHE) or Path.home() / ".cache" / "allranks")
        self.directories: dict[str, Path] = {}
        """Volume -> its directory, shared by all pods."""
        if bundle:
            self.directories[in_pods.VOLUME] = run_dir / "code"
        self._installing: asyncio.subprocess.Process | None = None
        self._stopped = False
        if job.spec.packages:
            self.directories[in_pods.PACKAGES] = run_dir / "packages"

    def check(self) -> None:
        """Check that the code is on this machine. Raise CannotRun if it is not."""
        code = self._job.spec.code
        if code and code.config_map and not self._bundle:
            raise CannotRun(
                f"the code is in the ConfigMap {code.config_map} of a cluster (spec.code): run a directory with it, "
                "--code DIR"
            )

    def notes(self) -> Iterator[str]:
        bundle = self._bundle
        if bundle:
            commit = f", commit {bundle.commit[:12]}{' with changes' if bundle.dirty else ''}" if bundle.commit else ""
            number = len(bundle.files)
            files = f"{number} file{'s' * (number != 1)}"
            yield f"the ranks run a copy of {bundle.source} ({files}{commit}): {self.directories[in_pods.VOLUME]}"

        if packages := self._job.spec.packages:
            yield f"pip provides {', '.join(packages)} before the start (cache: {self._cache / LAYERS})"

    async def provide(self) -> None:
        """Make the copy and install the packages. Raise CannotRun."""
        if bundle := self._bundle:
            directory = self.directories[in_pods.VOLUME]
            try:
                if directory.exists():
                    shutil.rmtree(directory)  # of an earlier run with the same --run-dir
                directory.mkdir()
                unpack.extract(io.BytesIO(bundle.tar), directory, "the code")
                described = {key: bundle.described[key] for key in bundle.described if key != "configMap"}
                (self._run_dir / CODE_FILE).write_text(json.dumps(described) + "\n", encoding="utf-8")
                (self._run_dir / DIFFERENCES_FILE).unlink(missing_ok=True)
                if bundle.differences:
                    (self._run_dir / DIFFERENCES_FILE).write_text(bundle.differences, encoding="utf-8")
            except (OSError, unpack.Unusable) as error:
                text = explain(error) if isinstance(error, OSError) else str(error)
                raise CannotRun(f"the code cannot be copied to {directory}: {text}") from error
        if self._job.spec.packages:
            await self._install(self._job.spec.packages)

    async def _install(self, packages: list[str]) -> None:
        program = [str(HELPERS / "install_packages.py"), "--cache", str(self._cache)]
        words = [self._python(), *program, str(self.directories[in_pods.PACKAGES]), *packages]
        self._installing = process = await asyncio.create_subprocess_exec(
            *words,
            env=dict(self._environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, errors = await process.communicate()
        except BaseException:
            self.stop()
            await process.wait()
            raise
        if process.returncode and not self._stopped:
            raise CannotRun(errors.decode(errors="replace").strip().removeprefix("allranks: "))

    def stop(self) -> None:
        """End an installation."""
        self._stopped = True
        if self._installing and self._installing.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._installing.pid, signal.SIGTERM)

    def _python(self) -> str:
        """Return the Python of the program. Raise CannotRun."""
        templates = pod_template.role_templates(self._job, ANY_PLATFORM).values()
        program = next(iter(in_pods.python(pod_template.trainer(template)) for template in templates), "python3")
        path = shutil.which(program, path=self._environ.get("PATH", os.defpath))
        if path is None:
            raise CannotRun(
                f"the packages ({', '.join(self._job.spec.packages or ())}) need {program}, which is missing"
            )
        return path


# --- the commit that was run ------------------------------------------------------------------------------------------

_DESCRIBE = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
_UNTRACKED = (
    *("git", "-c", "core.quotePath=false", "ls-files", "-z", "--others", "--exclude-standard", "--directory"),
    *("--no-empty-directory", "--", ".", f":(exclude,top){ROOT}", f":(exclude){ROOT}"),
)
_DESCRIPTION = re.compile(r"(?P<commit>[0-9a-f]{40,64})(?P<dirty>-dirty)?")
_START_SECONDS = 2.0
_END_SECONDS = 1.0


class CodeVersion:
    """Asks git in the background, so that it delays no run: a large working tree takes seconds."""

    def __init__(self, directory: Path, timeout: float = _START_SECONDS) -> None:
        """Ask nothing if git does not list its settings within `timeout` seconds."""
        env = repository.environment(directory, timeout)
        self._outputs = env and [
            _Output(directory, env, _DESCRIBE),
            _Output(directory, env, repository.PATCH, repository.MAX_PATCH_BYTES),
            _Output(directory, env, _UNTRACKED),
        ]

    def write(self, path: Path, timeout: float = _END_SECONDS) -> None:
        """Write the files: code.json at `path`, code.diff beside it. Without a repository, or if git takes longer than
        `timeout` seconds, there is none."""
        if not self._outputs:
            return
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
    """The output of a command, or its first bytes. The command does not wait for a reader."""

    def __init__(self, directory: Path, env: Mapping[str, str], command: Sequence[str], size: int = 0) -> None:
        self._env = env
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
            env=self._env,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the ranks
        )
        self._processes.append(process)
        return process

    def text(self, deadline: float) -> str:
        """Return an empty text if the command has not ended at this time of the monotonic clock."""
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
