"""`allranks dev`: runs a job on this machine, and restarts it when its files change."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from allranks.cli.completers import complete_files
from allranks.extras import install_command


@click.command(
    # Everything after FILE is for `allranks run`.
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  allranks dev train.py --replicas 2 -- --lr 0.1
  allranks dev job.yaml
  allranks dev --watch src --watch configs src/train.py
\b
Exit status:
  130 ended by Ctrl-C, 2 wrong usage.
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
def dev(file: str, run_options: tuple[str, ...], watched: tuple[Path, ...], grace_period: float) -> None:
    """Run a script or a manifest, and start it again with the new code when a file changes.

    Options of allranks run and arguments of the program follow FILE. Python, YAML, JSON and TOML files are watched,
    without .git, .venv, caches and runs/. A save of several files restarts the job once. A
    job that has ended is started again at the next change, also after an error in the code.
    """
    try:
        import watchfiles  # noqa: F401
    except ImportError as error:
        raise click.ClickException(
            f"allranks dev needs the Python package watchfiles, which is not installed: {install_command('watch')}"
        ) from error
    from allranks.cli.live.restart_on_change import RestartOnChange

    run = [sys.executable, "-m", "allranks", "run", file, "--grace-period", f"{grace_period:g}", *run_options]
    script = [Path(file)] if Path(file).exists() else []
    sys.exit(RestartOnChange(run, [*(watched or (Path(),)), *script]).run())
