"""`allranks.run`: runs a function or a script as a job, and returns what the function returned in rank 0."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from allranks.authoring.manifests import load_documents
from allranks.authoring.script_job import job_name
from allranks.errors import AllranksError, CannotRun
from allranks.frameworks import FRAMEWORKS
from allranks.local import run_directories
from allranks.local.errors import explain
from allranks.pod_bundle import HELPERS
from allranks.sdk import documents, notebook, outcome, payload
from allranks.sdk.documents import Options, Ranks, Target
from allranks.sdk.outcome import Outputs
from allranks.text import last_lines

RESULTS = "results"
PAYLOAD = "function.pickle"
_LAST_LINES = 5
_LONGEST_LAST = 2000
"""Characters."""


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
    """Run `target` as a job, wait for its end, and return what the function returned in rank 0.

    `target`: a function, which is called with `args`, `kwargs` and `more` in each rank; or the path of a script, which
    gets `args` as its command line, and whose value is None. `ranks`: 4 starts four replicas on a cluster, (2, 8) an
    elastic job, and -2 two replicas on this machine. `gpus`: GPUs of each replica. `framework`: by default the one
    that the function or script imports. `name`: of the job; by default the name of the function or script. `env`:
    further variables of the ranks. `restarts`: maximum number of restarts after failures; by default a job on this
    machine of which no rank has reported a step is not restarted. `logs`: print the output of the ranks. `kwargs`:
    arguments of the function whose names are parameters of `run` as well.

    Only on this machine: `run_dir`, the directory for logs and results, by default runs/NAME/TIME. Only on a cluster:
    `image`, `pool`, `queue`, `code`, `packages`, `checkpoint`, `outputs`, `namespace`, `context`, `kubeconfig`, as in
    `submit`.

    Raises RankFailed with the exception and traceback of the rank that failed first; ResultError if the job succeeded
    and its value cannot be had; CannotPickle if the function or an argument cannot be sent to the ranks; CannotShip,
    InvalidManifest and CannotRun if nothing was started; ClusterError; KeyboardInterrupt after Ctrl-C: then ranks on
    this machine have ended, and a job on a cluster continues unless the user chose to delete it.
    """
    arguments = {**(kwargs or {}), **more}
    common: dict[str, Any] = {
        "gpus": gpus,
        "framework": framework,
        "name": name,
        "env": env or {},
        "restarts": restarts,
    }
    for_cluster: dict[str, Any] = {
        "image": image,
        "pool": pool,
        "queue": queue,
        "code": code,
        "packages": packages,
        "checkpoint": checkpoint,
        "outputs": outputs,
        "namespace": namespace,
        "context": context,
        "kubeconfig": kubeconfig,
    }
    replicas = _replicas_here(ranks)
    if replicas is None:
        if run_dir is not None:
            raise ValueError("run_dir= is a directory of this machine: a job on a cluster keeps its logs there")
        from allranks.sdk.submit import submit

        job = submit(target, *args, ranks=ranks, kwargs=arguments, **common, **for_cluster)
        if logs:
            job.show()
        return job.result()
    if misplaced := [f"{key}=" for key, value in for_cluster.items() if value]:
        raise ValueError(f"{', '.join(misplaced)}: only for a cluster, and ranks={ranks} runs on this machine")
    return _run_here(target, args, arguments, Options(replicas=replicas, **common), run_dir, logs=logs)


def _replicas_here(ranks: Ranks) -> int | None:
    """Return the replicas on this machine; None if `ranks` are on a cluster. Raises ValueError for 0."""
    if isinstance(ranks, bool) or not ranks:
        raise ValueError(
            f"ranks={ranks!r}: must be a negative number, for example -2 for two ranks on this machine, or a positive "
            "one for ranks on a cluster"
        )
    return -ranks if isinstance(ranks, int) and ranks < 0 else None


def _run_here(
    target: Target,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    run_dir: str | os.PathLike[str] | None,
    *,
    logs: bool,
) -> Any:
    reserved: list[Path] = []
    try:
        if callable(target):
            directory = _directory(run_dir, options.name or job_name(payload.name_of(target)), reserved)
            document = _function_document(target, directory, options)
        elif kwargs:
            names = ", ".join(kwargs)
            raise TypeError(f"{os.fspath(target)} is a script, which takes no keyword arguments: {names}")
        else:
            document, notes = documents.of_script(os.fspath(target), args, options)
            for note in notes:
                print(f"note: {note}")
            directory = _directory(run_dir, document["metadata"]["name"], reserved)
        load_documents([("allranks.run", document)])  # raises InvalidManifest
        if callable(target):
            _store(directory, target, args, kwargs)
        try:
            _run_command(document, directory, logs=logs, link=run_dir is None)
        finally:
            with contextlib.suppress(OSError):
                (directory / PAYLOAD).unlink()
    finally:
        run_directories.remove_empty(reserved)
    if not callable(target):
        return None
    attempt = _stored(directory)["status"].get("attempt", 0)
    return outcome.value_of(outcome.read_files(directory / RESULTS, attempt, 0))


def _store(directory: Path, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        payload.write(directory / PAYLOAD, target, args, kwargs)
    except OSError as error:
        raise CannotRun(f"{directory} cannot be written: {explain(error)}") from error


def _directory(run_dir: str | os.PathLike[str] | None, name: str, reserved: list[Path]) -> Path:
    """Return the directory of a run, and add it to `reserved` if it is new: two runs may start in the same second."""
    directory = run_directories.reserve_directory(name, reserved) if run_dir is None else Path(run_dir)
    if (directory / run_directories.RUN_FILE).exists():
        raise CannotRun(f"run_dir {directory} holds another run: choose a new directory")
    return directory


def _function_document(function: Callable[..., Any], directory: Path, options: Options) -> dict[str, Any]:
    folder = directory.absolute()
    program = [str(HELPERS / "call_function.py"), str(folder / PAYLOAD), str(folder / RESULTS)]
    # The caller's Python, which has what the function needs: a launcher on PATH may belong to another environment.
    module = FRAMEWORKS[documents.framework_of(function, options)].script.module
    return documents.of_function(function, [sys.executable, *(["-m", module] if module else []), *program], options)


def _run_command(document: dict[str, Any], directory: Path, *, logs: bool, link: bool) -> None:
    """Run the job in a process of its own: a run handles signals and reaps orphans, which are the caller's business
    in the process of a notebook. Raises AllranksError if the job did not succeed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH") or os.defpath))
    options = ["--caller", "python", *([] if logs else ["--quiet", "--no-logs"])]
    command = [sys.executable, "-m", "allranks", "run", "-", "--run-dir", str(directory), *options]
    try:
        name = document["metadata"]["name"]
        with notebook.shown(directory, name):
            running = Command(command, json.dumps(document), os.environ | {"PATH": path})
            done = running.wait(logs, notebook.confirm_stop(name))
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
        raise CannotRun(done.errors.removeprefix("error: ") or "nothing was started")
    if done.status > 128:
        raise AllranksError(f"the run was ended by signal {done.status - 128}")
    said = f"; it printed last:\n\n{done.last}" if done.last else " and printed nothing"
    raise AllranksError(f"allranks could not run the job: its process ended with exit code {done.status}{said}")


def _stored(directory: Path) -> dict[str, Any]:
    """Return the job with its last status."""
    job = json.loads((directory / run_directories.RUN_FILE).read_text(encoding="utf-8"))
    return job if isinstance(job, dict) else {}


# --- the process of a run ---------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """The end of a command."""

    status: int
    errors: str
    """Its standard error."""
    last: str = ""
    """The last lines that it printed; of its standard output only if that is not the terminal."""


class Command:
    """A command that `wait` starts."""

    def __init__(self, arguments: Sequence[str], text: str, environ: Mapping[str, str]) -> None:
        """`text` is the command's standard input."""
        self._arguments, self._text, self._environ = arguments, text, environ
        self._printed = deque[str](maxlen=_LAST_LINES)

    def wait(self, show: bool, confirm: Callable[[], bool] = lambda: True) -> Done:
        """Start the command, and wait for its end.

        Ctrl-C asks the command to end, a second one to end at once; KeyboardInterrupt is raised when it has ended. The
        first one has no effect unless `confirm()` returns True; in a terminal it is not called.
        """
        # In a terminal the command draws its live view itself, and gets Ctrl-C from the terminal. Elsewhere, such as in
        # a notebook, sys.stdout is not a file of this process.
        terminal = sys.__stdout__ is not None and sys.stdout is sys.__stdout__ and sys.__stdout__.isatty()
        with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as stdin:
            stdin.write(self._text)
            stdin.seek(0)
            with subprocess.Popen(
                self._arguments,
                env=self._environ,
                stdin=stdin,
                stdout=None if terminal else subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                start_new_session=not terminal,
            ) as process:
                interrupted = self._follow(process, show, None if terminal else confirm)
            errors.seek(0)
            text = errors.read().strip()
        if interrupted:
            raise KeyboardInterrupt
        last = last_lines(text or "".join(self._printed), _LAST_LINES, _LONGEST_LAST)
        if process.returncode < 0:
            return Done(128 - process.returncode, text, last)
        if text and process.returncode != 2:
            print(text, file=sys.stderr)
        return Done(process.returncode, text, last)

    def _follow(self, process: subprocess.Popen[str], show: bool, confirm: Callable[[], bool] | None) -> bool:
        """Print the output until the process has ended, and return whether it was interrupted.

        `confirm`: None if the process gets Ctrl-C from the terminal.
        """
        interrupted = False
        while True:
            try:
                if process.stdout is not None:
                    self._copy(process.stdout, show)
                process.wait()
            except KeyboardInterrupt:
                if confirm is None or interrupted or confirm():
                    interrupted = True
                    if confirm is not None:
                        process.send_signal(signal.SIGINT)
                continue
            except BaseException:
                process.terminate()
                process.wait()
                raise
            return interrupted

    def _copy(self, output: IO[str], show: bool) -> None:
        for line in output:
            self._printed.append(line)
            if show:
                print(line, end="", flush=True)
