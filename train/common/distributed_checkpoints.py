"""Checkpoints of torch.distributed.checkpoint: every rank writes its own share, and a training resumes with another
number of ranks, or with another kind of parallelism. All ranks need the same directory."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from common.claims import Claim, number_in
from common.journal import Progress

KEEP = 2
COMPLETE = ".metadata"
"""torch.distributed.checkpoint renames this file into the folder when all ranks have written theirs."""
PROGRESS = "progress.json"
NAME = re.compile(r"step-(\d{7,})\.claim-\d{5,}")
# One entry for each value of a parameter, under the parameter's name: a rank needs no others.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


class DistributedCheckpoints:
    """The checkpoints of a directory: a folder for each, `step-0000100.claim-00003` (claims: claims.py). All ranks call
    all methods."""

    def __init__(self, directory: Path, claim: Claim | None, device: torch.device, say: Callable[[str], None]) -> None:
        """`claim`: of rank 0, None on the others."""
        self.directory = directory
        self._claim, self._device, self._say = claim, device, say

    def load(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Restore the newest complete checkpoint; skips damaged ones. The progress is empty at the first start."""
        for path, values in self._from_rank_0(self._readable):
            model_state, optimizer_state = get_state_dict(module, optimizer, options=OPTIONS)
            state = {"model": model_state, "optimizer": optimizer_state}
            try:
                dcp.load(state, checkpoint_id=path)
            except dcp.api.CheckpointException as error:  # on all ranks, if one of them cannot read
                if dist.get_rank() == 0:
                    self._damaged(path, next(iter(error.failures.values()))[0])
                continue
            set_state_dict(
                module,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
                options=OPTIONS,
            )
            return Progress(**values)
        return Progress()

    def save(self, module: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Save the state of this step, then delete old checkpoints. Raises Replaced on rank 0 if another training
        claimed the directory."""
        path = self._from_rank_0(lambda: self._prepare(progress))
        model_state, optimizer_state = get_state_dict(module, optimizer, options=OPTIONS)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=path)
        if self._claim:
            self._clean(progress.step)

    def _readable(self) -> list[tuple[Path, dict[str, Any]]]:
        """Path and progress of each complete checkpoint, the newest first."""
        found = []
        for _, _, path in reversed(self._all()):
            try:
                found.append((path, json.loads((path / PROGRESS).read_bytes())))
            except (OSError, ValueError) as error:
                self._damaged(path, error)
        return found

    def _damaged(self, path: Path, error: BaseException) -> None:
        self._say(f"checkpoint {path} is damaged ({type(error).__name__}: {error}): trying the one before it")

    def _prepare(self, progress: Progress) -> Path:
        assert self._claim
        self._claim.check()
        path = self.directory / f"step-{progress.step:07d}{self._claim.mark}"
        remove(path)  # of this training, which did not complete it
        path.mkdir()
        self._claim.write(path / PROGRESS, json.dumps(progress.as_dict()).encode())
        return path

    def _clean(self, step: int) -> None:
        assert self._claim
        own = self._claim.number
        older = [each for each in self._all(complete=False) if each[0] <= own]
        # Later steps of older claims were saved too late: this training resumed from an earlier one.
        useless = [each for each in older if each[0] < own and (each[1] >= step or not (each[2] / COMPLETE).exists())]
        for _, _, path in [each for each in older if each not in useless][:-KEEP] + useless:
            remove(path)

    def _all(self, complete: bool = True) -> list[tuple[int, int, Path]]:
        """(claim, step, path) of each checkpoint, the newest last."""
        matches = ((NAME.fullmatch(path.name), path) for path in self.directory.iterdir())
        found = [(number_in(path.name), int(match[1]), path) for match, path in matches if match]
        return sorted(each for each in found if not complete or (each[2] / COMPLETE).exists())

    def _from_rank_0(self, function: Callable[[], Any]) -> Any:
        """What the function returns on rank 0, on all ranks."""
        value = [function() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(value, src=0, device=self._device)
        return value[0]


def remove(path: Path) -> None:
    """Delete a checkpoint: first the file that makes it complete."""
    if path.exists():
        (path / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(path)
