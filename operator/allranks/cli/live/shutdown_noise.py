"""Holds back output that looks like the noise of a shutdown until it is decided whether the job succeeded.

After a success these lines are replaced by their number, and also if the user has ended the run: launchers print the
signal that they got from allranks with their own stacks. Otherwise they are printed, because they may show the cause.
The framework recognizes the lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from allranks.api.status import FINISHED
from allranks.cli.format.log_lines import Line
from allranks.core.facts.model import Pod
from allranks.frameworks.base import Framework

HOLD_SECONDS = 30.0
"""A rank that still runs after this time is not shutting down: the lines are printed. torchrun can take ten seconds to
exit on a busy machine."""
HELD_LINES = 1000


class ShutdownNoise:
    """The held lines of one container."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._held: list[Line] = []
        self._open = False
        """Whether the next line can continue the held ones."""
        self._since = 0.0
        self.folded = 0
        """Number of lines left out since this was last set to 0."""

    def pass_on(self, lines: Sequence[Line], now: float) -> list[Line]:
        """The lines that are no noise. `now`: seconds of any clock."""
        first = 0 if self._open else next((n for n, line in enumerate(lines) if self._begins(line)), len(lines))
        before, rest = list(lines[:first]), lines[first:]
        if not rest:
            return before
        if not self._held:
            self._since = now
        held = self._held if self._open else []
        closed = [] if self._open else self._held
        found = [*held, *rest]
        noise = self._framework.shutdown_noise([_text(line) for line in found])
        self._open = len(found) - 1 in noise
        self._held = [*closed, *(line for place, line in enumerate(found) if place in noise)]
        other = [line for place, line in enumerate(found) if place not in noise]
        return before + (
            sorted(self._release() + other, key=lambda line: line.place) if len(self._held) > HELD_LINES else other
        )

    def decide(self, phase: str, pod: Pod | None, current: bool, now: float, stopped: bool = False) -> list[Line]:
        """The held lines to print now. `pod`: None if it is gone. `current`: it belongs to the current attempt.
        `stopped`: the user has ended the run."""
        late = now - self._since > HOLD_SECONDS
        if _means_nothing(phase, stopped):
            return self._fold() if late else []  # until then the rest of a traceback may follow
        if phase in FINISHED or not current or (pod and pod.exit and pod.exit.code != 0):
            return self._release()
        # A rank that ended well waits for the others, because the job may yet fail.
        return self._release() if late and pod and not pod.exit else []

    def end(self, phase: str, stopped: bool = False) -> list[Line]:
        """The held lines to print at the end of the run."""
        return self._fold() if _means_nothing(phase, stopped) else self._release()

    def _begins(self, line: Line) -> bool:
        return self._framework.begins_shutdown_noise(_text(line))

    def _release(self) -> list[Line]:
        lines, self._held, self._open = self._held, [], False
        return lines

    def _fold(self) -> list[Line]:
        self.folded += len(self._release())
        return []


def _means_nothing(phase: str, stopped: bool) -> bool:
    return phase == "Succeeded" or (stopped and phase not in FINISHED)


def _text(line: Line) -> str:
    return line.text.decode("utf-8", "replace").rstrip("\r")
