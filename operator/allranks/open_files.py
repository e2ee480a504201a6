"""Raises the limit of open files (RLIMIT_NOFILE). Shells and container runtimes start with 1,024 and allow more."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

try:
    import resource
except ImportError:  # Windows, where the command line runs too
    resource = None  # type: ignore[assignment]


ENOUGH = 65_536


def raise_open_files(wanted: int = ENOUGH) -> int:
    """Raises the soft limit to `wanted` as far as the hard limit allows. Never lowers it. Returns the soft limit."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


@contextlib.contextmanager
def more_open_files(wanted: int = ENOUGH) -> Iterator[None]:
    """Raises the limit and restores it at the end."""
    if resource is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_open_files(wanted)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
