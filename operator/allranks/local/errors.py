"""Errors of this machine while a job runs, each as one sentence that says what the user can do."""

from __future__ import annotations

import errno

from allranks.errors import AllranksError

_REASONS = {
    errno.ENOSPC: "the disk is full: make room and run again",
    errno.EDQUOT: "your disk quota is used up: make room and run again",
    errno.EACCES: "permission denied: choose another run directory",
    errno.EPERM: "not permitted: choose another run directory",
    errno.EROFS: "the file system is read-only: choose another run directory",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n) or run fewer replicas",
    errno.ENFILE: "too many open files on this machine: run fewer replicas",
    errno.EAGAIN: "no more processes are allowed: raise the limit (ulimit -u) or run fewer replicas",
    errno.ENOMEM: "out of memory: run fewer replicas",
}


class LocalRunError(AllranksError):
    """The run cannot continue because of this machine (disk, limits, files). Its processes were ended."""

    @classmethod
    def from_os(cls, error: OSError, subject: str) -> LocalRunError:
        """Make an error that says that `subject` failed, the reason (from errno), and what the user can do."""
        return cls(f"{subject}: {explain(error)}")


def explain(error: OSError) -> str:
    """Return the reason, and what the user can do."""
    return _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()
