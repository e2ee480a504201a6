"""The checkpoints of a job on this machine, and of the earlier run from which it starts (`resumeFrom`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from allranks.api.data import RESUME_INPUT
from allranks.api.job import Job
from allranks.api.status import Rollback
from allranks.core.facts import resume_source, stored_checkpoints
from allranks.core.facts.model import Event
from allranks.core.transfers import data
from allranks.errors import CannotRun
from allranks.inpod import copy_checkpoint
from allranks.local import run_directories
from allranks.local.errors import explain
from allranks.local.run_directories import StoredRun
from allranks.local.volumes import Volumes
from allranks.report import checkpoints

LINK = "checkpoint"
"""In a run directory: a link to the folder with the checkpoints, wherever it is."""


class LocalCheckpoints:
    """The checkpoints of one run, provided before its first pod."""

    def __init__(self, job: Job, volumes: Volumes, run_dir: Path) -> None:
        self._job, self._volumes, self._run_dir = job, volumes, run_dir
        self._rollback: Rollback | None = None
        self._fetched = volumes.mapped.get(data.input_volume(RESUME_INPUT), run_dir)

    def check(self) -> None:
        """Check that there are checkpoints to start from. Raise CannotRun if there are none."""
        if self._job.spec.resume_from:
            self._source()
            self._target()

    async def provide(self, tell: Callable[[Event], None]) -> None:
        """Copy the checkpoints of the earlier run, and link the folder of this one. Raise CannotRun."""
        if self._job.spec.resume_from:
            source, target = self._source(), self._target()
            start, name = self._job.spec.starting_point, self._job.spec.resume_from
            step = None if start else resume_source.split(name)[1]
            empty = start is not None and start.may_be_empty
            try:
                target.mkdir(parents=True, exist_ok=True)
                done = await asyncio.to_thread(copy_checkpoint.copy, source, target, name, step, empty)
            except copy_checkpoint.Unusable as error:
                raise CannotRun(f"spec.resumeFrom: {error}") from error
            except OSError as error:
                raise CannotRun(f"the checkpoints in {source} cannot be copied: {explain(error)}") from error
            if done:
                tell(Event("Resumed", done))
        if folder := self.folder:
            with contextlib.suppress(OSError):  # the link is a convenience
                link = self._run_dir / LINK
                link.unlink(missing_ok=True)
                link.symlink_to(os.path.relpath(folder, self._run_dir))

    async def set_aside(self, rollback: Rollback, tell: Callable[[Event], None]) -> None:
        """Set the checkpoint aside that the attempt before could not read, once."""
        if rollback == self._rollback:
            return
        self._rollback = rollback
        if folder := self.folder:
            name = stored_checkpoints.aside_name(self._job, rollback)
            try:
                done = await asyncio.to_thread(checkpoints.set_aside, folder, rollback.unreadable_step, name)
            except OSError as error:
                done = f"the checkpoint of step {rollback.unreadable_step} cannot be set aside: {explain(error)}"
            tell(Event("CheckpointSetAside", done))

    @property
    def folder(self) -> Path | None:
        """The folder with the checkpoints; None if there is none, or one for each pod."""
        checkpoint = self._job.spec.checkpoint
        if checkpoint is None:
            return None
        volume = checkpoint.volume.model_dump(by_alias=True, exclude_none=True) if checkpoint.volume else {}
        if {"emptyDir", "ephemeral"} & volume.keys():
            return None
        claim = {"persistentVolumeClaim": {"claimName": checkpoint.claim}} if checkpoint.claim else {}
        directory = self._volumes.locate("", {"name": "checkpoint", **volume, **claim})
        return None if isinstance(directory, str) else directory / (checkpoint.sub_path or "")

    def _target(self) -> Path:
        folder = self.folder
        if folder is None:
            raise CannotRun("spec.resumeFrom: the checkpoints of this job have no folder that all its pods share here")
        source = self._source().resolve()
        if source.is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(source):
            raise CannotRun(
                f"spec.checkpoint: {folder} overlaps {source}, whose checkpoints must not change: choose another folder"
            )
        return folder

    def _source(self) -> Path:
        """Return the folder with the fetched checkpoints, or with those of the newest run of the job. Raise
        CannotRun."""
        if self._job.spec.starting_point:
            return self._fetched
        name, step = resume_source.split(self._job.spec.resume_from or "")
        run_dir = self._run_dir.resolve()
        runs = [run for run in find_runs(name, run_directories.ROOT) if run.directory.resolve() != run_dir]
        if not runs:
            raise CannotRun(f"spec.resumeFrom: there is no run of {name} in {run_directories.ROOT}")
        candidates = [run for run in runs if (run.directory / LINK).is_dir()]
        if not candidates:
            raise CannotRun(f"spec.resumeFrom: {runs[-1].directory} has no checkpoints")
        if step is None and candidates[-1].running:
            text = f"{candidates[-1].directory} still runs and may be writing its newest checkpoint"
            raise CannotRun(f"spec.resumeFrom: {text}: name one of its steps, {name}/STEP, or end it first")
        return candidates[-1].directory / LINK


def find_runs(job: str, root: Path) -> list[StoredRun]:
    """Return the runs of a job, or of a trial of a sweep with this name, below `root`, the oldest first."""
    paths = [*root.glob(f"{job}/*"), *root.glob(f"*/*/trials/{job}")]
    files = {path: path / run_directories.RUN_FILE for path in paths if not path.is_symlink()}
    directories = [path for path, file in files.items() if file.is_file()]
    return [
        StoredRun(path) for path in sorted(directories, key=lambda path: (files[path].stat().st_mtime_ns, path.name))
    ]
