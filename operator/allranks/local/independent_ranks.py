"""Finds out after a run whether its ranks were independent copies of one program, because they never formed a group.

A Python program whose ranks find each other reads a variable such as RANK. `inpod/startup/allranks_peer_variables.py`
notes in every Python of a rank whether it does. Everything that cannot be observed counts as a group: programs that
Python does not start, and commands or variables that differ between the pods.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks.core.facts.model import Manifest, Pod
from allranks.frameworks.base import HELPER_DIR, Framework

SETTING = "ALLRANKS_PEER_VARIABLES"
_PLACE = frozenset({"ALLRANKS_ROLE", "ALLRANKS_INDEX"})
_PYTHON = re.compile(r"python[\d.]*|.*\.py")


class IndependentRanks:
    """The pods of one run."""

    def __init__(self, framework: Framework, directory: Path) -> None:
        """`directory` is created for the files of the start-up code."""
        self._framework = framework
        self._directory = directory
        self._programs: dict[int, dict[str, Any]] = {}
        """Attempt -> pod -> its command and variables; None if it cannot be observed."""
        self._read: set[str] = set()
        self._processes: dict[str, int] = {}
        """Pod -> its number of processes, if Python ran there."""

    def variables(self, pod: Pod, container: Manifest) -> dict[str, str]:
        """What the training container needs to be observed; nothing if it cannot be."""
        program = self._programs.setdefault(pod.attempt, {})[pod.name] = self._program(container)
        if program is None:
            return {}
        self._directory.mkdir(parents=True, exist_ok=True)
        of_the_pod = {variable["name"] for variable in container.get("env") or () if "valueFrom" in variable}
        watched = sorted(self._framework.peer_variables | _PLACE | of_the_pod)
        return {SETTING: f"{self._directory / pod.name}:{','.join(watched)}"}

    def collect(self) -> None:
        """Reads the files of the start-up code, and removes them."""
        for file in self._directory.glob("*"):
            if file.suffix == ".read":
                self._read.add(file.stem)
            else:
                text = file.read_text()
                self._processes[file.stem] = int(text) if text.isdecimal() else 1
        shutil.rmtree(self._directory, ignore_errors=True)

    def count(self, attempt: int) -> int:
        """The number of independent copies in this attempt; 0 if that is not certain, or if there was only one rank.
        Call `collect` first."""
        programs = self._programs.get(attempt) or {}
        first = next(iter(programs.values()), None)
        if first is None or self._read.intersection(programs) or not self._processes.keys() >= programs.keys():
            return 0
        if any(program != first for program in programs.values()):
            return 0
        count = sum(self._processes[pod] for pod in programs)
        return count if count > 1 else 0

    def _program(self, container: Manifest) -> tuple[Sequence[str], dict[str, str]] | None:
        framework, env = self._framework, container.get("env") or ()
        command = _without_helpers([*(container.get("command") or ()), *(container.get("args") or ())])
        program = Path(command[0]).name if command else ""
        starts_python = program == framework.launcher or _PYTHON.fullmatch(program)
        if not framework.peer_variables or not starts_python or any("$(" in word for word in command):
            return None
        wiring = framework.peer_variables | framework.reserved_env
        own = {variable["name"]: str(variable.get("value") or "") for variable in env if "valueFrom" not in variable}
        return command, {
            name: value for name, value in own.items() if name not in wiring and not name.startswith("ALLRANKS_")
        }


def _without_helpers(command: list[str]) -> list[str]:
    """The command line behind the helpers that replace themselves by it."""
    while len(command) > 3 and command[1].startswith(f"{HELPER_DIR}/") and command[2] == "--":
        command = command[3:]
    return command
