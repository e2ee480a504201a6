"""Runs the tests in parts, fast ones first, and prints what each part took: `make test`, `make test-all`.

    tools/test.py                      what runs for every change (`make test`, and what CI runs)
    tools/test.py all                  everything, for a night and before a release (`make test-all`)
    tools/test.py unit apiserver       these parts alone
    tools/test.py --since main         the parts and test folders that the changes since a commit need; with --dry-run,
                                       prints them and why
    tools/test.py --times              seconds by folder and by file of the last run
    tools/test.py --list               the parts, as the table of docs/dev/testing.md

Every part runs, whatever failed before it; the end says what failed. Parts that mostly wait run beside the others, with
their output in build/tests/beside.log, and printed at the end. Each part sets up what it needs. Seeds are fixed for
every change, random for `all`: a failure prints the command that repeats it. Options for pytest come from
PYTEST_ADDOPTS.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TextIO

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

import since  # noqa: E402
from junit import cases  # noqa: E402
from parts import AFTER_CHANGES, EVERY_CHANGE, NIGHT, PARTS, RESULTS, ROOT, Command, Part  # noqa: E402

from support import environment  # noqa: E402

PAGE = ROOT / "docs" / "dev" / "testing.md"
ROOT_ONLY = "needs root, because it starts containers: run it again with sudo -E"


class Result(NamedTuple):
    """What became of a part. `seconds` is None if it was skipped."""

    part: Part
    seconds: float | None
    failed: Sequence[str] = ()
    """The commands that failed."""


def main() -> None:
    """Run the parts that are named; exit with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, or any of: {', '.join(PARTS)}")
    parser.add_argument("--since", metavar="COMMIT", help="what the changes since this commit need")
    parser.add_argument("--dry-run", action="store_true", help="with --since: print the choice and exit")
    parser.add_argument("--times", action="store_true", help="print the times of the last run and exit")
    parser.add_argument("--list", action="store_true", help="print the table of parts and exit")
    parser.add_argument("--needs-root", metavar="PART", help="exit with 0 if the part runs containers")
    parser.add_argument("--check", action="store_true", help=f"fail if the table in {PAGE.name} differs")
    parser.add_argument("--update", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args()
    if options.list or options.times:
        print(table() if options.list else times())
        return
    if options.needs_root:
        sys.exit(not PARTS[options.needs_root].root)
    if options.check or options.update:
        sys.exit(page(write=options.update))
    unknown = [name for name in options.parts if name not in PARTS and name != "all"]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}: choose from all, {', '.join(PARTS)}")
    if options.since:
        choice = since.choose(since.changed_paths(options.since))
        print(choice.text)
        sys.exit(0 if options.dry_run else run(choice.parts))
    chosen = [PARTS[name] for name in options.parts if name in PARTS] if options.parts else EVERY_CHANGE
    sys.exit(run(NIGHT if "all" in options.parts else chosen))


def run(parts: Sequence[Part]) -> int:
    """Return the exit status: 0 if every part passed. Parts that need root are skipped for other users.

    A second thread runs the parts that mostly wait. A thread without parts takes those of the other, but only one
    thread runs parts with containers.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    for old in RESULTS.glob("*.xml"):
        old.unlink()
    started = time.monotonic()
    waiting = deque(sorted((part for part in parts if part.waits), key=lambda part: not part.root))
    computing = deque(part for part in parts if not part.waits)
    if not computing:
        waiting, computing = deque(), waiting
    # Beside parts that wait, the others soon need what is built, and must not wait for time that these leave.
    builder = build_ahead(parts, idle=not waiting) if len(parts) > 1 else None
    interrupted = threading.Event()
    try:
        with ThreadPoolExecutor(1) as beside, open(RESULTS / "beside.log", "w+") as log:
            if waiting:
                names = ", ".join(part.name for part in waiting)
                say(f"{names}: beside the others, with output in {log.name}")
            later = beside.submit(run_parts, waiting, computing, log, interrupted) if waiting else None
            try:
                taken = run_parts(computing, waiting, sys.stdout, interrupted) + (later.result() if later else [])
            except KeyboardInterrupt:
                interrupted.set()
                raise
            log.seek(0)
            shutil.copyfileobj(log, sys.stdout)
    finally:
        if builder:
            stop(builder)
    summary(taken, time.monotonic() - started)
    return 1 if any(result.failed for result in taken) else 0


def run_parts(own: deque[Part], others: deque[Part], output: TextIO, interrupted: threading.Event) -> list[Result]:
    """Run one part after the other, first the thread's own, then those of the other thread, until an interruption."""
    taken: list[Result] = []
    while part := _next(own) or _next(others, containers=False):
        if part.root and os.geteuid() != 0:
            taken.append(Result(part, None))
            continue
        start = time.monotonic()
        failed = run_part(part, output)
        taken.append(Result(part, time.monotonic() - start, failed))
        say(f"{part.name} {'FAILED' if failed else 'passed'} after {time.monotonic() - start:.0f} s")
        # Ctrl-C also ends the part of the other thread, shortly before the main thread sets the event.
        if failed and interrupted.wait(1):
            break
    return taken


def _next(parts: deque[Part], containers: bool = True) -> Part | None:
    with contextlib.suppress(IndexError):  # the other thread may have taken the last one
        part = parts.popleft()
        if containers or not part.root:
            return part
        parts.appendleft(part)
    return None


def run_part(part: Part, output: TextIO) -> list[str]:
    """Prepare and run one part. Return the commands that failed: all run, but after a failed preparation none."""
    errors = sys.stderr if output is sys.stdout else output
    for script in part.prepares:
        say(f"{part.name}: tools/{script}", output)
        if subprocess.run(script_command(script), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors).returncode:
            return [f"tools/{script}"]
    failed = []
    for command in part.commands:
        shown = " ".join(str(word).removeprefix(f"{ROOT}/") for word in command)
        say(f"{part.name}: {shown}", output)
        variables = environment_of(part, command) | part.environment
        if subprocess.run(command, cwd=ROOT, env=variables, stdout=output, stderr=errors).returncode:
            failed.append(shown)
    return failed


def environment_of(part: Part, command: Command) -> dict[str, str]:
    """Return the environment of tests. pytest itself gets the user's, because it also builds; tests/conftest.py cleans
    it for the tests. Without PYTHONDONTWRITEBYTECODE, which images often set, a command starts in four fifths of the
    time."""
    builds = part.builds or "pytest" in command
    return environment.interpreter() if builds else environment.clean() | {"HOME": os.environ.get("HOME", "/")}


def say(text: str, output: TextIO = sys.stdout) -> None:
    print(f"\n==> {text}", file=output, flush=True)


def script_command(script: str) -> Command:
    name, *arguments = script.split()
    return [ROOT / "tools" / name, *arguments]


def build_ahead(parts: Sequence[Part], idle: bool) -> subprocess.Popen[bytes]:
    """Build in the background what later parts need, two scripts at a time, because each of them also downloads; if
    `idle`, only with the processor time that tests leave.

    A part that needs the result calls the same script, which waits for the other call.
    """
    scripts = dict.fromkeys(script for part in parts if not part.root or os.geteuid() == 0 for script in part.prepares)
    packages = [script for script in scripts if script.startswith("system-packages.sh")]
    others = shlex.join(script for script in scripts if script not in packages)  # they need the compilers
    # Linux shares processor time by session first, where it has autogroups: niceness holds within one session only.
    nice = 19 if idle else 0
    commands = [
        f"echo {nice} >/proc/self/autogroup",
        *(f"tools/{script}" for script in packages),
        f"printf '%s\\n' {others} | xargs -P 2 -I SCRIPT bash -c tools/SCRIPT",
    ]
    return subprocess.Popen(
        ["nice", "-n", str(nice), "bash", "-c", "; ".join(commands)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(builder: subprocess.Popen[bytes]) -> None:
    if builder.poll() is None:
        os.killpg(builder.pid, signal.SIGTERM)
    builder.wait()


def summary(taken: Sequence[Result], seconds: float) -> None:
    """Print the ten slowest tests, the time of each part beside its budget, and everything that failed."""
    slowest = sorted((case for result in taken for case in cases(result.part.name)), reverse=True)[:10]
    if slowest:
        print("\nslowest tests:")
        for case in slowest:
            print(f"{case.seconds:7.1f} s  {case.file}::{case.name}"[:170])
    print(f"\n{'part':<15} {'took':>7} {'budget':>7}  what it protects")
    for result in taken:
        took = "-" if result.seconds is None else f"{result.seconds:.0f} s"
        note = (
            f"skipped: {ROOT_ONLY}" if result.seconds is None else "FAILED" if result.failed else result.part.protects
        )
        print(f"{result.part.name:<15} {took:>7} {60 * result.part.minutes:>5.0f} s  {note}")
    print(f"{'total':<15} {seconds:>5.0f} s {60 * minutes([result.part for result in taken]):>5.0f} s")
    for result in taken:
        if result.failed:
            print(f"\n{result.part.name} FAILED:")
            for line in [
                *result.failed,
                *(f"{case.file}::{case.name}" for case in cases(result.part.name) if case.failure),
            ]:
                print(f"  {line}"[:240])
    sys.stdout.flush()


def times() -> str:
    """Return the seconds of tests by part and folder, and of the slowest files: more than the run took, if tests ran
    beside each other."""
    folders, files, numbers = Counter[tuple[str, str]](), Counter[str](), Counter[tuple[str, str]]()
    for result in sorted(RESULTS.glob("*.xml")):
        for case in cases(result.stem):
            place = result.stem, str(Path(case.file).parent)
            folders[place] += case.seconds  # type: ignore[assignment]
            files[case.file] += case.seconds  # type: ignore[assignment]
            numbers[place] += 1
    rows = [
        f"{seconds:8.1f} s {numbers[place]:6} tests  {place[0]:<15} {place[1]}"
        for place, seconds in folders.most_common()
    ]
    return "\n".join([*rows, "", *(f"{seconds:8.1f} s  {file}" for file, seconds in files.most_common(40))])


def minutes(parts: Sequence[Part]) -> float:
    """Return the budget of a run of two parts at a time."""
    waiting = sum(part.minutes for part in parts if part.waits)
    whole = sum(part.minutes for part in parts)
    return max(waiting, whole - waiting, whole / 2)


def table() -> str:
    """Return the parts as a Markdown table."""
    rows = ["| part | budget | what it protects |", "|---|---|---|"]
    for parts, whole, name in (
        (EVERY_CHANGE, EVERY_CHANGE, "make test"),
        (AFTER_CHANGES, (), ""),
        (NIGHT[1:], NIGHT, "make test-all"),
    ):
        rows += [f"| `{part.name}` | {part.minutes:g} min | {part.protects} |" for part in parts]
        if whole:
            rows.append(f"| **`{name}`** | **{minutes(whole):.0f} min** | |")
    return "\n".join(rows)


def page(write: bool) -> int:
    """Write the table between the markers of the page, or compare it. Return the exit status."""
    text = PAGE.read_text()
    between = re.compile(r"(?<=<!-- parts -->\n).*?(?=<!-- /parts -->)", re.DOTALL)
    current = between.sub(lambda _: f"{table()}\n", text)
    if write:
        PAGE.write_text(current)
    elif text != current:
        print(f"{PAGE.relative_to(ROOT)}: the table differs from tools/test.py: run 'make generate'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main()
