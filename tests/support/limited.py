"""Programs of allranks with the memory limit of their container in the chart."""

from __future__ import annotations

import re
import signal
import sys
import threading
from pathlib import Path

import yaml

from support import processes
from support.live import eventually

VALUES = Path(__file__).parents[2] / "charts" / "allranks" / "values.yaml"


def limit_mib(*part: str) -> int:
    """Return the limit in the values of the chart: of the operator, or of a part of them."""
    values = yaml.safe_load(VALUES.read_text())
    for name in part:
        values = values[name]
    text = values["resources"]["limits"]["memory"]
    return int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]


class Limited:
    """A running program. It is killed as soon as it takes more memory than its limit, as a container is."""

    def __init__(self, limit: int, log: Path, *arguments: str) -> None:
        self.limit, self.log, self.peak = limit, log, 0.0
        log.write_text("")
        self._process = processes.start(Path(sys.executable), "-m", "allranks", *arguments, log=log)
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def check(self) -> None:
        """Raises AssertionError if the program was killed or has ended."""
        assert self.peak <= self.limit, f"OOMKilled at {self.peak:.0f} of {self.limit} MiB:\n{self._end_of_log()}"
        assert self._process.poll() is None, f"ended with {self._process.returncode}:\n{self._end_of_log()}"

    def port(self, line: str) -> int:
        """Wait for the port at the end of this line, or after the word `port`, of its log."""

        def logged() -> int:
            self.check()
            match = re.search(rf"{line}[^\n]*port (\d+)", self.log.read_text())
            return int(match[1]) if match else 0

        return eventually(logged, what=f"{line} in {self.log}")

    def end(self) -> None:
        self._ended.set()
        self._watcher.join()
        if self._process.poll() is None:
            processes.end(self._process)

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            try:
                text = Path(f"/proc/{self._process.pid}/status").read_text()
            except OSError:
                return
            match = re.search(r"VmHWM:\s+(\d+) kB", text)
            self.peak = max(self.peak, int(match[1]) / 1024 if match else 0)
            if self.peak > self.limit:
                self._process.send_signal(signal.SIGKILL)
                return

    def _end_of_log(self) -> str:
        return processes.end_of(self.log, 8)
