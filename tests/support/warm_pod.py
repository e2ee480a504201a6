"""A pod with a real supervisor, whose first program is killed when the next one waits to begin."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from allranks.pod_bundle import HELPERS
from support.fake_operator import FakeOperator

sys.path.append(str(HELPERS))
import process_tree

DONE = "the imports of this attempt were done in advance"
COLD = "attempts in this pod begin without prepared imports: "
LIBRARY = """
import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
"""An installed package, `library`, which records each of its imports. The program imports it first."""
QUICK = {
    "LOOK_SECONDS = 2.0": "LOOK_SECONDS = 0.05",
    "QUIET_SECONDS = 10.0": "QUIET_SECONDS = 0.1",
    "READY_SECONDS = 5.0": "READY_SECONDS = 900.0",
    "ROOM_BYTES = 1 << 30": "ROOM_BYTES = 1 << 20",
}


def quick_helpers(helpers: Path, folder: Path) -> Path:
    """Copy the helpers, so that they prepare soon after the first step and wait for it."""
    copied = Path(shutil.copytree(helpers, folder))
    text = (copied / "warm_start.py").read_text()
    for usual, value in QUICK.items():
        assert usual in text
        text = text.replace(usual, value)
    (copied / "warm_start.py").write_text(text)
    return copied


class Pod:
    """A pod whose first program is killed when the next one waits."""

    def __init__(
        self, folder: Path, helpers: Path, operator: FakeOperator, python: str = sys.executable, ranks: int = 1
    ) -> None:
        self._python, self._ranks = python, ranks
        self.folder, self._helpers, self._operator = folder, helpers, operator
        self.packages = folder / "site-packages"
        self.packages.mkdir()
        (self.packages / "library.py").write_text(LIBRARY)
        self.imports = folder / "imports"
        self.next = {"attempt": 3}
        """The attempt that follows, and the restart in it if the program restarts alone."""
        self.killed_at = 0.0
        """When the first program was killed, in seconds since the epoch."""

    def run(self, *program: str, **env: str | None) -> tuple[str, str]:
        """Return stdout and stderr of both attempts. Their first word is the process of a rank."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON"))}
        ours |= self._operator.environment | {"ALLRANKS_IN_PLACE": "1", "ALLRANKS_ATTEMPT": "2", "PYTHONHASHSEED": "5"}
        ours |= {"PYTHONPATH": str(self.packages), "IMPORTS": str(self.imports)}
        ours["ALLRANKS_WARM_FOLDER"] = str(self.folder / "warm")  # a supervisor that is killed leaves it
        for name, value in env.items():
            ours.pop(name, None)
            if value is not None:
                ours[name] = value
        command = [self._python, str(self._helpers / "watch.py"), "--", *program]
        self.errors = self.folder / "errors"
        with open(self.errors, "w") as errors:
            process = subprocess.Popen(
                command,
                env=ours,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,  # what follows the first line is not read with it
            )
        try:
            return self._restart(process, "Never" not in env.values()), self.errors.read_text()
        finally:
            if process.poll() is None:
                for pid in process_tree.below(process.pid, parents()):
                    os.kill(pid, signal.SIGKILL)
                process.kill()
                process.communicate()

    def _restart(self, process: subprocess.Popen[bytes], prepares: bool) -> str:
        assert process.stdout
        first = process.stdout.readline()
        rank = int(first.split()[0])
        deadline = time.monotonic() + 1200
        while (
            prepares and len(self.imports.read_text().split()) < 2 * self._ranks and COLD not in self.errors.read_text()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.killed_at = time.time()
        os.kill(rank, signal.SIGKILL)
        self._operator.wait(state="Ended")
        self._operator.say({"order": "Stop", "grace": 60, **self.next})
        self._operator.wait(state="Down")
        self._operator.say({"order": "Start", "env": {"ALLRANKS_ATTEMPT": str(self.next["attempt"])}, **self.next})
        out, _ = process.communicate(timeout=1200)
        assert process.returncode == 0, self.errors.read_text()
        return (first + out).decode()


def parents() -> dict[int, int]:
    return {pid: parent for pid in process_tree.processes() if (parent := process_tree.parent_of(pid)) is not None}
