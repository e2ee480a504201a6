"""What a run on this machine tells its caller while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from allranks.api.status import Status
from allranks.core.facts.model import Event, Pod


class Listener(Protocol):
    """Receives the status, events and output of a run. Called on the event loop's thread: must not block."""

    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...

    def event(self, event: Event) -> None: ...

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        """A chunk of a container's output, not aligned to lines; empty at its end."""


class NullListener:
    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...

    def event(self, event: Event) -> None: ...

    def output(self, pod: Pod, container: str, data: bytes) -> None: ...
