"""Keeps the listed jobs out of Python's garbage collection.

A thousand jobs are a million objects without cycles. Each full collection traverses all of them, which takes longer
than a page. What is removed is freed as before, by its reference count.
"""

from __future__ import annotations

import gc
import time

EVERY_SECONDS = 60.0
"""A collection stops all requests, and each user who signs in lists jobs."""
_process_serves = False
_frozen_at = 0.0


def own_process() -> None:
    """The process does nothing but serve: what it holds may be kept out of collections."""
    global _process_serves
    _process_serves = True


def after_list() -> None:
    """Jobs were listed."""
    global _frozen_at
    if not _process_serves:
        return
    if gc.get_freeze_count():  # not the first time: what has become garbage since then must not stay
        if time.monotonic() - _frozen_at < EVERY_SECONDS:
            return
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    _frozen_at = time.monotonic()
