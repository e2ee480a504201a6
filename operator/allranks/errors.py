"""The errors that allranks raises on purpose. Each message says what the user can do.

AllranksError
 ├─ InvalidManifest     the manifest violates the schema or a rule; lists every problem with its field path
 ├─ CannotRun           this machine does not have what the job needs
 └─ ClusterError        a cluster cannot be reached, or rejects a request
"""

from __future__ import annotations

from collections.abc import Sequence


class AllranksError(Exception):
    """Base of all errors raised on purpose. `str()` is the message for the user."""


class InvalidManifest(AllranksError):
    """A manifest that the API server would reject too."""

    def __init__(self, problems: Sequence[tuple[str, str]], source: str = "") -> None:
        self.problems = list(problems)
        """(field path such as `spec.roles.worker.replicas`, message), in the order of the manifest."""
        self.source = source
        """File and object from which it was read."""
        super().__init__("\n".join(f"{path}: {message}" if path else message for path, message in self.problems))


class CannotRun(AllranksError):
    """Nothing was started, because this machine does not have something that the job needs."""


class ClusterError(AllranksError):
    """A cluster cannot be reached, or rejects a request. `status` is the HTTP status, 0 without a response."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """Reason in the API server's response: NotFound, AlreadyExists, Conflict, Invalid, Expired, ..."""
