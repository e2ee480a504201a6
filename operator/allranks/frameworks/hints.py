"""Optional parts of a framework: how scripts use it, what its launcher logs, and how `allranks doctor` checks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ScriptHints:
    """Hints by which `allranks run SCRIPT` recognizes scripts that use the framework, and makes a job for them."""

    imports: frozenset[str] = frozenset()
    """Packages whose import shows that a script uses this framework."""
    joins_group: frozenset[str] = frozenset()
    """Functions and classes by which a script joins the group of ranks. A script that uses none of them runs alone."""
    any_program: bool = False
    """Programs that import no framework use this one."""
    command: tuple[str, ...] = ("python3",)
    """Starts the script."""
    launcher: tuple[str, ...] = ()
    """Starts a program that is not Python."""
    launchers: frozenset[str] = frozenset()
    """Launchers (`allranks.frameworks.command_line.Start.kind`) of programs that use this framework."""
    rank: str = "$ALLRANKS_INDEX"
    """The rank of a process, as a shell reads it from the environment."""
    module: str = ""
    """The module of `command`, to start it with a certain Python; empty if that runs the script itself."""
    roles: Mapping[str, int] = field(default_factory=dict)
    """Role -> replicas that the job has besides its workers."""


@dataclass(frozen=True, slots=True)
class RootCause:
    """The process that failed first, according to the failure report that the launcher printed."""

    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str | None = None
    time: datetime | None = None
    """In the pod's local time, to the second, because launchers print it without a time zone."""
    microsecond: int | None = None
    """Microsecond within the second of `time`, if the launcher logged it."""


class LogReader:
    """Reads what the launcher of a framework adds to the output of a pod. This one finds nothing."""

    def root_cause(self, message: str) -> RootCause | None:
        """Parse a failure report out of the last lines of a pod's log; return None if there is none."""
        return None

    def starts_complaint(self, line: str) -> bool:
        """Return whether with this line a launcher or library starts to complain that other ranks have ended."""
        return False

    def continues_complaint(self, line: str) -> bool:
        """Return whether this line may continue the complaint before it, as a line of a stack does."""
        return False


@dataclass(frozen=True, slots=True)
class DoctorProbe:
    """The Python package of a framework, which `allranks doctor` looks for."""

    package: str
    details: str = "''"
    """A Python expression for what to add to the version, where m is the module."""
    gpu: str = "None"
    """A Python expression for whether the package can use a GPU of this machine; None if it does not say."""
    gpu_cure: str = ""
    """Advice for the user if it cannot."""
