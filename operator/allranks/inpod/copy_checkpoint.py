"""Copies the checkpoints from which a job starts into its own folder, once, before the program starts.

All ranks may share the folder: one of them copies, and the others wait for its marker. A copy that was interrupted is
begun again. Nothing is written to the source. Runs in the image of the program, with its Python.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from pathlib import Path

MARKER = ".allranks-resumed"
"""In the folder of this job: the checkpoints that it starts from are complete."""
UNFINISHED = ".allranks-copy"
_OTHERS = (MARKER, UNFINISHED, ".allranks-set-aside", "lost+found")
_POLL_SECONDS = 0.5


class Unusable(Exception):
    """There is nothing to start from. The message is a sentence for the user."""


def copy(source: Path, target: Path, name: str, step: int | None = None, may_be_empty: bool = False) -> str:
    """Copy all checkpoints, or the ones of one step. Return a sentence about it. Raise Unusable and OSError.

    A folder that has checkpoints already stays as it is: the job continues from its own. `may_be_empty`: without a
    checkpoint the job starts at the beginning.
    """
    marker, unfinished = target / MARKER, target / UNFINISHED
    if marker.exists():
        return ""
    if not unfinished.exists() and any(not path.name.startswith(".") for path in target.iterdir()):
        marker.write_text(f"own checkpoints, not those of {name}\n")
        return f"{target} has checkpoints already: the job continues from these, not from {name}"
    if may_be_empty and not any(source.iterdir()):
        marker.write_text(f"no checkpoints yet at {name}\n")
        return f"there is no checkpoint at {name} yet: the job starts at the beginning"
    chosen = _choose(source, name, step)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for path in chosen:
        _copy_one(path, unfinished / path.name)
    for path in chosen:
        _replace(unfinished / path.name, target / path.name)
    marker.write_text(f"{name}\n")
    unfinished.rmdir()
    return f"the checkpoints of {name} are copied: {', '.join(path.name for path in chosen[:8])}"


def _choose(source: Path, name: str, step: int | None) -> list[Path]:
    job = name if "://" in name else name.partition("/")[0]
    entries = sorted(path for path in source.iterdir() if path.name not in _OTHERS)
    if not entries:
        raise Unusable(f"{job} has no checkpoints: its folder is empty")
    if step is None:
        return entries
    chosen = [path for path in entries if step in steps_in(path.name)]
    if not chosen:
        names = ", ".join(path.name for path in entries[:8]) + (", ..." if len(entries) > 8 else "")
        raise Unusable(f"{job} has no checkpoint whose name contains step {step}: it has {names}")
    return chosen


def steps_in(name: str) -> set[int]:
    """Return the numbers in the name of a checkpoint: checkpoint-500, step=500.ckpt, 0000500."""
    return {int(digits) for digits in re.findall(r"\d{1,18}", name)}


def _copy_one(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_copy_file)
    else:
        _copy_file(str(source), str(target))


def _copy_file(source: str, target: str) -> None:
    shutil.copy2(source, target)
    os.chmod(target, os.stat(target).st_mode | 0o200)  # noqa: PTH101, PTH116  # fetched files are read-only


def _replace(source: Path, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    source.replace(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--name", default="", help="JOB, JOB/STEP or an address, for messages")
    parser.add_argument("--step", type=int)
    parser.add_argument("--copier", type=int, help="1: the pod with index 0 copies; 0: wait; absent: copy")
    parser.add_argument("--may-be-empty", action="store_true")
    options = parser.parse_args()
    if options.copier is not None and not (options.copier and os.environ.get("ALLRANKS_INDEX", "0") == "0"):
        while not (options.target / MARKER).exists():
            time.sleep(_POLL_SECONDS)
        return
    try:
        if done := copy(options.source, options.target, options.name, options.step, options.may_be_empty):
            print(done, flush=True)
    except Unusable as error:
        sys.exit(f"spec.resumeFrom: {error}")
    except OSError as error:
        sys.exit(f"the checkpoints of {options.name} cannot be copied: {error}")


if __name__ == "__main__":
    main()
