"""`allranks.run` and `run_async`: run a function or a script as a job, and return what rank 0 returned."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.cli.manifests import load_documents
from allranks.cli.script_job import job_name
from allranks.errors import AllranksError, CannotRun
from allranks.frameworks import FRAMEWORKS
from allranks.local import run_directories
from allranks.local.errors import explain
from allranks.pod_bundle import HELPERS
from allranks.sdk import documents, notebook, outcome, payload, worker_thread
from allranks.sdk.command import Command, Stop
from allranks.sdk.documents import Options, Ranks, Target
from allranks.sdk.interrupt import detached_by_cancellation
from allranks.sdk.stored_values import Outputs
from allranks.sdk.twins import twin_of
from allranks.sdk.words import in_python

RESULTS = "results"
PAYLOAD = "function.pickle"


def run(
    target: Target,
    *args: Any,
    ranks: Ranks,
    gpus: int = 0,
    framework: str | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    restarts: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    logs: bool = True,
    image: str | None = None,
    pool: str | None = None,
    queue: str | None = None,
    code: str | os.PathLike[str] | None = None,
    packages: Sequence[str] = (),
    checkpoint: str | None = None,
    outputs: Outputs | None = None,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Runs `target` as a job, waits for its end, and returns what the function returned in rank 0.

    `target`: a function, which is called with `args`, `kwargs` and `more` in each rank; or the path of a script, which
    gets `args` as its command line, and whose value is None. `ranks`: 4 starts four replicas on a cluster, (2, 8) an
    elastic job, and -2 two replicas on this machine. `gpus`: GPUs of each replica. `framework`: by default that of the
    packages that the function or script imports. `name`: of the job; by default that of the function or script. `env`:
    further variables of the ranks. `restarts`: restart the job up to so many times after a failure; by default a job on
    this machine that fails before its first step is not restarted. `logs`: print the output of the ranks. `kwargs`:
    arguments of the function whose names are parameters of `run` as well.

    Only on this machine: `run_dir`, the directory for logs and results, by default runs/NAME/TIME. Only on a cluster:
    `image`, `pool`, `queue`, `code`, `packages`, `checkpoint`, `outputs`, `namespace`, `context`, `kubeconfig`, as in
    `submit`.

    Raises RankFailed with the exception and traceback of the rank that failed first; ResultError if the job succeeded
    and its value cannot be had; CannotPickle if the function or an argument cannot be sent to the ranks; CannotShip,
    InvalidManifest and CannotRun if nothing was started; ClusterError; KeyboardInterrupt after Ctrl-C: then ranks on
    this machine have ended, and a job on a cluster continues unless the user chose to delete it.
    """
    call = _Call.of(locals())
    here = call.options_here()
    if here is not None:
        return _run_here(call, here)
    from allranks.sdk.cluster_jobs import submit

    job = submit(target, *args, kwargs=call.kwargs, **call.common, **call.for_cluster)
    if logs:
        job.show()
    return job.result()


@twin_of(run)
async def run_async(given: dict[str, Any]) -> Any:
    """As `run`, as a coroutine. Several may run at once.

    When it is cancelled, by Ctrl-C, a timeout or otherwise, there is no question: ranks on this machine get SIGTERM,
    after a checkpoint if they store one on request, and CancelledError is raised when they have ended. A second
    cancellation, at least half a second later, kills them. A job on a cluster continues, and a message says how to find
    it.
    """
    call = _Call.of(given)
    here = call.options_here()
    if here is not None:
        stop = Stop()
        return await worker_thread.run(lambda: _run_here(call, here, stop), stop)
    from allranks.sdk.cluster_jobs import submit_async

    job = await submit_async(call.target, *call.args, kwargs=call.kwargs, **call.common, **call.for_cluster)
    with detached_by_cancellation(job):
        if call.logs:
            await job.show()
        return await job.result()


_COMMON = frozenset({"ranks", "gpus", "framework", "name", "env", "restarts"})
_OWN = frozenset({"target", "args", "kwargs", "more", "logs", "run_dir"})


@dataclass(frozen=True)
class _Call:
    """What the ranks run, with its arguments, and where. `logs`: whether their output is printed."""

    target: Target
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    logs: bool
    run_dir: str | os.PathLike[str] | None
    common: Mapping[str, Any]
    """Options for both places."""
    for_cluster: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> _Call:
        """`given`: the parameters of `run`, by name."""
        return cls(
            given["target"],
            given.get("args", ()),
            {**(given["kwargs"] or {}), **given.get("more", {})},
            given["logs"],
            given["run_dir"],
            {key: value for key, value in given.items() if key in _COMMON},
            {key: value for key, value in given.items() if key not in _COMMON | _OWN},
        )

    def options_here(self) -> Options | None:
        """None: on a cluster. Raises ValueError for options of the other place."""
        ranks = self.common["ranks"]
        here = _replicas_here(ranks)
        if here is None:
            if self.run_dir is not None:
                raise ValueError("run_dir= is a directory of this machine: a job on a cluster keeps its logs there")
            return None
        if given := [f"{key}=" for key, value in self.for_cluster.items() if value]:
            raise ValueError(f"{', '.join(given)}: only for a cluster, and ranks={ranks} runs on this machine")
        names = ("gpus", "framework", "name", "restarts")
        env = dict(self.common["env"] or {})
        return Options(replicas=here, env=env, **{key: self.common[key] for key in names})


def _replicas_here(ranks: Ranks) -> int | None:
    """None: on a cluster. Raises ValueError for 0."""
    if isinstance(ranks, bool) or not ranks:
        raise ValueError(
            f"ranks={ranks!r}: must be a negative number, for example -2 for two ranks on this machine, or a positive "
            "one for ranks on a cluster"
        )
    return -ranks if isinstance(ranks, int) and ranks < 0 else None


def _run_here(call: _Call, options: Options, stop: Stop | None = None) -> Any:
    """The value. `stop`: in a thread, in place of Ctrl-C."""
    target, args, run_dir = call.target, call.args, call.run_dir
    made: list[Path] = []
    try:
        if callable(target):
            directory = _directory(run_dir, options.name or job_name(payload.name_of(target)), made)
            document = _function_document(target, directory, options)
        elif call.kwargs:
            names = ", ".join(call.kwargs)
            raise TypeError(f"{os.fspath(target)} is a script, which takes no keyword arguments: {names}")
        else:
            document, notes = documents.of_script(os.fspath(target), args, options)
            for note in notes:
                print(f"note: {note}")
            directory = _directory(run_dir, document["metadata"]["name"], made)
        load_documents([("allranks.run", document)])  # raises InvalidManifest
        if callable(target):
            _store(directory, target, args, call.kwargs)
        try:
            _run_command(document, directory, logs=call.logs, link=run_dir is None, stop=stop)
        finally:
            with contextlib.suppress(OSError):
                (directory / PAYLOAD).unlink()
    finally:
        run_directories.remove_empty(made)
    if not callable(target):
        return None
    attempt = _stored(directory)["status"].get("attempt", 0)
    return outcome.value_of(outcome.read_files(directory / RESULTS, attempt, 0))


def _store(directory: Path, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        payload.write(directory / PAYLOAD, target, args, kwargs)
    except OSError as error:
        raise CannotRun(f"{directory} cannot be written: {in_python(explain(error))}") from error


def _directory(given: str | os.PathLike[str] | None, name: str, made: list[Path]) -> Path:
    """`made` gets the directory if it is a new one: two runs that start in the same second have two."""
    directory = run_directories.reserve_directory(name, made) if given is None else Path(given)
    if (directory / run_directories.RUN_FILE).exists():
        raise CannotRun(f"run_dir {directory} holds another run: choose a new directory")
    return directory


def _function_document(function: Callable[..., Any], directory: Path, options: Options) -> dict[str, Any]:
    there = directory.absolute()
    program = [str(HELPERS / "call_function.py"), str(there / PAYLOAD), str(there / RESULTS)]
    # The caller's Python, which has what the function needs: a launcher on PATH may belong to another environment.
    module = FRAMEWORKS[documents.framework_of(function, options)].script.module
    return documents.of_function(function, [sys.executable, *(["-m", module] if module else []), *program], options)


def _run_command(document: dict[str, Any], directory: Path, *, logs: bool, link: bool, stop: Stop | None) -> None:
    """Runs the job in a process of its own: a run handles signals and reaps orphans, which are the caller's business
    in the process of a notebook. Raises AllranksError if the job did not succeed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH") or os.defpath))
    options = ["--caller", "asyncio" if stop else "python", *([] if logs else ["--quiet", "--no-logs"])]
    command = [sys.executable, "-m", "allranks", "run", "-", "--run-dir", str(directory), *options]
    try:
        name = document["metadata"]["name"]
        with notebook.shown(directory, name):
            made = Command(command, json.dumps(document), os.environ | {"PATH": path}, stop)
            done = made.wait(logs, notebook.confirm_stop(name))
    finally:
        if link and (directory / run_directories.RUN_FILE).exists():
            run_directories.link_latest(directory)
    if done.status == 0:
        return
    job = _stored(directory) if (directory / run_directories.RUN_FILE).exists() else {}
    if done.status == 1 and (job.get("status") or {}).get("phase") == "Failed":
        attempt, rank, _ = outcome.first_failure(job)
        raise outcome.failure_of(job, None if rank is None else outcome.read_files(directory / RESULTS, attempt, rank))
    if done.status == 2:
        if not (directory / run_directories.RUN_FILE).exists():
            shutil.rmtree(directory, ignore_errors=True)  # nothing was started
        raise CannotRun(in_python(done.errors.removeprefix("error: ")) or "nothing was started")
    if done.status > 128:
        raise AllranksError(f"the run was ended by signal {done.status - 128}")
    said = f"; it printed last:\n\n{in_python(done.last)}" if done.last else " and printed nothing"
    raise AllranksError(f"allranks could not run the job: its process ended with exit code {done.status}{said}")


def _stored(directory: Path) -> dict[str, Any]:
    """The job with its last status."""
    read = json.loads((directory / run_directories.RUN_FILE).read_text(encoding="utf-8"))
    return read if isinstance(read, dict) else {}
