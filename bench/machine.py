"""Describes the machine, the commit and the date of a measurement."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def machine() -> dict[str, Any]:
    """`load` is the load average of the last minute."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cores": len(os.sched_getaffinity(0)),
        "processor": _line("/proc/cpuinfo", "model name") or platform.machine(),
        "memory_gb": round(int(_line("/proc/meminfo", "MemTotal").split()[0]) * 1024 / 1e9),
        "python": platform.python_version(),
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 2),
    }


def versions(control_plane: Path) -> dict[str, str]:
    """Versions of the programs in this folder."""
    asked = {"Kubernetes": "kube-apiserver", "etcd": "etcd"}
    outputs = {name: _output(str(control_plane / program), "--version") for name, program in asked.items()}
    return {name: found[0] for name, text in outputs.items() if (found := re.findall(r"\d+\.\d+\.\d+", text))}


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _commit() -> str:
    """The commit, and whether allranks or the benchmarks have changes."""
    git = ["git", "-C", str(ROOT)]
    name = _output(*git, "rev-parse", "--short", "HEAD")
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "operator", "bench"], check=False)
    return (name.strip() or "unknown") + (" with changes" if changed.returncode else "")


def _line(file: str, name: str) -> str:
    return next((line.split(":", 1)[1].strip() for line in Path(file).read_text().splitlines() if name in line), "")
