"""Runs a pod's command, reports progress that it finds in its output, and restarts it: `python3 watch.py -- PROGRAM
[ARG...]`.

It makes the report library importable for the program, and adds the start-up code of `startup/`. With a pattern
(ALLRANKS_LOG_PATTERN, a regular expression with named groups), or if the program may restart in its pod
(ALLRANKS_IN_PLACE=1) or waits for the other pods (ALLRANKS_START_TOGETHER=1), it stays the parent of the program
(`supervisor.py`): it forwards output, signals and exit code. It starts the program of the next attempt in advance
(`warm_start.py`), unless ALLRANKS_WARM_START is Never. A separate process (`log_progress_matcher.py`) matches the
lines, because a slow pattern must not delay output and Python's regular expressions hold the GIL. When the operator
requests stacks, it signals all Python descendants. Needs the standard library and `allranks.report`, which is in the
same directory.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from process_tree import adopt_orphans, parent_of  # type: ignore[import-not-found]  # in the same directory
from program_run import (  # type: ignore[import-not-found]
    FORWARDED,
    STACKS_SIGNAL,
    cannot_start,
    write_line,
    write_signal,
)

__all__ = ["DIRECTORY", "FORWARDED", "become", "cannot_start", "parent_of", "prepend", "write_line", "write_signal"]

DIRECTORY = Path(__file__).resolve().parent


def main(argv: list[str]) -> int:
    """Run the program; return its exit status, 128 + n for a signal."""
    if len(argv) < 2 or argv[0] != "--":
        print("usage: watch.py -- PROGRAM [ARG...]", file=sys.stderr)
        return 2
    program, env = argv[1:], dict(os.environ)
    if str(DIRECTORY / "call_function.py") in program:
        from call_function import without_launcher  # type: ignore[import-not-found]  # in the same directory

        program = without_launcher(program)
    library = DIRECTORY / "python"
    if library.is_dir():
        sys.path.insert(0, str(library))
        prepend(env, library)
        prepend(env, DIRECTORY / "startup")
        if program[1:3] == [str(DIRECTORY / "jax_process.py"), "--"]:  # it adds the same directory
            program = program[3:] or program
    pattern, in_place = env.get("ALLRANKS_LOG_PATTERN", ""), env.pop("ALLRANKS_IN_PLACE", "") == "1"
    together = env.pop("ALLRANKS_START_TOGETHER", "") == "1"
    warm = env.pop("ALLRANKS_WARM_START", "") != "Never"
    if not env.get("ALLRANKS_REPORT_URL") or not env.get("ALLRANKS_REPORT_TOKEN_FILE"):
        return become(program, env)
    if pattern and (reason := unusable(pattern)) is not None:
        write_line(f"the output is not parsed: {reason}")
        pattern = ""
    if (in_place or together) and (reason := unusable()) is not None:
        write_line(f"the program starts at once, and does not restart in its pod: {reason}")
        in_place = together = False
    if not (pattern or in_place or together):
        return become(program, env)
    if pattern:
        env["ALLRANKS_STACKS_SIGNAL"] = str(STACKS_SIGNAL)
    from supervisor import Supervisor  # type: ignore[import-not-found]

    return Supervisor(program, env, pattern, in_place, together, warm).run()  # type: ignore[no-any-return]


def prepend(env: dict[str, str], path: Path) -> None:
    """Add a directory to PYTHONPATH."""
    env["PYTHONPATH"] = os.pathsep.join(folder for folder in (str(path), env.get("PYTHONPATH")) if folder)


def unusable(pattern: str = "") -> str | None:
    """Return why this process cannot be the parent of the program: to parse its output, or to restart it."""
    if sys.version_info < (3, 9):  # noqa: UP036 (the Python of the image)
        return "the image's python3 is older than 3.9"
    try:
        re.compile(pattern)
        import allranks.report  # noqa: F401 (only tests the import)
    except re.error as error:
        return f"ALLRANKS_LOG_PATTERN is not a regular expression: {error}"
    except ImportError as error:
        return str(error)
    if not pattern and not adopt_orphans():
        return "the system does not let it adopt orphans"
    return None


def become(program: list[str], env: dict[str, str]) -> int:
    """Replace this process by the program."""
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps that
        signal.signal(ignored, signal.SIG_DFL)
    sys.stderr.flush()
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        return int(cannot_start(program, error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
