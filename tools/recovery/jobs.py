"""One `allranks run` that faults befall, one after the other, and what it says of each at the end."""

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
"""For a start or a recovery, on a machine that has other things to do."""
EPOCHS_BEFORE = 2
"""A fault comes after so many epochs of each attempt."""
EPOCHS_FOR_FAULT = 4
"""How many go by until the next one, on a machine that looks late."""
_EPOCH = re.compile(r"^epoch (\d+)/\d+ loss", re.MULTILINE)
# Rank 0 alone says where from; a line that is half written does not match.
_BACK = re.compile(
    r"^resumed from epoch (\d+) of .* \(loss (\d+\.\d+)\)\n(?:.*\n)*?epoch \d+/\d+ loss.*\n", re.MULTILINE
)


class Broken(Exception):
    """The job did not do what every job does after this fault; the text says what."""


@dataclass(frozen=True)
class Layout:
    """What has to be known of a manifest to run it."""

    manifest: str
    program: str
    launcher: tuple[str, ...] = ("python3",)
    settings: tuple[str, ...] = ()


@dataclass
class Trial:
    """A fault, and what was seen of its recovery."""

    seconds: float | None = None
    """From the fault to the first epoch that is complete again."""
    epoch_before: int = 0
    resumed: tuple[int, float] | None = None
    """Epoch and loss of the checkpoint, as rank 0 said them."""
    problem: str = ""


@dataclass
class Job:
    """A context manager: at its end no process is left."""

    layout: Layout
    directory: Path
    faults: int = 1
    raises: str = ""
    """The pod (`worker-0`) of which the program raises at once, in every attempt."""
    memory: Memory | None = None
    code: int | None = None
    left_behind: list[str] = field(default_factory=list)
    """Commands of processes that outlived the command: there must be none."""
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
        settings = {
            "command": f"[{', '.join(program)}]",
            "args": f"[--epochs={EPOCHS_FOR_FAULT * self.faults + 4}, --pause=0.25]",
            "restart.maxRestarts": "20",
            # What is measured is the recovery, and not how long a job is made to wait after the second failure.
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

    def befall(self, fault: Callable[[Job], None], undisturbed: bool = False) -> Trial:
        """Lets it happen in the midst of training, and waits until training goes on: from a checkpoint, or
        `undisturbed`, with two more epochs. Raises Broken."""
        self._wait(lambda: len(_EPOCH.findall(self._said())) >= self._finished + EPOCHS_BEFORE, "no epoch was trained")
        before = self._said()
        trial = Trial(epoch_before=max(int(epoch) for epoch in _EPOCH.findall(before)))
        signs = _EPOCH if undisturbed else _BACK
        enough = len(signs.findall(before)) + (2 if undisturbed else 1)
        fault(self)
        moment = time.monotonic()
        try:
            self._wait(lambda: len(signs.findall(self._said())) >= enough, "training did not go on")
        except Broken as error:
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
            raise Broken("the job did not end") from error
        return time.monotonic() - self._begun

    @property
    def status(self) -> dict[str, Any]:
        """The final one; empty where the command was ended before."""
        text = (self.directory / "out").read_text()
        return json.loads(text)["status"] if text.strip() else {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """As the program wrote them. An attempt that was replaced may have written last; the newer claim counts."""
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
                told = (self.directory / "err").read_text().strip().splitlines()[-1:]
                raise Broken(f"{otherwise}: the job is over ({' '.join(told)})")
            if time.monotonic() > deadline:
                raise Broken(f"{otherwise} within {SECONDS} s")
            time.sleep(0.05)
