"""`allranks dev`: runs a job on this machine or on a cluster, and restarts it when its files change."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from allranks.cli.completers import complete_files
from allranks.cli.options import BAD_MANIFEST, OK, print_error, run_on_cluster
from allranks.errors import AllranksError
from allranks.extras import install_command


@click.command(
    # Everything after FILE is for `allranks run` or `allranks submit`.
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  allranks dev train.py --replicas 2 -- --lr 0.1
  allranks dev job.yaml
  allranks dev --watch src --watch configs src/train.py
  allranks dev --cluster job.yaml -n team
\b
Exit status:
  130 ended by Ctrl-C, 1 the job cannot be run on the cluster, 2 wrong usage or a manifest that is not valid.
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
    help="Run the job on a cluster. Options of allranks submit follow FILE. The code is shipped again for each run: "
    "that of the manifest or of --code, otherwise the current directory.",
)
def dev(
    file: str, run_options: tuple[str, ...], watched: tuple[Path, ...], grace_period: float, on_cluster: bool
) -> None:
    """Run a script or a manifest, and start it again with the new code when a file changes.

    Options of allranks run and arguments of the program follow FILE. Python, YAML, JSON and TOML files are watched,
    without .git, .venv, caches and runs/. A save of several files restarts the job once. A
    job that has ended is started again at the next change, also after an error in the code.

    With --cluster, each change deletes the job and creates it again with the new code, and Ctrl-C deletes it. A job
    that exists before is never deleted: its name must be free.
    """
    try:
        import watchfiles  # noqa: F401
    except ImportError as error:
        raise click.ClickException(
            f"allranks dev needs the Python package watchfiles, which is not installed: {install_command('watch')}"
        ) from error
    if "--cluster" in run_options:
        raise click.UsageError(f"--cluster stands before {file}: allranks dev --cluster {file}")
    if on_cluster:
        sys.exit(_on_cluster(file, run_options, watched, grace_period))
    from allranks.cli.live.restart_on_change import RestartOnChange

    command = _allranks("run", file, "--grace-period", f"{grace_period:g}", *run_options)
    sys.exit(RestartOnChange(command, _paths(file, watched)).run())


def _on_cluster(file: str, options: tuple[str, ...], watched: tuple[Path, ...], grace: float) -> int:
    """Returns the exit status."""
    from allranks.cli.commands.dev_on_cluster import check_absent, plan
    from allranks.cli.live.restart_on_change import RestartOnChange

    try:
        run = plan(file, options, grace)
    except AllranksError as error:
        print_error(error)
        return BAD_MANIFEST
    if (status := run_on_cluster(check_absent, run.where, {"name": run.name})) != OK:
        return status
    paths = _paths(file, watched, *([run.code] if run.code and not watched else []))
    return RestartOnChange(_allranks(*run.submit), paths, _allranks(*run.replace), _allranks(*run.delete)).run()


def _paths(file: str, watched: tuple[Path, ...], *more: Path) -> list[Path]:
    return list(dict.fromkeys((*(watched or (Path(),)), *more, *([Path(file)] if Path(file).exists() else []))))


def _allranks(*words: str) -> list[str]:
    return [sys.executable, "-m", "allranks", *words]
