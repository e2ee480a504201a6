"""The errors that allranks raises on purpose. Each message says what the user can do.

AllranksError
 ├─ InvalidManifest     the manifest violates the schema or a rule; lists every problem with its field path
 ├─ InvalidOption       options of the command line contradict each other, or name something that does not exist
 ├─ CannotRun           this machine does not have what the job needs
 ├─ CannotPickle        a function or its argument cannot be sent to the ranks
 ├─ CannotShip          a directory of code cannot be sent to the ranks: too large, no files
 ├─ DataError           an input cannot be fetched, or an output cannot be uploaded
 ├─ RankFailed          a job failed; has the exception and traceback of the rank that failed first
 ├─ ResultError         a job succeeded, but what it returned cannot be had
 ├─ WaitTimeout         a job has not finished in time; it continues
 ├─ JobDeleted          a job was deleted while somebody waited for it
 └─ ClusterError        a cluster cannot be reached, or rejects a request
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class AllranksError(Exception):
    """Base of all errors raised on purpose. `str()` is the message for the user."""


class InvalidManifest(AllranksError):
    """A manifest that the API server would reject too."""

    def __init__(
        self, problems: Sequence[tuple[str, str]], source: str = "", meant: Mapping[str, str] | None = None
    ) -> None:
        self.problems = list(problems)
        """(field path such as `spec.roles.worker.replicas`, message), in the order of the manifest."""
        self.source = source
        """File and object from which it was read."""
        self.meant = dict(meant or {})
        """Path of an unknown field -> the field that it is probably meant to be."""
        super().__init__("\n".join(f"{path}: {message}" if path else message for path, message in self.problems))


class InvalidOption(AllranksError):
    """Nothing was started, because options of the command line are wrong."""


class CannotRun(AllranksError):
    """Nothing was started, because this machine does not have something that the job needs."""


class CannotPickle(AllranksError):
    """Nothing was started, because a function, an argument or a variable that it uses cannot be pickled."""


class CannotShip(AllranksError):
    """Nothing was started, because a directory of code cannot be sent to the ranks."""


class DataError(AllranksError):
    """An input cannot be fetched, or an output cannot be uploaded. The message begins with its address."""


class RankFailed(AllranksError):
    """A job failed. `__cause__` is the exception of the rank that failed first, if it could be loaded."""

    def __init__(
        self,
        message: str,
        *,
        job: str = "",
        rank: int | None = None,
        pod: str | None = None,
        node: str | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        reason: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.job = job
        self.rank = rank
        """Global rank, if it can be determined."""
        self.pod = pod
        self.node = node
        self.exit_code = exit_code
        self.signal = signal
        self.reason = reason
        """Error, OOMKilled, NodeLost, ..., or the reason why the job failed without a failed rank."""
        self.traceback = traceback
        """The traceback in the rank, as text; empty if it did not fail by an exception of the function."""


class ResultError(AllranksError):
    """A job succeeded, but what its function returned cannot be had here."""


class WaitTimeout(AllranksError, TimeoutError):
    """A job has not finished within the given time. It continues."""


class JobDeleted(AllranksError):
    """A job was deleted before it had finished, or before somebody asked for its result."""


class ClusterError(AllranksError):
    """A cluster cannot be reached, or rejects a request. `status` is the HTTP status, 0 without a response."""

    def __init__(self, message: str, status: int = 0, reason: str = "", *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """Reason in the API server's response: NotFound, AlreadyExists, Conflict, Invalid, Expired, ..."""
        self.uncertain = uncertain
        """The request may have been carried out: it was sent, and the API server's answer did not arrive."""
