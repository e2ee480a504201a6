"""The program of the next attempt, started in advance: it has done its imports, and waits before its first line.

`WarmStart` belongs to the supervisor of a pod. Once ranks of the first attempt have reported a step and written what
they have imported, it starts the command of the pod once more, with `startup/allranks_prepared.py` in it. Needs the
standard library, and /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from process_tree import below, parent_of, processes  # type: ignore[import-not-found]  # in the same directory
from program_run import pipes, write_line  # type: ignore[import-not-found]

sys.path.append(str(Path(__file__).resolve().parent / "startup"))
from allranks_prepared import Prepared  # type: ignore[import-not-found]

FOLDER = "ALLRANKS_WARM_FOLDER"
LOOK_SECONDS = 2.0
QUIET_SECONDS = 10.0
"""From the first step, or the start of a further attempt, to the start of the imports, which need a processor for some
seconds."""
READY_SECONDS = 5.0
"""Longest wait for imports that are not done when the program is to start."""
ROOM_BYTES = 1 << 30
"""Free memory of the container for each process that is prepared. With less than half of it, they are ended."""


class WarmStart:
    """Call `look` from time to time while the program runs, `take` to start the next one, and `close` at the end."""

    def __init__(self, program: list[str], env: dict[str, str], has_matcher: bool) -> None:
        self._program, self._has_matcher = program, has_matcher
        self._folder = env.get(FOLDER) or tempfile.mkdtemp(prefix="allranks-warm-")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)  # noqa: PTH103 (as text)
        env[FOLDER] = self._folder
        self._plan: dict[str, Any] | None = None
        """What is imported, once the first attempt has trained."""
        self._quiet: tuple[int, float] | None = None
        """The process of the program, and since when it trains."""
        self._spare: Prepared | None = None
        self._over = False

    def pids(self) -> set[int]:
        """Return the prepared processes, which belong to no attempt yet."""
        if self._spare is None:
            return set()
        parents = {pid: parent for pid in processes() if (parent := parent_of(pid)) is not None}
        return {self._spare.process.pid, *below(self._spare.process.pid, parents)}

    def seconds(self) -> float | None:
        """Return after how long `look` has something to do; None if nothing changes by itself."""
        return None if self._over else LOOK_SECONDS

    def look(self, pid: int, env: dict[str, str]) -> None:
        """Prepare the next program if the one of process `pid` trains. `env`: its environment."""
        if self._over:
            return
        try:
            if self._plan is None:
                self._plan = self._plan_of(pid)
            if self._plan is None:
                return
            if self._spare is None and not self._is_quiet(pid):
                return
            count = 1 + len(self._plan.get("workers", ()))
            if self._spare is None and room() >= ROOM_BYTES * count:
                output, errors = pipes(self._has_matcher)
                options = {"bufsize": 0, "stdout": output, "stderr": errors}
                self._spare = Prepared(self._program, env, self._plan, f"{self._folder}/plan", **options)
            elif self._spare is None or room() < ROOM_BYTES * count // 2:
                raise ValueError(f"the memory of the container has no room for {count} more processes")
            else:
                self._spare.read()
            if self._spare.problem is not None:
                raise ValueError(self._spare.problem)
        except (OSError, ValueError, KeyError) as error:
            self._give_up(str(error))

    def _plan_of(self, pid: int) -> dict[str, Any] | None:
        """Return what the next program imports; None before all ranks of this one have reported a step."""
        records = {int(path.stem): path for path in Path(self._folder).glob("*.json")}
        for rank in [rank for rank in records if parent_of(rank) is None]:
            records.pop(rank).unlink()
        if not records or not self._is_quiet(pid) or not command_line(pid):
            return None
        if pid in records:
            if not runs_python(self._program, pid):
                raise ValueError("the command starts Python by another program")
            return {"record": json.loads(records[pid].read_text())}
        workers: list[dict[str, Any]] = []
        for worker, path in sorted(records.items()):
            env = environment_of(worker)
            if parent_of(worker) != pid or "TORCHELASTIC_RUN_ID" not in env or not runs_python(self._program, pid):
                raise ValueError("the ranks are started by a program other than torchrun")
            plan = {"record": json.loads(path.read_text())}
            workers.append({"arguments": command_line(worker), "env": env, "plan": plan})
        if len(workers) < int(workers[0]["env"].get("LOCAL_WORLD_SIZE", "1")):
            return None
        return {"record": {"modules": {}, "path": [], "changed": {}}, "workers": workers}

    def _is_quiet(self, pid: int) -> bool:
        """Return whether program `pid` has trained, or a further attempt has run, for a while."""
        if self._quiet is None or self._quiet[0] != pid:
            self._quiet = pid, time.monotonic()
        return time.monotonic() >= self._quiet[1] + QUIET_SECONDS

    def take(self, env: dict[str, str]) -> subprocess.Popen[bytes] | None:
        """Let the prepared process become the program of `env`; None if there is none for it."""
        if self._spare is None:
            return None
        self._spare.read(READY_SECONDS)
        if self._spare.begin(self._program, env):
            spare, self._spare = self._spare, None
            memory = f"{spare.private // 1_000_000} MB"
            write_line(f"the imports of this attempt were done in advance, in processes that kept {memory} of memory")
            return spare.process  # type: ignore[no-any-return]
        if self._spare.problem is not None:
            self._give_up(self._spare.problem)
        self._end_spare()
        return None

    def _give_up(self, reason: str) -> None:
        write_line(f"attempts in this pod begin without prepared imports: {reason}")
        self._over = True
        self._end_spare()

    def _end_spare(self) -> None:
        pids, spare, self._spare = self.pids(), self._spare, None
        if spare is None:
            return
        spare.close()
        for stream in (spare.process.stdout, spare.process.stderr):
            if stream is not None:
                stream.close()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for path in Path(self._folder).glob("plan*"):
            path.unlink()

    def close(self) -> None:
        self._end_spare()
        shutil.rmtree(self._folder, ignore_errors=True)


def runs_python(program: list[str], pid: int) -> bool:
    """Return whether process `pid` is a Python that was started as `program`, itself or by its first line, and by
    nothing between."""
    path = shutil.which(program[0])
    words = command_line(pid)
    if path is None:
        return False
    if words == program:
        return os.path.realpath(path) == str(Path(f"/proc/{pid}/exe").resolve())
    if not words or "python" not in os.path.basename(words[0]):  # noqa: PTH119
        return False
    return words[-len(program) :] == [path, *program[1:]] and len(words) <= len(program) + 2


def command_line(pid: int) -> list[str]:
    return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started. Raises OSError."""
    items = [
        os.fsdecode(item).partition("=") for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if item
    ]
    return {name: value for name, _, value in items}


def room() -> int:
    """Return the memory that is free for this container, in bytes."""
    with open("/proc/meminfo") as file:
        free = next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    for limit, used, cache in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            files = dict(line.split() for line in Path(cache).read_text().splitlines())
            reclaimable = int(files.get("inactive_file") or files.get("total_inactive_file") or 0)
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()) + reclaimable)
    return free


_V1 = "/sys/fs/cgroup/memory/memory"
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (f"{_V1}.limit_in_bytes", f"{_V1}.usage_in_bytes", f"{_V1}.stat"),
)
"""(limit, use, parts of it) of a container, for both versions of control groups."""
