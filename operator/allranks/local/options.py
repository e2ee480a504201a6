"""The interface of local runs: options, outcomes, and the listener that is called while a job runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from allranks.api.status import Status
from allranks.code.bundle import Bundle
from allranks.core.facts.model import RESTART_OPTION, Event, Platform, Pod
from allranks.local.pod import Backoff
from allranks.local.records import WRITE_INTERVAL_SECONDS

Outcome = Literal["finished", "suspended", "stopped", "settled"]
"""The reason why the run ended: the job finished, `suspend: true`, `stop` was called, or no pod is left to run."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one run."""

    run_dir: Path
    """Contains logs and volumes; created when the run starts."""
    link_latest: bool = False
    """Points the link `latest` beside the run directory at it."""
    workdir: Path = field(default_factory=Path.cwd)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Name of a volume or claim -> its directory."""
    claims: dict[str, Path] = field(default_factory=dict)
    """Directories of claims that are not in `volumes`, filled during the run. Jobs that share the dict share them."""
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL; replaces the value in the manifest."""
    code: Bundle | None = None
    """The code that the job's pods run; without it, `spec.code` must not name a ConfigMap."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    backoff: Backoff = field(default_factory=Backoff)
    state_interval: float = WRITE_INTERVAL_SECONDS
    step_log: Path | None = None
    """Directory in which each rank records all of its reports."""
    restart_option: str = RESTART_OPTION
    """Option by which the user sets this number of restarts, on the command line or in Python."""

    def platform(self, endpoints: Mapping[tuple[str, int], tuple[str, int]], report_url: str) -> Platform:
        """Describe this machine to the core."""
        return Platform(
            "allranks",
            local=True,
            restart_option=self.restart_option,
            endpoints=endpoints,
            report_url=report_url,
        )


class Listener(Protocol):
    """Receives the status, events and output of a run. Called on the event loop's thread: must not block."""

    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...

    def event(self, event: Event) -> None: ...

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        """Receive a chunk of a container's output, not aligned to lines; empty at its end."""


class NullListener:
    def status(self, status: Status, pods: Sequence[Pod]) -> None: ...

    def event(self, event: Event) -> None: ...

    def output(self, pod: Pod, container: str, data: bytes) -> None: ...
