"""Shared by the programs of bench/train.py: options, the network's shape, timing of steps and saves."""

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
except ImportError:  # a job without progress, or no job at all

    def report(**what: Any) -> None:
        """Does nothing: reports are disabled."""


PIXELS, CLASSES, LAYERS = 784, 10, 3
Step = Callable[[], Any]
"""Runs one step and returns its loss."""
Save = Callable[[Path], Callable[[], None]]
"""Starts a save into this directory; the returned function waits for its end."""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A program of bench/train.py, which controls when it trains.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the orders and of rank 0's answers")
    parser.add_argument("--width", type=int, default=512, help=f"units in each of the {LAYERS} hidden layers")
    parser.add_argument("--batch", type=int, default=512, help="samples per rank and step")
    return parser.parse_args()


def measure(
    options: argparse.Namespace, began: float, rank: int, step: Step, alone: Step, saves: Mapping[str, Save]
) -> None:
    """Executes orders until `end`: a number of steps, `together` or `alone`, or a number of saves.

    `step` is a step of all ranks together, `alone` one without the others; `began` is the time of the program's first
    line, in seconds since the epoch. Order n is the file n.order, and rank 0's answer the file n.answer.
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
            seconds(chosen, 2)  # ranks read an order at different times, and caches hold data of others
            answer = seconds(chosen, int(count))


WARM_UP = 5
PATIENCE = 0.002
"""Seconds between two polls for an order."""


def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(PATIENCE)
    return path.read_text()


def write(path: Path, text: str) -> None:
    """Writes the file atomically."""
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


class Reporter:
    """A step as in a training program: with a report, and a line of rank 0 every ten steps."""

    def __init__(self, options: argparse.Namespace, rank: int, step: Step) -> None:
        self._options, self._rank, self._step, self._done = options, rank, step, 0

    def __call__(self) -> None:
        loss = self._step()
        self._done += 1
        report(step=self._done, samples=self._options.batch, loss=loss)
        if self._rank == 0 and self._done % 10 == 0:
            print(f"step {self._done} loss {float(loss):.4f}", flush=True)


def seconds(step: Step, count: int) -> list[float]:
    """Seconds of each of `count` steps."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return taken


STEPS_BESIDE = 6
"""Steps after the start of a save; then the loop waits for its end."""


def time_saves(count: int, together: Step, alone: Step, folder: Path, saves: Mapping[str, Save]) -> dict[str, Any]:
    """Measures each way: `held`, the seconds for which the loop is blocked; `all`, the delay after a few steps.

    A background save takes time from the steps next to it. These are steps without other ranks, because the time of an
    all-reduce of so large a model varies by more than a save takes; `usual` is the duration of one such step.
    """
    found: dict[str, dict[str, list[float]]] = {name: {"held": [], "all": []} for name in saves}
    usual = []
    for number in range(-1, count):  # the first save of each way allocates memory and starts threads; not counted
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
    """The wait function of a synchronous save."""
