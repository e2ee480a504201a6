"""Names and labels of the ConfigMaps with what the functions of ranks returned or raised.

The operator creates them and the Python interface reads them. The names bound their number: there is one for each of
the first ranks, and few for exceptions. They contain the job's UID, because a job of the same name may have existed.
"""

from __future__ import annotations

KIND_LABEL = "allranks.dev/outcome"
"""`returned` or `raised`."""
RANK_LABEL = "allranks.dev/rank"
POD_ANNOTATION = "allranks.dev/pod"
CONTENT = "outcome"
"""The key: a line of JSON, then a pickle. See inpod/call_function.py."""


def value_name(job: str, uid: str, attempt: int, rank: int) -> str:
    return f"{job}-{uid[:8]}-value-{attempt}-{rank}"


def error_name(job: str, uid: str, attempt: int, restart: int, number: int) -> str:
    return f"{job}-{uid[:8]}-error-{attempt}-{restart}-{number}"
