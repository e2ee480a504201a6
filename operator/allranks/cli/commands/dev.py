"""`allranks dev`: runs a job on this machine or on a cluster, and restarts it when its files change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from allranks.authoring.script_job import is_script
from allranks.cli.completers import complete_files
from allranks.cli.file_changes import LONGEST_MS, POLL_MS, QUIET_MS, named_files, source_filter
from allranks.cli.live.session import RESTART_MISSED
from allranks.cli.options import cluster_options, code_option, run_on_cluster
from allranks.extras import install_command
from allranks.kube.cluster import Where
from allranks.views.safe_output import use_colour

if TYPE_CHECKING:
    from allranks.client.development import OnExit


@click.command(
    # Everything after FILE is for `allranks run`.
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  allranks dev train.py --replicas 2 -- --lr 0.1
  allranks dev job.yaml
  allranks dev --watch src --watch configs src/train.py
  allranks dev --cluster job.yaml
  allranks dev --cluster --code src --on-exit keep penguins
\b
Exit status:
  130 ended by Ctrl-C, 2 wrong usage or a manifest that is not valid, 1 the cluster rejected a request.
""",
)
@click.argument("file", metavar="FILE", shell_complete=complete_files)
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS] [-- ARGUMENTS]")
@click.option(
    "--watch",
    "watched",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Watch this file or directory. Repeatable. [default: the current directory, and FILE]",
)
@click.option(
    "--grace-period",
    type=click.FloatRange(min=0),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between SIGTERM and SIGKILL when the job restarts.",
)
@click.option(
    "--cluster",
    "on_cluster",
    is_flag=True,
    help="Run the job on a cluster: FILE is a manifest, or the name of a job. Options precede FILE.",
)
@code_option
@click.option(
    "--on-exit",
    type=click.Choice(["suspend", "keep", "delete"]),
    default="suspend",
    show_default=True,
    help="With --cluster: what Ctrl-C does with the job. suspend: its pods are deleted, and allranks resume continues "
    "it. keep: it trains on. delete: it is deleted.",
)
@cluster_options
def dev(
    where: Where,
    file: str,
    run_options: tuple[str, ...],
    watched: tuple[Path, ...],
    grace_period: float,
    on_cluster: bool,
    code: Path | None,
    on_exit: OnExit,
) -> None:
    """Run a script or a manifest, and restart its ranks with the new code when a file changes.

    Options of allranks run and arguments of the program follow FILE. Python, YAML, JSON and TOML files are watched,
    without .git, .venv, caches and runs/. A save of several files restarts the ranks once. After an error in the code
    they wait for the next save. A job that has ended, or whose manifest has changed, is started again.

    With --cluster, a saved file is sent to the pods, and the ranks restart in them. After a failure of the program they
    wait for the next save: it costs none of restart.maxRestarts, and the job does not fail. If this machine sleeps,
    this ends after five minutes.
    """
    try:
        import watchfiles  # noqa: F401
    except ImportError as error:
        raise click.ClickException(
            f"allranks dev needs the Python package watchfiles, which is not installed: {install_command('watch')}"
        ) from error
    if on_cluster:
        if run_options:
            raise click.UsageError(f"with --cluster, options precede FILE: {' '.join(run_options)}")
        from allranks.cli.commands.dev_cluster import develop

        options = {"file": file, "code": code, "watched": watched, "on_exit": on_exit}
        sys.exit(run_on_cluster(develop, where, options))
    if code or where != Where(None, None, None):
        raise click.UsageError("--code, --namespace, --context and --kubeconfig need --cluster when they precede FILE.")
    of_run = ["--grace-period", f"{grace_period:g}", *run_options]
    sys.exit(RestartOnChange(file, of_run, watched or (Path(),)).run())


class RestartOnChange:
    """Runs a job until Ctrl-C or a signal, and restarts it at each change below `paths`.

    While it runs, its ranks restart with the changed files. A job that has ended, or whose manifest has changed, is
    started again.
    """

    def __init__(self, file: str, options: Sequence[str], paths: Sequence[Path]) -> None:
        self._command = [sys.executable, "-m", "allranks", "run", file, *options]
        self._manifest = None if is_script(file) else Path(file).absolute()
        self._paths = [path.absolute() for path in (*paths, Path(file)) if path.exists()]
        self._child: subprocess.Popen[bytes] | None = None
        self._received = 0
        self._restarts = -1
        """The pipe that asks the run for restarts."""
        self._runs = self._edits = 0
        self._colour = use_colour(sys.stderr)

    def run(self) -> int:
        """Return the exit status, 128 + the signal."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        try:
            self._loop()
        finally:
            self._stop()
        return 128 + (self._received or signal.SIGINT)

    def _loop(self) -> None:
        from watchfiles import watch

        watcher = watch(
            *self._paths,
            watch_filter=source_filter(),
            debounce=LONGEST_MS,
            step=QUIET_MS,
            rust_timeout=POLL_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        )
        # The first one is a timeout, after which the files are watched: no change after the start is missed.
        for changes in watcher:
            if self._received:
                return
            if changes and self._runs:
                self._edits += 1
                names = named_files(changes)
                if not self._is_manifest(changes) and self._ask_for_restart():
                    self._message(f"{names} changed: restarting (edit {self._edits})")
                    continue
                self._message(f"{names} changed: restarting (run {self._runs + 1})")
                self._stop()
            if self._received:
                return
            if changes or not self._runs:
                self._start()
            elif self._child and self._child.poll() is not None:
                status, self._child = self._child.returncode, None
                if status == RESTART_MISSED:
                    self._start()
                    continue
                how = "the run has ended" if status == 0 else f"the run has ended with exit status {status}"
                self._message(f"{how}; waiting for a change (Ctrl-C ends)")

    def _is_manifest(self, changes: set[tuple[Any, str]]) -> bool:
        return any(Path(path) == self._manifest for _, path in changes)

    def _ask_for_restart(self) -> bool:
        """Return False if the run has ended, or cannot restart its ranks with changed files."""
        if self._child is None or self._child.poll() is not None:
            return False
        try:
            return os.write(self._restarts, b".") == 1
        except OSError:
            return False

    def _start(self) -> None:
        self._runs += 1
        self._close_pipe()
        read_end, self._restarts = os.pipe()
        try:
            # In the same group: Ctrl-C in a terminal reaches it directly, and a second one kills the ranks at once.
            self._child = subprocess.Popen(
                [*self._command[:4], "--restart-pipe", str(read_end), *self._command[4:]], pass_fds=[read_end]
            )
        finally:
            os.close(read_end)

    def _close_pipe(self) -> None:
        if self._restarts >= 0:
            os.close(self._restarts)
            self._restarts = -1

    def _stop(self) -> None:
        """End the run as Ctrl-C does, and wait for it: ports and GPUs are free then."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        self._child.wait()
        self._child = None
        self._close_pipe()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._received = number

    def _message(self, text: str) -> None:
        click.echo(click.style(f"--- {text}", bold=True) if self._colour else f"--- {text}", err=True)
