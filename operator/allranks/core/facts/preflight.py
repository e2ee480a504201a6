"""The preflight of an attempt: which tests its pods make before their program, and what a failed one prints."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Literal, NamedTuple

from allranks.api.job import Job, Preflight
from allranks.api.status import Because, Status
from allranks.core.facts import pool_template
from allranks.core.facts.forgiveness import without_forgiven
from allranks.core.facts.model import Platform

DEFAULT_SECONDS = 180
AUTOMATIC_AFTER = 2
"""Errors of devices on one node, after which a job that does not say otherwise tests its nodes."""
_OF_DEVICES: tuple[Because, ...] = ("DeviceError", "DeviceUnhealthy", "NodeUnhealthy")

Check = Literal["disk", "gpu", "network"]


class Tests(NamedTuple):
    """The tests of an attempt."""

    checks: tuple[Check, ...]
    seconds: int


def settings(job: Job, status: Status, platform: Platform) -> Tests | None:
    """Return the tests of the current attempt; None without any."""
    pool = pool_template.pool_of_ranks(job, platform)
    chosen = job.spec.preflight or (pool.preflight if pool else None)
    if chosen is None and _has_bad_node(job, status):
        chosen = _ALL
    if chosen is None:
        return None
    values: dict[Check, bool | None] = {"disk": chosen.disk, "gpu": chosen.gpu, "network": chosen.network}
    checks = tuple(check for check, value in values.items() if value)
    return Tests(checks, chosen.timeout_seconds or DEFAULT_SECONDS) if checks else None


_ALL = Preflight(gpu=True, network=True, disk=True)


def _has_bad_node(job: Job, status: Status) -> bool:
    failures = without_forgiven(job, [past.failure for past in status.history if past.failure])
    counts = Counter(failure.node for failure in failures if failure.node and failure.because in _OF_DEVICES)
    return any(count >= AUTOMATIC_AFTER for count in counts.values())


class FailedTest(NamedTuple):
    """What the helper of a pod prints at its end."""

    check: str
    replica: str
    text: str


_LINE = re.compile(r"^allranks: preflight failed: (\{.*\})\s*\Z", re.MULTILINE)
_LONGEST = 512


def failed_test(output: str) -> FailedTest | None:
    """Return the failed test in the last line of the output; None without such a line."""
    match = _LINE.search(output)
    if match is None:
        return None
    try:
        values = json.loads(match[1])
    except (ValueError, RecursionError):
        return None
    texts = [text[:_LONGEST] for name in FailedTest._fields if isinstance(text := values.get(name), str)]
    return FailedTest(*texts) if len(texts) == len(FailedTest._fields) else None
