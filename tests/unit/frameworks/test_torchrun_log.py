"""Which output of torchrun only says that other ranks have already ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.frameworks.torchrun_log import TorchrunLog
from support.builders import table

LOG = TorchrunLog()
RECORDED = Path(__file__).parent / "torchrun"
"""Output of torchrun in PyTorch 2.15 at its end."""
SHOULD_DUMP = (
    "[rank1]:[W1124 02:34:43.153826752 ProcessGroupNCCL.cpp:1771] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "
    '"should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe'
)
NOT_DESTROYED = (
    "[rank0]:[W1124 02:34:43.153826752 ProcessGroupNCCL.cpp:1553] Warning: WARNING: destroy_process_group() was "
    "not called before program exit, which can leak resources."
)


@pytest.mark.parametrize("name", ["exit_barrier", "sigterm"])
def test_torchruns_shutdown_is_one_complaint(name: str) -> None:
    first, *others = (RECORDED / f"{name}.log").read_text().splitlines()
    assert LOG.starts_complaint(first)
    assert [line for line in others if not LOG.starts_complaint(line) and not LOG.continues_complaint(line)] == []


@pytest.mark.parametrize("line", [SHOULD_DUMP, NOT_DESTROYED])
def test_warnings_of_nccl_at_the_end_are_complaints(line: str) -> None:
    assert LOG.starts_complaint(line)


@table(
    ("output of the program", "epoch 3 loss 0.1"),
    ("an exception of the program", "OSError: disk is full"),
    ("torchrun's note at the start", "W1124 02:34:43.676000 26443 torch/distributed/run.py:852] Setting OMP_NUM_"),
    ("a failed rendezvous", "[W1124 02:34:43.1 socket.cpp:767] [c10d] The client socket has failed to connect to"),
    ("torchrun's report", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
)
def test_other_lines_are_always_shown(case: list[str]) -> None:
    [line] = case
    assert not LOG.starts_complaint(line)
    assert not LOG.continues_complaint(line)
