"""The stored sweeps of this machine: `runs/SWEEP/TIME/sweep.json`."""

from __future__ import annotations

import json
from pathlib import Path

from allranks.core.model import Manifest
from allranks.local.run_directories import ROOT, RunsError

SWEEP_FILE = "sweep.json"
"""The sweep with its status, in a run directory."""


def find_sweep(name: str, root: Path = ROOT) -> Path | None:
    """The newest run directory of the sweep."""
    found = [path.parent for path in (root / name).glob(f"*/{SWEEP_FILE}") if not path.parent.is_symlink()]
    return max(found, key=lambda path: path.name, default=None)


def stored_sweeps(root: Path = ROOT) -> list[Path]:
    """The run directories of all sweeps, by name, the oldest first."""
    return sorted(path.parent for path in root.glob(f"*/*/{SWEEP_FILE}") if not path.parent.is_symlink())


def read_sweep(run_dir: Path, name: str = "") -> Manifest:
    """The sweep in a run directory. Raises RunsError if it cannot be read, or has another name than `name`."""
    path = run_dir / SWEEP_FILE
    try:
        found: Manifest = json.loads(path.read_text(encoding="utf-8"))
        stored = str(found["metadata"]["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunsError(f"{path} has no sweep that can be read: {error}") from error
    if name and stored != name:
        raise RunsError(f"{run_dir} has the sweep {stored}, not {name}")
    return found
