"""Prints log lines of a job, as text with the rank in front or as JSON objects, and messages on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from allranks.api.status import Status
from allranks.cli.safe_output import use_colour
from allranks.control_sequences import clean
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import replica_key
from allranks.kube.pod_logs import Line
from allranks.views.format.log_lines import label, prefixed
from allranks.views.format.outcome import failure_line


class Printer:
    """Prints the lines of all ranks on stdout, and messages on stderr."""

    def __init__(self, container: str, *, timestamps: bool, prefix: bool, attempts: bool = False) -> None:
        """`attempts`: the label has the attempt."""
        self._container = container
        self._attempts = attempts
        self._timestamps = timestamps
        self._prefix = prefix
        self._colour = use_colour(sys.stdout)
        self._width = 0
        self._places: dict[str, int] = {}
        self._attempt: int | None = None
        self.printed = False

    def add_labels(self, pods: Sequence[Pod]) -> None:
        """Makes the labels as wide as the widest of these pods."""
        for pod in pods:
            self._places.setdefault(replica_key(pod.role, pod.index), len(self._places))
            self._width = max(self._width, len(self._label(pod)))

    def _label(self, pod: Pod) -> str:
        return f"{label(pod, self._container)} attempt {pod.attempt}" if self._attempts else label(pod, self._container)

    def write(self, lines: Sequence[tuple[Pod, Line]]) -> None:
        if lines:
            self.printed = True
            sys.stdout.write("".join(f"{self._formatted(pod, line)}\n" for pod, line in lines))
            sys.stdout.flush()

    def _formatted(self, pod: Pod, line: Line) -> str:
        # A progress bar redraws its line after \r: only the last state is printed.
        text = clean(line.text.rstrip(b"\r").rpartition(b"\r")[2], self._colour)
        if self._timestamps:
            text = f"{line.time[:23].decode()}Z {text}" if line.time else text
        if not self._prefix:
            return text
        place = self._places.get(replica_key(pod.role, pod.index), 0)
        return prefixed(self._label(pod), self._width, place, text, colour=self._colour)

    # Called by Follower.

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        self.add_labels(pods)
        if self._attempt is not None and status.attempt > self._attempt:
            failure = status.last_failure
            ended = failure is not None and failure.attempt == self._attempt
            why = f" ({failure_line(failure)})" if failure and ended else ""
            self.message(f"attempt {status.attempt} started{why}")
        self._attempt = status.attempt

    def lines(self, pod: Pod, lines: list[Line]) -> None:
        self.write([(pod, line) for line in lines])

    def message(self, text: str) -> None:
        click.echo(click.style(text, dim=True), err=True)


class JsonPrinter(Printer):
    """Prints each line as a JSON object. The text is complete: JSON escapes its control characters."""

    def __init__(self, container: str, rank_of: dict[str, int | None], attempt: int) -> None:
        super().__init__(container, timestamps=True, prefix=False)
        self._rank_of, self._current = rank_of, attempt

    def _formatted(self, pod: Pod, line: Line) -> str:
        rank = self._rank_of.get(replica_key(pod.role, pod.index)) if pod.attempt == self._current else None
        return json.dumps(
            {
                "time": line.time.decode() or None,
                "role": pod.role,
                "index": pod.index,
                "rank": rank,
                "attempt": pod.attempt,
                "line": line.text.decode("utf-8", errors="replace"),
            }
        )

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        super().status(status, pods)
        self._current = status.attempt
