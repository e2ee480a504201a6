"""`allranks.run`: runs a function or a script as a job, and returns what rank 0 returned."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allranks.cli.manifests import load_documents
from allranks.cli.script_job import choose_framework, job_document, job_name, make_job, read_script
from allranks.errors import AllranksError, CannotRun
from allranks.frameworks import FRAMEWORKS
from allranks.local import run_directories
from allranks.pod_bundle import HELPERS
from allranks.sdk import notebook, outcome, payload
from allranks.sdk.command import Command
from allranks.sdk.function_source import read_function

RESULTS = "results"
PAYLOAD = "function.pickle"


def run(
    target: Callable[..., Any] | str | os.PathLike[str],
    *args: Any,
    ranks: int,
    gpus: int = 0,
    framework: str | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    restarts: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    logs: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Runs `target` as a job, waits for its end, and returns what the function returned in rank 0.

    `target`: a function, which is called with `args`, `kwargs` and `more` in each rank; or the path of a script, which
    gets `args` as its command line, and whose value is None. `ranks`: -2 starts two replicas on this machine. `gpus`:
    GPUs of each replica. `framework`: by default that of the packages that the function or script imports. `name`: of
    the job; by default that of the function or script. `env`: further variables of the ranks. `restarts`: restart the
    job up to so many times after a failure; by default a job that fails before its first step is not restarted.
    `run_dir`: directory for logs and results, by default runs/NAME/TIME. `logs`: print the output of the ranks.
    `kwargs`: arguments of the function whose names are parameters of `run` as well.

    Raises RankFailed with the exception and traceback of the rank that failed first; ResultError if the job succeeded
    and its value cannot be had; CannotPickle if the function or an argument cannot be sent to the ranks;
    InvalidManifest and CannotRun if nothing was started; KeyboardInterrupt after Ctrl-C, when all ranks have ended.
    """
    replicas = _replicas(ranks)
    arguments = {**(kwargs or {}), **more}
    variables = tuple((env or {}).items())
    if callable(target):
        chosen = _name(name, payload.name_of(target))
        directory = _directory(run_dir, chosen)
        document = _function_document(target, chosen, directory, replicas, gpus, framework, variables)
    elif arguments:
        raise TypeError(f"{os.fspath(target)} is a script, which takes no keyword arguments: {', '.join(arguments)}")
    else:
        document = _script_document(os.fspath(target), args, name, replicas, gpus, framework, variables)
        directory = _directory(run_dir, document["metadata"]["name"])
    if restarts is not None:
        document["spec"]["restart"] = {"maxRestarts": restarts}
    load_documents([("allranks.run", document)])  # raises InvalidManifest
    if callable(target):
        payload.write(directory / PAYLOAD, target, args, arguments)
    try:
        _run_here(document, directory, logs=logs, link=run_dir is None)
    finally:
        with contextlib.suppress(OSError):
            (directory / PAYLOAD).unlink()
    if not callable(target):
        return None
    return outcome.value_of(directory / RESULTS, _stored(directory)["status"].get("attempt", 0))


def _replicas(ranks: int) -> int:
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not ranks:
        raise ValueError(f"ranks={ranks!r}: must be a negative number, for example -2 for two ranks on this machine")
    if ranks > 0:
        raise CannotRun(
            f"ranks={ranks} means ranks on a cluster, where allranks.run cannot start functions yet: write "
            f"ranks={-ranks} to run on this machine, or submit a manifest with `allranks submit`"
        )
    return -ranks


def _name(given: str | None, default: str) -> str:
    return given if given is not None else job_name(default)


def _directory(given: str | os.PathLike[str] | None, name: str) -> Path:
    directory = run_directories.new_directory(name) if given is None else Path(given)
    if (directory / run_directories.RUN_FILE).exists():
        raise CannotRun(f"run_dir {directory} holds another run: choose a new directory")
    return directory


def _function_document(
    function: Callable[..., Any],
    name: str,
    directory: Path,
    replicas: int,
    gpus: int,
    framework: str | None,
    env: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    cure = f"specify framework={' | '.join(repr(item) for item in FRAMEWORKS)}"
    if framework is not None and framework not in FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: must be one of {', '.join(FRAMEWORKS)}")
    framework, _ = choose_framework(read_function(function), framework, cure)
    there = directory.absolute()
    program = [str(HELPERS / "call_function.py"), str(there / PAYLOAD), str(there / RESULTS)]
    # The caller's Python, which has what the function needs: a launcher on PATH may belong to another environment.
    module = FRAMEWORKS[framework].script_module
    command = [sys.executable, *(["-m", module] if module else []), *program]
    document = job_document(name, framework, command, replicas, gpus, env)
    document["spec"]["progress"] = {}  # the function can report its progress
    return document


def _script_document(
    script: str,
    args: Sequence[Any],
    name: str | None,
    replicas: int,
    gpus: int,
    framework: str | None,
    env: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    document, notes = make_job(
        read_script(script, Path.cwd()),
        framework=framework,
        replicas=replicas,
        gpus=gpus,
        env=env,
        arguments=[str(argument) for argument in args],
    )
    for note in notes:
        print(f"note: {note}")
    if name is not None:
        document["metadata"]["name"] = name
    return document


def _run_here(document: dict[str, Any], directory: Path, *, logs: bool, link: bool) -> None:
    """Runs the job in a process of its own: a run handles signals and reaps orphans, which are the caller's business
    in the process of a notebook. Raises AllranksError if the job did not succeed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH") or os.defpath))
    options = [] if logs else ["--quiet", "--no-logs"]
    command = [sys.executable, "-m", "allranks", "run", "-", "--run-dir", str(directory), *options]
    try:
        name = document["metadata"]["name"]
        with notebook.shown(directory, name):
            made = Command(command, json.dumps(document), os.environ | {"PATH": path})
            done = made.wait(logs, notebook.confirm_stop(name))
    finally:
        if link and (directory / run_directories.RUN_FILE).exists():
            run_directories.link_latest(directory)
    if done.status == 0:
        return
    if done.status == 1:
        raise outcome.failure_of(directory / RESULTS, _stored(directory))
    if done.status == 2:
        if not (directory / run_directories.RUN_FILE).exists():
            shutil.rmtree(directory, ignore_errors=True)  # nothing was started
        raise CannotRun(done.errors.removeprefix("error: ") or "nothing was started")
    raise AllranksError(f"the run was ended by signal {done.status - 128}" if done.status > 128 else done.errors)


def _stored(directory: Path) -> dict[str, Any]:
    """The job with its last status."""
    read = json.loads((directory / run_directories.RUN_FILE).read_text(encoding="utf-8"))
    return read if isinstance(read, dict) else {}
