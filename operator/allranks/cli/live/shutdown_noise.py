"""Holds back output that looks like the noise of a shutdown until it is decided whether the job succeeded.

After a success these lines are replaced by their number; otherwise they are printed, because they may show the cause.
The framework recognizes the lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from allranks.api.status import FINISHED
from allranks.cli.format.log_lines import Line
from allranks.core.model import Pod
from allranks.frameworks.base import Framework

HOLD_SECONDS = 5.0
"""A rank that still runs after this time is not shutting down: its lines are printed."""
HELD_LINES = 1000


class ShutdownNoise:
    """The held lines of one container."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._held: list[Line] = []
        self._since = 0.0
        self._ended = False
        """The container has ended well, and only noise is held."""
        self.folded = 0
        """Number of lines left out since this was last set to 0."""

    def pass_on(self, lines: Sequence[Line], now: float) -> list[Line]:
        """The lines that need not be held. `now`: seconds of any clock."""
        if not self._held:
            first = next((n for n, line in enumerate(lines) if self._begins(line)), len(lines))
            lines, self._held, self._since = lines[:first], list(lines[first:]), now
            self._ended = False
            return list(lines)
        self._held += lines
        return self._release() if len(self._held) > HELD_LINES else []

    def decide(self, phase: str, pod: Pod | None, current: bool, now: float) -> list[Line]:
        """The lines to print now. `pod`: None if it is gone. `current`: it belongs to the current attempt."""
        if not self._held:
            return []
        ended = pod is None or pod.exit is not None
        late = now - self._since > HOLD_SECONDS
        if phase == "Succeeded":
            return self._fold() if late else []  # until then the rest of a traceback may follow
        if phase in FINISHED or not current or (pod and pod.exit and pod.exit.code != 0):
            return self._release()
        if not ended:
            return self._release() if late else []
        # It ended well, but other ranks still run: the job may yet fail.
        if self._ended:
            return []
        self._ended = True
        noise = self._noise()
        rest = [line for place, line in enumerate(self._held) if place not in noise]
        self._held = [line for place, line in enumerate(self._held) if place in noise]
        return rest

    def end(self, phase: str) -> list[Line]:
        """The remaining lines to print at the end of the run."""
        return self._fold() if phase == "Succeeded" else self._release()

    def _begins(self, line: Line) -> bool:
        return self._framework.begins_shutdown_noise(_text(line))

    def _noise(self) -> frozenset[int]:
        return self._framework.shutdown_noise([_text(line) for line in self._held])

    def _release(self) -> list[Line]:
        lines, self._held = self._held, []
        return lines

    def _fold(self) -> list[Line]:
        noise = self._noise()
        self.folded += len(noise)
        return [line for place, line in enumerate(self._release()) if place not in noise]


def _text(line: Line) -> str:
    return line.text.decode("utf-8", "replace").rstrip("\r")
