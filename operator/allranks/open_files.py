"""Raises the limit of open files (RLIMIT_NOFILE). Shells and container runtimes start with 1,024 and allow more."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from allranks.errors import CannotRun

try:
    import resource
except ImportError:  # Windows, where the command line runs too
    resource = None  # type: ignore[assignment]


ENOUGH = 65_536


def raise_open_files(limit: int = ENOUGH) -> int:
    """Raise the soft limit to `limit` as far as the hard limit allows. Never lowers it. Returns the soft limit."""
    if resource is None:
        return limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < limit:
        raised = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def require_open_files(needed: int, users: str) -> None:
    """Check that the hard limit allows the `needed` open files. Raises CannotRun, which says that `users` need them."""
    if resource is None:
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard not in (resource.RLIM_INFINITY, -1) and needed > hard:
        raise CannotRun(
            f"{users} need {needed} open files, and {hard} are allowed: raise the limit (ulimit -n) or run fewer "
            "replicas"
        )


@contextlib.contextmanager
def more_open_files(limit: int = ENOUGH) -> Iterator[None]:
    """Raise the limit, and restore it at the end."""
    if resource is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_open_files(limit)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
