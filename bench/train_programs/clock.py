"""What the programs of bench/train.py share: options, the shape of the network, and the timing of steps and saves."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

try:
    from allranks.report import report
except ImportError:  # not a job that asks for progress, or no job at all

    def report(**what: Any) -> None:
        """Nobody listens."""


PIXELS, CLASSES, LAYERS = 784, 10, 3
Step = Callable[[], Any]
"""Makes one step and returns its loss."""
Save = Callable[[Path], Callable[[], None]]
"""Begins to save into this directory; what it returns waits for the end of that."""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A program of bench/train.py, which tells it when to make its steps.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the orders and of what rank 0 answers")
    parser.add_argument("--width", type=int, default=512, help=f"of each of the {LAYERS} hidden layers")
    parser.add_argument("--batch", type=int, default=512, help="samples of one rank in a step")
    return parser.parse_args()


def measure(
    options: argparse.Namespace, began: float, rank: int, step: Step, alone: Step, saves: Mapping[str, Save]
) -> None:
    """Carries out orders until there is one to end: so many steps, `together` or `alone`, or so many saves.

    `step` is one of all ranks together, `alone` the same without the others; `began` is when the program's first line
    ran, in seconds since the epoch. Order n is the file n.order, and rank 0's answer the file n.answer.
    """
    together = Reporter(options, rank, step)
    together()
    write(options.folder / f"{os.getpid()}.pid", "")
    answer: Any = {"began": began, "first_step": time.time(), "samples": options.batch}
    seconds(together, WARM_UP)
    seconds(alone, WARM_UP)
    for number in itertools.count():
        if rank == 0:
            write(options.folder / f"{number}.answer", json.dumps(answer))
        kind, count = wait_for(options.folder / f"{number}.order").split()
        if kind == "end":
            return
        if kind == "saves":
            answer = time_saves(int(count), together, alone, options.folder, saves)
        else:
            chosen = together if kind == "together" else alone
            seconds(chosen, 2)  # ranks do not see an order at the same moment, and caches hold what others did
            answer = seconds(chosen, int(count))


WARM_UP = 5
PATIENCE = 0.002
"""Seconds between two looks for an order."""


def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(PATIENCE)
    return path.read_text()


def write(path: Path, text: str) -> None:
    """Who sees the file sees all of it."""
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


class Reporter:
    """A step as a training would make it: with its report, and a line of rank 0 now and then."""

    def __init__(self, options: argparse.Namespace, rank: int, step: Step) -> None:
        self._options, self._rank, self._step, self._done = options, rank, step, 0

    def __call__(self) -> None:
        loss = self._step()
        self._done += 1
        report(step=self._done, samples=self._options.batch, loss=loss)
        if self._rank == 0 and self._done % 10 == 0:
            print(f"step {self._done} loss {float(loss):.4f}", flush=True)


def seconds(step: Step, count: int) -> list[float]:
    """Of each of so many steps."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return taken


STEPS_BESIDE = 6
"""Made after a save has begun; if it is not over by then, it is waited for."""


def time_saves(count: int, together: Step, alone: Step, folder: Path, saves: Mapping[str, Save]) -> dict[str, Any]:
    """Of each way: `held`, the seconds for which the loop waits; `all`, by how many seconds a few steps are later.

    A save that goes on in the background takes time from the steps beside it. They are steps without other ranks, for
    the time of an all-reduce of so large a model varies by more than a save takes; `usual` is one of them.
    """
    found: dict[str, dict[str, list[float]]] = {name: {"held": [], "all": []} for name in saves}
    usual = []
    for number in range(-1, count):  # the first of each allocates memory and starts threads, and does not count
        for name, save in saves.items():
            place = folder / f"{name} {number}"
            place.mkdir(exist_ok=True)
            together()  # the ranks meet
            without = seconds(alone, STEPS_BESIDE)
            together()
            start = time.perf_counter()
            wait = save(place)
            held = time.perf_counter() - start
            seconds(alone, STEPS_BESIDE)
            wait()
            whole = time.perf_counter() - start - sum(without)
            if number >= 0:
                usual += without
                found[name]["held"].append(held)
                found[name]["all"].append(whole)
    return {"usual": statistics.median(usual), "saves": found}


def over() -> None:
    """Of a save that was over when it returned."""
