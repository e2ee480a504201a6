"""The options of a local run, and its outcomes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from allranks.code.bundle import Bundle
from allranks.core.facts.model import RESTART_OPTION, Platform
from allranks.local.pod import Backoff
from allranks.local.state_file import WRITE_INTERVAL_SECONDS

Outcome = Literal["finished", "suspended", "stopped", "settled"]
"""Why the run ended: the job finished, `suspend: true`, `stop` was called, or no pod is left to run."""


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
    restart_option: str = RESTART_OPTION
    """How the user asks for this number of restarts: on the command line or in Python."""

    def platform(self, endpoints: Mapping[tuple[str, int], tuple[str, int]], report_url: str) -> Platform:
        """What the core must know about this machine."""
        return Platform(
            "allranks",
            local=True,
            restart_option=self.restart_option,
            endpoints=endpoints,
            report_url=report_url,
        )
