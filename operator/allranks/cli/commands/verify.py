"""`allranks verify`: kills ranks of a job on this machine, and says whether its program can be trusted to resume."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.commands.run import PROGRAM_ARGUMENTS, WithProgramArguments, bundle_of
from allranks.cli.completers import complete_files
from allranks.cli.live.session import exit_on_ctrl_c
from allranks.cli.options import (
    BAD_MANIFEST,
    FAILED,
    OK,
    Count,
    Duration,
    code_option,
    grace_period_option,
    mapped_volumes,
    print_error,
    set_option,
    unknown_volumes,
    volume_option,
    workdir_option,
)

if TYPE_CHECKING:
    from allranks.local.verify.check import Verification
    from allranks.local.verify.records import Evidence

NOTHING_TO_SAY = 3
_SEEDS = 1_000_000
_STATUS = {"Yes": OK, "No": FAILED, "Unknown": NOTHING_TO_SAY}
_REDRAW_SECONDS = 0.5

EXAMPLES = """\b
Examples:
  allranks verify examples/penguins-pytorch.yaml
  allranks verify job.yaml --kills 8 --seed 7
  allranks verify job.yaml --time-limit 5m -- --steps 200
  allranks verify job.yaml --steps 200 --tolerance 1e-4
  allranks verify job.yaml -o json | jq -r .trusted
\b
Exit status:
  0 the program can be trusted to resume, 1 it cannot, 2 nothing was started, 3 nothing can be said: the output says
  what is missing, 130 interrupted by Ctrl-C, 143 terminated by SIGTERM.
"""


@click.command(cls=WithProgramArguments, epilog=EXAMPLES, options_metavar="[OPTIONS]")
@click.argument("file", metavar="FILE [-- ARGUMENTS]", shell_complete=complete_files)
@set_option
@code_option
@volume_option
@workdir_option
@click.option(
    "--kills", type=Count(min=1, max=100), default=4, show_default=True, metavar="N", help="How often ranks are killed."
)
@click.option("--seed", type=Count(min=0), metavar="N", help="Seed of the moments of the kills. [default: random]")
@click.option(
    "--time-limit",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="End each of the two runs after this time, and compare the steps up to there.",
)
@click.option("--steps", type=Count(min=1), metavar="N", help="Compare only up to step N, and end both runs there.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="FRACTION",
    help="Accept this relative difference; 0: bit by bit. [default: 1e-5 for rounding, or 1e-2 if both runs already "
    "differ a little before the first kill]",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="New directory for logs and checkpoints of both runs. [default: runs/JOB/TIME]",
)
@grace_period_option
@click.option("-o", "--output", type=click.Choice(["json"]), help="The output format. [default: text]")
@click.pass_context
def verify(ctx: click.Context, /, file: str, **options: Any) -> None:
    """Find out whether the program of a job can be trusted to resume from its checkpoints.

    The job runs on this machine without kills, and again with kills (SIGKILL): of one rank at a random time in a step,
    and of all ranks at a random time in a save. After each kill it restarts as usual. Then the losses of all steps and
    the final checkpoints of both runs are compared: up to rounding, if the steps before the first kill are the same in
    both runs, otherwise with a larger tolerance.

    The job needs spec.checkpoint, and a program that reports its steps and losses. Each run has its own directory for
    checkpoints; outputs are not uploaded. ARGUMENTS after -- are appended to the arguments of the program, for example
    to train for fewer steps.
    """
    from allranks.errors import AllranksError
    from allranks.local import run_directories
    from allranks.local.verify.check import KILLED, UNBROKEN, NoCheckpoints

    exit_on_ctrl_c()
    seed = options["seed"] if options["seed"] is not None else secrets.randbelow(_SEEDS)
    reserved: list[Path] = []
    directory: Path | None = None
    finished = False
    try:
        job, verification, directory = _prepare(ctx, file, seed, options, reserved)
        evidence, received = _run(verification)
        finished = evidence is not None
    except AllranksError as error:
        print_error(error)
        sys.exit(NOTHING_TO_SAY if isinstance(error, NoCheckpoints) else BAD_MANIFEST)
    finally:
        if not finished and directory:
            for name in (UNBROKEN, KILLED):
                shutil.rmtree(directory / name, ignore_errors=True)
            with contextlib.suppress(OSError):
                directory.rmdir()
        run_directories.remove_empty(reserved)
    if evidence is None:
        click.echo(f"{job}: interrupted, and nothing is left of both runs", err=True)
        sys.exit(128 + (received or signal.SIGTERM))
    sys.exit(_print(job, seed, evidence, str(directory), options["output"]))


def _prepare(
    ctx: click.Context, file: str, seed: int, options: dict[str, Any], reserved: list[Path]
) -> tuple[str, Verification, Path]:
    """Return the job, the verification, and its directory. Raise AllranksError."""
    from allranks.authoring.manifests import load
    from allranks.authoring.overrides import Additions
    from allranks.errors import CannotRun, InvalidManifest
    from allranks.local import Options, run_directories
    from allranks.local.verify.check import Verification, VerifyOptions

    mapped = mapped_volumes(options["volumes"])
    loaded = load(
        (file,),
        options["sets"],
        additions=Additions(ctx.meta[PROGRAM_ARGUMENTS], ()),
        random_names=True,
        code=options["code"],
        local=True,
    )
    if len(loaded.jobs) != 1:
        raise CannotRun(f"{file} has {len(loaded.jobs)} jobs: verify one at a time")
    job, run_dir = loaded.jobs[0], options["run_dir"]
    if run_dir and run_dir.exists() and any(run_dir.iterdir()):
        raise CannotRun(f"--run-dir {run_dir}: the directory is not empty")
    directory = run_dir or run_directories.reserve_directory(job.name, reserved)
    of_runs = Options(
        run_dir=directory.absolute(),
        workdir=options["workdir"].absolute(),
        volumes=mapped,
        grace=options["grace_period"],
        code=bundle_of(loaded, job),
    )
    verification = Verification(
        job,
        VerifyOptions(
            run=of_runs,
            kills=options["kills"],
            seed=seed,
            time_limit=options["time_limit"],
            until=options["steps"],
            tolerance=options["tolerance"],
        ),
    )
    verification.check()
    if problems := list(unknown_volumes(mapped, verification.volume_names)):
        raise InvalidManifest(problems)
    return job.name, verification, directory


def _run(verification: Verification) -> tuple[Evidence | None, int]:
    """Return the evidence, or None and the signal that ended the runs."""
    received: list[int] = []

    async def drive() -> Evidence | None:
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            received.append(number)
            verification.stop()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stop, number)
        with _progress_line(verification):
            return await verification.run()

    try:
        evidence = asyncio.run(drive())
    finally:
        exit_on_ctrl_c()
    return (None if received else evidence), (received[0] if received else 0)


@contextlib.contextmanager
def _progress_line(verification: Verification) -> Iterator[None]:
    """Show on a terminal what is done at the moment. Print nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    clear = "\r\x1b[K"

    async def draw() -> None:
        while True:
            sys.stderr.write(clear + verification.progress)
            sys.stderr.flush()
            await asyncio.sleep(_REDRAW_SECONDS)

    drawing = asyncio.create_task(draw())
    try:
        yield
    finally:
        drawing.cancel()
        sys.stderr.write(clear)
        sys.stderr.flush()


def _print(job: str, seed: int, evidence: Evidence, directory: str, output: str | None) -> int:
    from allranks.local.verify.verdict import decide
    from allranks.views.format import verification

    verdict = decide(evidence)
    if output:
        click.echo(json.dumps(verification.document(job, seed, evidence, verdict, directory), indent=2))
    else:
        for line in verification.page(job, seed, evidence, verdict, directory):
            click.echo(line)
    return _STATUS[verdict.answer]
