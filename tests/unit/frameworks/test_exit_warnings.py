"""The warning with which every rank that uses NCCL ends after an exception. It is not the cause of the failure."""

from __future__ import annotations

import pytest

from allranks.api.status import Status
from allranks.core.diagnosis import comparison, root_cause
from allranks.text import without_exit_warnings
from support.builders import at, failed, job

WARNING = (
    "[rank0]:[W1128 07:42:52.807753486 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not "
    "called before program exit, which can leak resources. For more info, please see "
    "https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())"
)
TIMEOUT = "[rank0]:[E1128 07:42:52.8 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout"


@pytest.mark.parametrize("warning", [WARNING, WARNING.removeprefix("[rank0]:")], ids=["in a rank", "in a program"])
def test_the_warning_is_removed_and_nothing_else(warning: str) -> None:
    assert without_exit_warnings(f"epoch 3\n{warning}\nValueError: lr\n") == "epoch 3\nValueError: lr\n"
    assert without_exit_warnings(f"ValueError: lr\n{warning}") == "ValueError: lr\n"
    assert without_exit_warnings(TIMEOUT) == TIMEOUT
    assert without_exit_warnings(f"print: {WARNING}") == f"print: {WARNING}"


@pytest.mark.parametrize("framework", ["pytorch", "spmd"])
def test_two_errors_with_this_last_line_are_different_failures(framework: str) -> None:
    of = job(framework=framework)
    first, second = (
        next(root_cause.failures(of, Status(), [failed(message=f"{error}\n{WARNING}")], (), at(300)))
        for error in ("ValueError: lr", "OSError: disk is full")
    )
    assert (first.message, second.message) == ("ValueError: lr", "OSError: disk is full")
    assert not comparison.same_way(first, second)
