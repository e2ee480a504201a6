"""The errors that a user of allranks may meet. Each says what can be done.

AllranksError
 ├─ InvalidManifest     the resource breaks its schema or a rule; carries every problem with its field path
 ├─ CannotRun           this machine lacks what the job needs
 └─ ClusterError        a cluster cannot be reached, or refuses
"""

from __future__ import annotations

from collections.abc import Sequence


class AllranksError(Exception):
    """Base of all errors raised on purpose; `str()` is a sentence for the user."""


class InvalidManifest(AllranksError):
    """A manifest that the API server would refuse too."""

    def __init__(self, problems: Sequence[tuple[str, str]], source: str = "") -> None:
        self.problems = list(problems)
        """(field path such as `spec.roles.worker.replicas`, message), in the order of the manifest."""
        self.source = source
        """Where it was read from: file and object."""
        super().__init__("\n".join(f"{path}: {message}" if path else message for path, message in self.problems))


class CannotRun(AllranksError):
    """Nothing was started: this machine lacks something that the job needs."""


class ClusterError(AllranksError):
    """A cluster cannot be reached, or its answer is no. `status` is the HTTP status of the answer, 0 without one."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """One word of the API server's: NotFound, AlreadyExists, Conflict, Invalid, Expired, ..."""
