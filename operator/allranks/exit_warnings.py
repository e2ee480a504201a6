"""Warnings that a library prints while a program ends, whatever ended it. They would hide the cause of a failure."""

from __future__ import annotations

import re

_NOT_DESTROYED = re.compile(
    # PyTorch with NCCL, with every framework that uses it: after an exception, this is the last line of a rank's log.
    r"^(?:\[rank\d+\]:)?\[W\d{4} \S+ ProcessGroupNCCL\.cpp:\d+\] .*destroy_process_group\(\) was not called[^\n]*\n?",
    re.MULTILINE,
)


def without_exit_warnings(output: str) -> str:
    """The end of a program's output without these lines."""
    return _NOT_DESTROYED.sub("", output)
