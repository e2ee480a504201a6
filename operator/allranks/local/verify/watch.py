"""Follows the steps and the checkpoint directory of a run from a thread, and kills ranks as planned.

It looks every millisecond: a kill in the middle of a save must come within the milliseconds that a save may take.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.local.verify.plan import Aim, Plan
from allranks.local.verify.records import Kill, Line, Save
from allranks.local.verify.weights import incomplete

POLL_SECONDS = 0.001
_IDLE_FACTOR = 2.0
"""Idle time after each look, as a multiple of the time that it took."""
SAVE_GAP_SECONDS = 0.25
"""After this time without a change a save is over."""
_DEATH_SECONDS = 2.0
_NO_PLAN = Plan((), 0.0, 0.0, frozenset(), frozenset())


def pattern_of(path: str) -> str:
    """Return the name with `#` for each number: `step-40.pt` and `step-50.pt` are checkpoints of the same kind."""
    return re.sub(r"\d+", "#", path)


class StepLogs:
    """Reads the files of `allranks.report.step_log`, each line once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[str, int] = {}
        self._headers: dict[str, dict[str, Any]] = {}

    def new_lines(self) -> list[Line]:
        """Return the lines since the last call, by process."""
        try:
            entries = [(entry.name, entry.stat().st_size) for entry in os.scandir(self._directory)]
        except OSError:
            return []
        return [line for name, size in entries if size > self._offsets.get(name, 0) for line in self._lines_of(name)]

    def _lines_of(self, name: str) -> Iterator[Line]:
        with (self._directory / name).open("rb") as file:
            file.seek(self._offsets.get(name, 0))
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offsets[name] = self._offsets.get(name, 0) + len(complete)
        for text in complete.splitlines():
            content = json.loads(text)
            if "pid" in content:
                self._headers[name] = content
                continue
            header = self._headers[name]
            metrics = {key: value for key, value in (content.get("metrics") or {}).items() if value is not None}
            yield Line(
                name,
                header["pid"],
                header["replica"],
                header["attempt"],
                content["time"],
                content["step"],
                content["rank"],
                metrics,
                header["python"],
            )


@dataclass(slots=True)
class _Process:
    """A process of a rank. The descriptor refers to it even if another process gets its pid."""

    name: str
    rank: str
    pid: int
    descriptor: int | None
    step: int

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            if self.descriptor is None:
                os.kill(self.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def wait(self, until: float) -> None:
        if self.descriptor is None:
            time.sleep(0.2)
        else:
            select.select([self.descriptor], [], [], max(0.0, until - time.monotonic()))

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


class Watch:
    """Follows one run inside a `with`."""

    def __init__(
        self,
        checkpoints: Path,
        step_log: Path,
        stop: Callable[[], object],
        *,
        until: int | None = None,
        plan: Plan = _NO_PLAN,
    ) -> None:
        """`stop` is called once, when a rank has reported the step `until`."""
        self.lines: list[Line] = []
        self.saves: list[Save] = []
        self.kills: list[Kill] = []
        self.error: Exception | None = None
        self.stopped = False
        """Whether `until` was reached."""
        self._folder, self._stop, self._until, self._plan = checkpoints, stop, until, plan
        self._aims = list(plan.aims)
        self._logs = StepLogs(step_log)
        self._files: dict[str, tuple[int, int, int]] = {}
        self._save: list[tuple[float, str, int]] = []
        """(time, path, bytes) of each change of the current save."""
        self._save_step = 0
        self._processes: dict[tuple[str, int], _Process] = {}
        self._followed: set[tuple[str, int]] = set()
        """The ranks that were killed last, whose steps count from then on; empty: all."""
        self._missing: set[tuple[str, int]] = set()
        """Those of them that have not reported a step since."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="allranks-verify", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for process in self._processes.values():
            process.close()

    @property
    def step(self) -> int:
        """The last step of the ranks that are followed; -1 before the first one."""
        steps = [process.step for key, process in self._processes.items() if key in (self._followed or {key})]
        return max(steps, default=-1) if not self._missing else -1

    def _run(self) -> None:
        try:
            while True:
                over = self._over.is_set()
                began = time.monotonic()
                self._look()
                if over:
                    self._end_save()
                    return
                self._over.wait(max(POLL_SECONDS, _IDLE_FACTOR * (time.monotonic() - began)))
        except Exception as error:
            self.error = error
            self._stop()

    def _look(self) -> None:
        self._note_steps()
        changed = self._changes()
        now = time.time()
        if self._save and (now - self._save[-1][0] > SAVE_GAP_SECONDS or (changed and self.step > self._save_step)):
            self._end_save()
        if changed and not self._save:
            self._save_step = self.step
        self._save += [(now, path, size) for path, size in changed]
        if self._until is not None and self.step >= self._until and not self.stopped:
            self.stopped = True
            self._stop()
        if not self._aims or self.step < self._aims[0].step or self._over.is_set():
            return
        if self._aims[0].kind == "step":
            self._kill_in_step(self._aims.pop(0))
        elif any(pattern_of(path) not in self._plan.logs for path, _ in changed):
            self._kill_in_save(self._aims.pop(0))

    def _note_steps(self) -> None:
        for line in self._logs.new_lines():
            self.lines.append(line)
            process = self._processes.get(line.key)
            if process is None or process.name != line.process:
                if process:
                    process.close()
                descriptor = _descriptor(line.pid)
                self._processes[line.key] = _Process(line.process, line.rank_name, line.pid, descriptor, line.step)
                self._missing.discard(line.key)
            else:
                process.step = line.step

    def _changes(self) -> list[tuple[str, int]]:
        """Return (path, bytes) of each file that is new or has changed."""
        files = dict(_files(self._folder, ""))
        changed = []
        for path, state in files.items():
            before = self._files.get(path)
            if state != before:
                grown = before and before[2] == state[2] and state[0] > before[0]
                changed.append((path, state[0] - before[0] if before and grown else state[0]))
        self._files = files
        return changed

    def _end_save(self) -> None:
        if self._save:
            began, ended = self._save[0][0], self._save[-1][0]
            sizes: dict[str, int] = {}
            for _, path, size in self._save:
                sizes[pattern_of(path)] = sizes.get(pattern_of(path), 0) + size
            self.saves.append(Save(self._save_step, began, ended - began, sizes))
        self._save = []

    def _kill_in_step(self, aim: Aim) -> None:
        keys = sorted(self._processes, key=lambda key: (key[1], key[0]))
        self._kill(aim, {keys[int(aim.rank * len(keys))]}, aim.moment * self._plan.step_seconds)

    def _kill_in_save(self, aim: Aim) -> None:
        self._kill(aim, set(self._processes), aim.moment * self._plan.save_seconds)

    def _kill(self, aim: Aim, keys: set[tuple[str, int]], delay: float) -> None:
        step = self.step
        if delay and self._over.wait(delay):
            return
        victims = [self._processes[key] for key in keys]
        for process in victims:
            process.kill()
        now = time.time()
        deadline = time.monotonic() + _DEATH_SECONDS
        for process in victims:
            process.wait(deadline)
        self._followed, self._missing = keys, set(keys)
        torn, unfinished = self._torn() if aim.kind == "save" else ((), ())
        names = tuple(self._processes[key].rank for key in sorted(keys, key=lambda key: (key[1], key[0])))
        self.kills.append(Kill(aim.kind, step, now, names, delay, self._has_checkpoint(), torn, unfinished))

    def _torn(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the files of the interrupted save that are not complete, and files under temporary names."""
        paths = dict.fromkeys(path for _, path, _ in self._save)
        paths |= dict.fromkeys(path for path, state in _files(self._folder, "") if state != self._files.get(path))
        torn, unfinished = [], []
        for path in paths:
            if pattern_of(path) in self._plan.logs or not (self._folder / path).exists():
                continue
            if pattern_of(path) not in self._plan.checkpoints:
                unfinished.append(path)
            elif problem := incomplete(self._folder / path):
                torn.append(f"{path}: {problem}")
        return tuple(torn), tuple(unfinished)

    def _has_checkpoint(self) -> bool:
        return any(
            pattern_of(path) in self._plan.checkpoints and not incomplete(self._folder / path)
            for path, _ in _files(self._folder, "")
        )


def _descriptor(pid: int) -> int | None:
    with contextlib.suppress(OSError, AttributeError):  # Linux only; the process may have ended
        return os.pidfd_open(pid)
    return None


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield (path, (size, time, inode)) of each file. Files may vanish meanwhile."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), f"{prefix}{entry.name}/")
            else:
                state = entry.stat(follow_symlinks=False)
                yield prefix + entry.name, (state.st_size, state.st_mtime_ns, state.st_ino)
        except OSError:
            continue
