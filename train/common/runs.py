"""A folder for each start of a training, for libraries that write checkpoints under their own names: a replaced
training that still runs writes into its own folder, where it does no harm."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
import torch.distributed as dist

from common.claims import Claim
from common.journal import say

NAME = re.compile(r"run-(\d{5,})")
KEEP = 2


def claim_run(directory: Path, complete: str, device: torch.device) -> tuple[Path, Path | None]:
    """The folder in which this run saves, and the newest path of the last run that saved one. Both are the same on all
    ranks, which need the same directory. `complete`: the pattern of what a run writes last when it saves.

    Call it after `join_group`. Deletes runs before the last two."""
    found: list[tuple[Path, Path | None] | None] = [None]
    if dist.get_rank() == 0:
        claim = Claim(directory)
        runs = sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name))
        saved = [run for run in runs if any(run.glob(complete))]
        newest = max(saved[-1].glob(complete), key=lambda path: path.stat().st_mtime_ns) if saved else None
        for run in runs:
            if run not in saved[-KEEP:]:
                shutil.rmtree(run)
        folder = directory / f"run-{claim.number:05d}"
        folder.mkdir()
        say(f"resuming from {newest}" if newest else f"no checkpoint in {directory}: starting at step 0")
        found = [(folder, newest)]
    dist.broadcast_object_list(found, src=0, device=device)
    assert found[0]
    return found[0]
