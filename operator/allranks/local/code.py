"""The code and the packages of a job on this machine: a clean copy in the run directory, and a cached layer.

The ranks run the copy, so that a file that is not shipped is missing here as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from allranks.api.job import Job
from allranks.code.bundle import Bundle
from allranks.core.facts import pod_template
from allranks.core.facts.model import ANY_PLATFORM
from allranks.core.objects import code as in_pods
from allranks.errors import CannotRun
from allranks.inpod import unpack
from allranks.inpod.install_packages import LAYERS
from allranks.local.environment import machine_environment
from allranks.local.errors import explain
from allranks.local.run_directories import CODE_FILE, DIFFERENCES_FILE
from allranks.pod_bundle import HELPERS

CACHE = "ALLRANKS_CACHE"
"""Variable with the directory of caches. Default: ~/.cache/allranks."""


class LocalCode:
    """What one run needs before its first pod."""

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
        """Raise CannotRun if the code is not on this machine."""
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
                unpack.extract(bundle.tar, directory)
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
        """That of the program. Raises CannotRun."""
        templates = pod_template.role_templates(self._job, ANY_PLATFORM).values()
        program = next(iter(in_pods.python(pod_template.trainer(template)) for template in templates), "python3")
        path = shutil.which(program, path=self._environ.get("PATH", os.defpath))
        if path is None:
            raise CannotRun(
                f"the packages ({', '.join(self._job.spec.packages or ())}) need {program}, which is missing"
            )
        return path
