"""Compares training speed with and without `allranks run`: step time, start-up, scaling, checkpoints."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from machine import machine
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from train_runs import FRAMEWORKS, Failed, Framework, Training, Way, training
from train_table import page

EPILOG = """examples:
  make bench                                               # all benchmarks; installs the frameworks they need
  PATH="$(tools/frameworks.sh)/bin:$PATH" .venv/bin/python bench/train.py
  PATH="$(tools/frameworks.sh pytorch)/bin:$PATH" .venv/bin/python bench/train.py --only pytorch --rounds 3
  .venv/bin/python bench/train.py --part saves --json saves.json
  .venv/bin/python bench/train.py --page                   # also write the tables into docs/reference/training-speed.md

The same unmodified program runs on two ranks with one thread each: started by torchrun, by horovodrun or with TF_CONFIG
set by hand (bare); by `allranks run`; by `allranks run` for a job with progress, so that each step is reported; and on
one rank. All four are started and then take turns while the others wait. In each round each of them trains once, in the
reverse order every other round. Ratios are those of the medians of all rounds. Then each program saves a model of
100 MB, alternating between two ways.

exit status: 0, 1 if a program failed, 2 if nothing was run
"""
WAYS: tuple[Way, ...] = ("bare", "allranks", "reports", "one")
TITLES = {"bare": "bare", "allranks": "allranks run", "reports": "with reports", "one": "one rank"}
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "training-speed.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
PARTS = ("steps", "saves")
SAVING = ("--width=3328", "--batch=32")  # 24.8 million weights of 4 bytes
Results = dict[str, dict[str, list[dict[str, Any]]]]


def main() -> int:
    options = arguments()
    frameworks = [one for one in FRAMEWORKS if one.name in options.only]
    if missing := sorted({one.needs for one in frameworks if not shutil.which(one.needs)}):
        print(f"train: not in PATH: {', '.join(missing)} (tools/frameworks.sh installs them)", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds every `with`, which ends all ranks
    about = machine() | {"versions": versions()}
    try:
        results = run_all(frameworks, options)
    except Failed as failure:
        print(f"train: {failure}", file=sys.stderr)
        return 1
    titles = {one.name: {"title": one.title, "launcher": one.launcher} for one in frameworks}
    document = {"machine": about, "frameworks": titles, "results": results}
    document |= {"starts": options.starts, "rounds": options.rounds, "steps": options.steps}
    if options.json:
        options.json.write_text(json.dumps(document) + "\n")
    print(json.dumps(document) if options.output == "json" else page(document))
    if options.page:
        write_page(page(document))
    return 0


def arguments() -> argparse.Namespace:
    names = [one.name for one in FRAMEWORKS]
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", type=some_of(names), default=names, metavar="NAME[,..]", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--part", type=some_of(PARTS), default=PARTS, metavar="PART[,..]", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--starts", type=positive, default=2, help="number of starts of each launch method (default 2)")
    parser.add_argument("--rounds", type=positive, default=4, help="rounds of each start (default 4)")
    parser.add_argument("--steps", type=positive, default=24, help="steps of each launch method per round (default 24)")
    parser.add_argument("--saves", type=positive, default=5, help="checkpoints per way of saving (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers of all runs to FILE")
    parser.add_argument("-o", dest="output", choices=["json"], help="print these numbers instead of the tables")
    parser.add_argument("--page", action="store_true", help="also write docs/reference/training-speed.md")
    options = parser.parse_args()
    if options.page and (set(options.only) != set(names) or set(options.part) != set(PARTS)):
        parser.error("--page needs all frameworks and parts: the page shows one run")
    return options


def some_of(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; one of {', '.join(allowed)}")
        return names

    return read


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def run_all(frameworks: Sequence[Framework], options: argparse.Namespace) -> Results:
    """Measurements of each start, by framework and launch method; those of checkpoints are under `saves`."""
    results: Results = {one.name: {} for one in frameworks}
    starts = options.starts if "steps" in options.part else 0
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with (
        Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress,
        tempfile.TemporaryDirectory(prefix="bench-train-") as folder,
    ):
        task = progress.add_task(
            "", total=len(frameworks) * (starts * (len(WAYS) + options.rounds) + ("saves" in options.part))
        )

        def say(what: str) -> None:
            progress.update(task, description=what, advance=1)

        for number in range(starts):
            for framework in frameworks:
                for way, found in one_start(framework, number, options, Path(folder), say).items():
                    results[framework.name].setdefault(way, []).append(found)
        for framework in frameworks if "saves" in options.part else ():
            say(f"{framework.title}: saves")
            with training(framework, "allranks", SAVING, Path(folder) / f"{framework.name}-saves") as ranks:
                results[framework.name]["saves"] = [ranks.do("saves", options.saves)]
    return results


def one_start(
    framework: Framework, number: int, options: argparse.Namespace, folder: Path, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Starts all launch methods one after the other; then they take turns while the others wait."""
    with contextlib.ExitStack() as stack:
        ranks: dict[str, Training] = {}
        for way in turned(WAYS, number):
            say(f"{framework.title}, start {number + 1}: {TITLES[way]}")
            place = folder / f"{framework.name}-{number}-{way}"
            ranks[way] = stack.enter_context(training(framework, way, (), place))
        found: dict[str, dict[str, Any]] = {way: {**ranks[way].first, "steps": [], "alone": []} for way in WAYS}
        for each in ranks.values() if framework.polls else ():
            each.stop()
        for turn in range(options.rounds):
            say(f"{framework.title}, start {number + 1}: round {turn + 1} of {options.rounds}")
            for way in turned(WAYS, turn):
                with turn_of(ranks[way], framework.polls):
                    found[way]["steps"].append(ranks[way].do("together", options.steps))
                    if way in ("allranks", "one"):
                        found[way]["alone"].append(ranks[way].do("alone", max(1, options.steps // 4)))
    return found


@contextlib.contextmanager
def turn_of(ranks: Training, polls: bool) -> Iterator[None]:
    if polls:
        ranks.go_on()
    yield
    if polls:
        ranks.stop()


def turned(ways: Sequence[Way], number: int) -> Sequence[Way]:
    """Reverses every other round, so that a change in the machine's speed affects all methods."""
    return ways[::-1] if number % 2 else ways


def write_page(tables: str) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}")


def versions() -> dict[str, str]:
    """Versions of Python and of the frameworks that the ranks find in PATH."""
    program = (
        "import importlib.metadata as m, json, platform\n"
        "names = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "wanted = 'torch', 'tensorflow', 'tensorflow-cpu', 'horovod'\n"
        "print(json.dumps({'Python': platform.python_version(), **{n: names[n] for n in wanted if n in names}}))"
    )
    done = subprocess.run(["python3", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
