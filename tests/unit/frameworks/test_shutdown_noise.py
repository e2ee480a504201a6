"""Which output of torchrun only says that other ranks have already ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.frameworks import FRAMEWORKS
from support.builders import table

PYTORCH = FRAMEWORKS["pytorch"]
RECORDED = Path(__file__).parent / "torchrun"
"""Output of torchrun in PyTorch 2.15 at its end."""


def noise_in(*lines: str) -> list[str]:
    found = PYTORCH.shutdown_noise(lines)
    return [line for place, line in enumerate(lines) if place in found]


@pytest.mark.parametrize("name", ["exit_barrier", "sigterm"])
def test_all_of_torchruns_shutdown_is_recognized(name: str) -> None:
    lines = (RECORDED / f"{name}.log").read_text().splitlines()
    assert PYTORCH.begins_shutdown_noise(lines[0])
    assert noise_in(*lines) == lines
    assert noise_in("epoch 3", *lines, "saved the model") == lines


@table(
    ("output of the program", ["epoch 3 loss 0.1", "frame #3 of the film", ""]),
    ("a traceback of the program", ["Traceback (most recent call last):", '  File "train.py"', "ValueError: no"]),
    ("torchrun's note at the start", ["W1124 02:34:43.676000 26443 torch/distributed/run.py:852] Setting OMP_NUM_"]),
    ("a failed rendezvous", ["[W1124 02:34:43.1 socket.cpp:767] [c10d] The client socket has failed to connect to"]),
)
def test_other_lines_are_not_noise(case: list[list[str]]) -> None:
    [lines] = case
    assert not any(map(PYTORCH.begins_shutdown_noise, lines))
    assert noise_in(*lines) == []


def test_a_traceback_of_the_program_during_the_shutdown_is_not_noise() -> None:
    lines = (RECORDED / "sigterm.log").read_text().splitlines()[:2]
    own = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "OSError: disk is full"]
    assert noise_in(*lines, *own) == lines
    assert noise_in(*lines, *own[:2]) == [*lines, *own[:2]]  # it may yet end with an exception of the shutdown


def test_nccls_warnings_at_the_end_are_noise() -> None:
    warnings = [
        "[rank0]:[W1124 02:34:43.153826752 ProcessGroupNCCL.cpp:1553] Warning: WARNING: destroy_process_group() was "
        "not called before program exit, which can leak resources.",
        "[rank1]:[W1124 02:34:43.153826752 ProcessGroupNCCL.cpp:1771] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "
        '"should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe',
    ]
    assert noise_in(*warnings) == warnings
