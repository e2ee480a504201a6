"""Which of the ranks that make no progress differs from the others."""

from __future__ import annotations

from dataclasses import replace

from allranks.core.diagnosis.stalled_ranks import numbered, suspects
from allranks.core.facts.rank_reports import Position
from support.builders import at, rank, table

REDUCE = Position("train.py:88", "step", "all_reduce", collective=True)
GATHER = Position("train.py:9", "step", "all_gather", collective=True)
EVALUATE = Position("train.py:120", "evaluate", "forward")
BACKWARD = Position("train.py:80", "step", "backward")
IN_FINALLY = Position("train.py:12", "main", "barrier", collective=True, raising="ValueError: sample 4711 is broken")
LOST = Position(
    "train.py:12", "main", "barrier", collective=True, raising="RuntimeError: Connection closed by peer [::1]"
)
ENDED = Position(call="ended", raising="ValueError: sample 4711 is broken")
POLL = Position("train.py:12", "together", "sleep")
KEPT = Position(call="ended")
DATA = Position("data.py:7", "__getitem__", "DataLoader", activity="data", file="/data/x.bin")
WRITE = Position("train.py:45", "save_all", "save", activity="write", file="/ckpt/step-8.pt", stuck=True)
DEBUGGER = Position("train.py:30", "step", "interaction", activity="debugger")
INPUT = Position("train.py:5", "", "input", activity="input")
VALIDATION = Position("train.py:200", "main", "all_reduce", collective=True, callers=("validation_loop", "fit"))
TRAINING = Position("train.py:200", "main", "all_reduce", collective=True, callers=("training_loop", "fit"))
FROM_EVALUATE = Position("common.py:3", "mean", "all_reduce", collective=True, callers=("evaluate train.py:120",))
FROM_STEP = Position("common.py:3", "mean", "all_reduce", collective=True, callers=("step train.py:88",))
R0, R1, R2 = "rank 0 (worker-0 on node-0)", "rank 1 (worker-1 on node-1)", "rank 2 (worker-2 on node-2)"


@table(
    ("fewer steps", [rank(0, 9), rank(1, 8), rank(2, 9)], [1], f"{R1} at step 8, the others at 9"),
    (
        "fewer steps, at a place",
        [rank(0, 9, position=REDUCE), rank(1, 8, position=DATA), rank(2, 9, position=REDUCE)],
        [1],
        f"{R1} at step 8, the others at 9: it waits for data (/data/x.bin) in __getitem__(), data.py:7; "
        "ranks 0 and 2 wait for it in all_reduce, train.py:88",
    ),
    (
        "a rank that reports no steps is not behind others that do",
        [rank(0, 9), rank(1), rank(2, 9)],
        [],
        "all 3 ranks are at step 9; their stack dumps show",
    ),
    (
        "outside of a collective",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=REDUCE), rank(2, 9, position=EVALUATE)],
        [2],
        f"{R2} is in evaluate(), train.py:120 (forward); ranks 0 and 1 wait for it in all_reduce, train.py:88",
    ),
    (
        "outside of a collective, also of two",
        [rank(0, 9, position=EVALUATE), rank(1, 9, position=REDUCE)],
        [0],
        f"{R0} is in evaluate(), train.py:120 (forward); rank 1 waits for it in all_reduce, train.py:88",
    ),
    (
        "several outside, at several places",
        [rank(0, 9, position=EVALUATE), rank(1, 9, position=REDUCE), rank(2, 9, position=DATA)],
        [0, 2],
        f"{R0}, {R2} do not wait for others; rank 1 waits for them in all_reduce, train.py:88",
    ),
    (
        "a checkpoint that is written to a disk that does not answer",
        [rank(0, 9, position=WRITE), rank(1, 9, position=REDUCE)],
        [0],
        f"{R0} writes /ckpt/step-8.pt in save_all(), train.py:45, state D: the kernel waits for a device; rank 1 waits",
    ),
    (
        "a debugger",
        [rank(0, 9, position=DEBUGGER), rank(1, 9, position=REDUCE)],
        [0],
        f"{R0} is stopped in a debugger in step(), train.py:30; rank 1 waits for it",
    ),
    (
        "input from a terminal",
        [rank(0, 9, position=INPUT), rank(1, 9, position=REDUCE)],
        [0],
        f"{R0} waits for input at train.py:5; rank 1 waits for it",
    ),
    (
        "an exception in a finally",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=IN_FINALLY)],
        [1],
        f"{R1} handles ValueError: sample 4711 is broken, and waits in barrier, train.py:12; rank 0 waits for it in "
        "all_reduce, train.py:88",
    ),
    (
        "the exception of a rank that lost a peer is a consequence",
        [rank(0, 9, position=LOST), rank(1, 9, position=EVALUATE)],
        [1],
        f"{R1} is in evaluate(), train.py:120 (forward); rank 0 waits for it in barrier, train.py:12",
    ),
    (
        "an exception in a handler, and fewer steps",
        [rank(0, 9, position=REDUCE), rank(1, 8, position=IN_FINALLY)],
        [1],
        f"{R1} handles ValueError: sample 4711 is broken, and waits in barrier, train.py:12; rank 0 waits for it",
    ),
    (
        "a rank that handles the loss of a peer",
        [
            rank(0, 9, position=replace(IN_FINALLY, raising="RuntimeError: Connection closed by peer [::1]:3")),
            rank(1, 8),
        ],
        [1],
        f"{R1} at step 8, the others at 9",
    ),
    (
        "a main thread that ended by an exception",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=ENDED)],
        [1],
        f"the main thread of {R1} has ended with ValueError: sample 4711 is broken; rank 0 waits for it in all_reduce",
    ),
    (
        "a main thread that ended",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=KEPT)],
        [1],
        f"the main thread of {R1} has ended, and another thread keeps the process; rank 0 waits for it",
    ),
    (
        "a main thread that ended, after all steps of all ranks",
        [rank(0, 10, total_steps=10, done=True), rank(1, 10, total_steps=10, position=KEPT)],
        [1],
        f"the main thread of {R1} has ended, and another thread keeps the process",
    ),
    (
        "a rank that completed",
        [rank(0, 10, position=REDUCE), rank(1, 10, total_steps=20, done=True), rank(2, 10, position=REDUCE)],
        [1],
        f"{R1} completed at step 10 of 20; ranks 0 and 2 wait for it in all_reduce, train.py:88",
    ),
    (
        "a rank that completed, and the others do not say where they are",
        [rank(0, 10), rank(1, 10, done=True), rank(2, 10)],
        [1],
        f"{R1} completed at step 10; ranks 0 and 2 still run",
    ),
    (
        "a rank that completed early, and the others wait in a function of the program",
        [rank(0, 10, position=POLL), rank(1, 10, total_steps=20, done=True), rank(2, 10, position=POLL)],
        [1],
        f"{R1} completed at step 10 of 20; ranks 0 and 2 wait for it in together(), train.py:12 (sleep)",
    ),
    (
        "a rank that sends nothing while the others wait",
        [rank(0, 9, position=REDUCE), rank(1, 9, received_at=at(-300)), rank(2, 9, position=REDUCE)],
        [1],
        f"{R1} has sent nothing since ",
    ),
    (
        "another collective",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=GATHER), rank(2, 9, position=REDUCE)],
        [1],
        f"{R1} waits in all_gather, train.py:9; ranks 0 and 2 wait for it in all_reduce, train.py:88",
    ),
    (
        "the same collective by another caller",
        [rank(0, 9, position=FROM_STEP), rank(1, 9, position=FROM_EVALUATE), rank(2, 9, position=FROM_STEP)],
        [1],
        f"{R1} waits in all_reduce, common.py:3, called by evaluate(), train.py:120; ranks 0 and 2 wait for it in ",
    ),
    (
        "the same collective by another function of a trainer",
        [rank(0, 9, position=TRAINING), rank(1, 9, position=VALIDATION), rank(2, 9, position=TRAINING)],
        [1],
        f"{R1} waits in all_reduce, train.py:200, called by validation_loop; ranks 0 and 2 wait for it in ",
    ),
    (
        "a rank that measures that it computes",
        [rank(0, 9, waiting=True), rank(1, 9, waiting=False, position=BACKWARD)],
        [1],
        f"{R1} did not complete step 10: it is in step(), train.py:80 (backward); rank 0 waits for it",
    ),
    (
        "ranks that wait in the backward pass: none",
        [rank(0, 9, position=BACKWARD), rank(1, 9, position=BACKWARD)],
        [],
        "all 2 ranks are at step 9: they wait in backward, train.py:80",
    ),
    (
        "two in different collectives: none",
        [rank(0, 9, position=GATHER), rank(1, 9, position=REDUCE)],
        [],
        "all 2 ranks are at step 9, in different places: rank 0 waits in all_gather, train.py:9; rank 1 waits in ",
    ),
    (
        "all wait for data: none",
        [rank(0, 9, position=DATA), rank(1, 9, position=DATA)],
        [],
        "all 2 ranks are at step 9: they wait for data (/data/x.bin) in __getitem__(), data.py:7",
    ),
    ("no positions: none", [rank(0, 9), rank(1, 9)], [], "all 2 ranks are at step 9; their stack dumps show"),
    (
        "a rank that did not answer is not one that differs",
        [rank(0, 9, position=REDUCE), rank(1, 9), rank(2, 9, position=REDUCE)],
        [],
        "all 3 ranks are at step 9; their stack dumps show",
    ),
    (
        "a rank that completed with more steps is not missing",
        [rank(0, 20, done=True), rank(1, 10), rank(2, 10)],
        [1, 2],
        "at step 10, the others at 20",
    ),
)
def test_the_rank_that_differs(case):
    ranks, numbers, sentence = case
    found = suspects(ranks)
    assert [each.rank for each in found.ranks] == numbers
    assert sentence in found.sentence


@table(
    ("one", [3], "rank 3"),
    ("two", [0, 2], "ranks 0 and 2"),
    ("in a row", list(range(63)), "ranks 0 to 62"),
    ("many", [*range(0, 40, 2)], "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
)
def test_the_numbers_of_ranks(case):
    numbers, text = case
    assert numbered([rank(number, 1) for number in numbers]) == text
