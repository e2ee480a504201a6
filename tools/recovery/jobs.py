"""Runs one `allranks run`, injects faults into it one after the other, and reads its results."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from recovery import processes
from recovery.memory import Memory

ROOT = Path(__file__).parents[2]
INJECT = Path(__file__).with_name("inject.py")
SECONDS = 150
"""Timeout of a start or a recovery, on a busy machine."""
EPOCHS_BEFORE = 2
"""Epochs of each attempt before the fault."""
EPOCHS_FOR_FAULT = 4
"""Epochs planned per fault, on a slow machine."""
_EPOCH = re.compile(r"^epoch (\d+)/\d+ loss", re.MULTILINE)
# Only rank 0 prints where it resumed; a partially written line does not match.
_BACK = re.compile(
    r"^resumed from epoch (\d+) of .* \(loss (\d+\.\d+)\)\n(?:.*\n)*?epoch \d+/\d+ loss.*\n", re.MULTILINE
)


class JobError(Exception):
    """The job did not behave as every job must after this fault; the text has the details."""


@dataclass(frozen=True)
class Layout:
    """What is needed to run a manifest."""

    manifest: str
    program: str
    launcher: tuple[str, ...] = ("python3",)
    settings: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    """Further arguments of the program."""


@dataclass
class Trial:
    """A fault and its observed recovery."""

    seconds: float | None = None
    """From the fault to the end of the next complete epoch."""
    epoch_before: int = 0
    resumed: tuple[int, float] | None = None
    """Epoch and loss of the checkpoint, as printed by rank 0."""
    problem: str = ""


@dataclass
class Job:
    """A context manager; when it ends, no process is left."""

    layout: Layout
    directory: Path
    faults: int = 1
    raises: str = ""
    """The pod (`worker-0`) whose program raises immediately, in every attempt."""
    memory: Memory | None = None
    code: int | None = None
    left_behind: list[str] = field(default_factory=list)
    """Command lines of processes that outlived `allranks run`; there must be none."""
    _finished: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.claim = self.directory / "claim"
        self.marker = f"ALLRANKS_CHECKPOINT_DIR={self.claim}"
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        self.claim.mkdir(parents=True)
        command = self.command()
        if self.memory:
            command = self.memory.enter(command)
        with (self.directory / "out").open("w") as out, (self.directory / "err").open("w") as err:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=err, cwd=ROOT, env=os.environ | {"RECOVERY_RAISE": self.raises}
            )
        return self

    def command(self) -> list[str]:
        manifest = ROOT / "examples" / f"{self.layout.manifest}.yaml"
        [spec] = [one["spec"] for one in yaml.safe_load_all(manifest.read_text()) if "framework" in one.get("spec", {})]
        program = [*self.layout.launcher, str(INJECT), self.layout.program]
        arguments = (f"--epochs={EPOCHS_FOR_FAULT * self.faults + 4}", "--pause=0.25", *self.layout.arguments)
        settings = {
            "command": f"[{', '.join(program)}]",
            "args": f"[{', '.join(arguments)}]",
            "restart.maxRestarts": "20",
            # The recovery is measured without the backoff after the second failure.
            "restart.backoffSeconds": "0",
        }
        sets = [f"{name}={value}" for name, value in settings.items()] + list(self.layout.settings)
        return [
            *(sys.executable, "-m", "allranks", "run", str(manifest), "-o", "json", "--quiet"),
            *("--run-dir", str(self.directory / "run"), "--volume", f"{spec['checkpoint']['claim']}={self.claim}"),
            *(word for text in sets for word in ("--set", text)),
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=45)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.code = self._process.wait()
        for one in processes.processes(self.marker):
            self.left_behind.append(" ".join(one.argv))
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        if self.memory:
            self.memory.remove()

    def inject(self, fault: Callable[[Job], None], undisturbed: bool = False) -> Trial:
        """Injects the fault during training, and waits until training continues: from a checkpoint or, if
        `undisturbed`, with two more epochs. Raises JobError."""
        self._wait(lambda: len(_EPOCH.findall(self._said())) >= self._finished + EPOCHS_BEFORE, "no epoch was trained")
        before = self._said()
        trial = Trial(epoch_before=max(int(epoch) for epoch in _EPOCH.findall(before)))
        signs = _EPOCH if undisturbed else _BACK
        enough = len(signs.findall(before)) + (2 if undisturbed else 1)
        fault(self)
        moment = time.monotonic()
        try:
            self._wait(lambda: len(signs.findall(self._said())) >= enough, "training did not continue")
        except JobError as error:
            trial.problem = str(error)
            return trial
        trial.seconds = time.monotonic() - moment
        if undisturbed:
            trial.resumed = next(((int(epoch), float(loss)) for epoch, loss in _BACK.findall(self._said())), None)
            return trial
        epoch, loss = max(_BACK.findall(self._said()), key=lambda found: int(found[0]))
        trial.resumed = int(epoch), float(loss)
        self._finished = len(_EPOCH.findall(self._said())) - 1
        return trial

    def finish(self) -> float:
        """Waits for the end; seconds since the start."""
        try:
            self.code = self._process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise JobError("the job did not end") from error
        return time.monotonic() - self._begun

    @property
    def status(self) -> dict[str, Any]:
        """The final status; empty if the command was stopped before."""
        text = (self.directory / "out").read_text()
        return json.loads(text)["status"] if text.strip() else {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics written by the program. A replaced attempt may have written last; the newer claim counts."""
        path = self.claim / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        newest = {line["epoch"]: line.get("claim", 0) for line in sorted(lines, key=lambda one: one.get("claim", 0))}
        return [line for line in lines if line.get("claim", 0) == newest[line["epoch"]]]

    def until(self, done: Callable[[], bool], otherwise: str) -> None:
        self._wait(done, otherwise)

    def _said(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in sorted(self.directory.glob("run/logs/*.log")))

    def _wait(self, done: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            if self._process.poll() is not None:
                last = (self.directory / "err").read_text().strip().splitlines()[-1:]
                raise JobError(f"{otherwise}: the job is over ({' '.join(last)})")
            if time.monotonic() > deadline:
                raise JobError(f"{otherwise} within {SECONDS} s")
            time.sleep(0.05)
