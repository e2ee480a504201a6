"""Which of the ranks that make no progress differs from the others."""

from __future__ import annotations

# ruff: noqa: E501 (sentences)
from allranks.core.diagnosis.stalled_ranks import suspects
from allranks.core.facts.rank_reports import Position
from support.builders import rank, table

REDUCE = Position("train.py:10", "all_reduce")
GATHER = Position("train.py:9", "all_gather")
EVALUATE = Position("train.py:120", "forward")
IN_FINALLY = Position("train.py:12", "barrier", "ValueError: sample 4711 is broken")
ENDED = Position("", "ended", "ValueError: sample 4711 is broken")
KEPT = Position("", "ended")


@table(
    (
        "fewer steps",
        [rank(0, 9), rank(1, 8), rank(2, 9)],
        [1],
        "rank 1 (worker-1 on node-1) at step 8, the others at 9",
    ),
    (
        "an exception in a finally",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=IN_FINALLY)],
        [1],
        "rank 1 (worker-1 on node-1) handles ValueError: sample 4711 is broken (barrier at train.py:12); the others wait "
        "(all_reduce at train.py:10)",
    ),
    (
        "a main thread that ended by an exception",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=ENDED)],
        [1],
        "rank 1 (worker-1 on node-1) its main thread has ended with ValueError: sample 4711 is broken",
    ),
    (
        "a main thread that ended",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=KEPT)],
        [1],
        "the main thread of rank 1 (worker-1 on node-1) has ended; another thread keeps the process",
    ),
    (
        "a rank that completed",
        [rank(0, 10, total_steps=20), rank(1, 10, total_steps=20, done=True), rank(2, 10, total_steps=20)],
        [1],
        "rank 1 (worker-1 on node-1) completed at step 10 of 20; the others wait for it",
    ),
    (
        "another collective",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=GATHER), rank(2, 9, position=REDUCE)],
        [1],
        "rank 1 (worker-1 on node-1) waits elsewhere (all_gather at train.py:9); the others wait (all_reduce at train.py:10)",
    ),
    (
        "the only one outside of a collective, also of two",
        [rank(0, 9, position=EVALUATE), rank(1, 9, position=REDUCE)],
        [0],
        "rank 0 (worker-0 on node-0) is not in a collective (forward at train.py:120)",
    ),
    (
        "two in different collectives: none",
        [rank(0, 9, position=GATHER), rank(1, 9, position=REDUCE)],
        [],
        "all 2 ranks are at step 9, and wait in different places: rank 0 (worker-0 on node-0) (all_gather at train.py:9); ",
    ),
    (
        "all at the same place: none",
        [rank(0, 9, position=REDUCE), rank(1, 9, position=REDUCE)],
        [],
        "all 2 ranks are at step 9 (all_reduce at train.py:10)",
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
