"""`allranks run`: runs jobs on this machine."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from allranks.authoring.script_job import Program, is_script
from allranks.cli.completers import complete_files
from allranks.cli.live.session import NOT_STARTED, WORDS, Session, exit_on_ctrl_c
from allranks.cli.options import (
    OK,
    Count,
    code_option,
    filename_option,
    mapped_volumes,
    print_error,
    set_option,
    unknown_volumes,
    volume_option,
)
from allranks.cli.suggestions import FILES
from allranks.frameworks import FRAMEWORKS
from allranks.views.safe_output import use_colour

if TYPE_CHECKING:
    from allranks.api.job import Job
    from allranks.authoring.manifests import Loaded
    from allranks.authoring.sweep_manifests import LoadedSweep
    from allranks.code.bundle import Bundle
    from allranks.local import LocalRun

EXAMPLES = """\b
Examples:
  allranks run train.py --replicas 2 -- --lr 0.1
  allranks run train.py -n 2 -e OMP_NUM_THREADS=4 --save job.yaml
  allranks run -n 2 -m package.train -- --lr 0.1
  allranks run -n 2 -- torchrun -m package.train --lr 0.1
  allranks run examples/penguins-pytorch.yaml
  allranks run job.yaml --restarts 3
  allranks run train.py -n 2 --code .
  allranks run train.ipynb -n 2 -- --lr 0.1
  allranks run job.yaml --set roles.worker.replicas=2 --volume data=./data -- --epochs 3
  cat job.yaml | allranks run -f - --dry-run
  allranks run job.yaml -o json --quiet | jq -r .status.phase
\b
Exit status:
  0 the job succeeded, 1 the job failed, 2 nothing was started (the manifest is not valid, or this machine
  cannot run the job), 130 interrupted by Ctrl-C, 143 terminated by SIGTERM.
"""


class WithProgramArguments(click.Command):
    """Takes everything after `--` as arguments of the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[PROGRAM_ARGUMENTS] = tuple(args[at + 1 :])
        try:
            return super().parse_args(ctx, args[:at])
        except click.NoSuchOption as error:
            likely = difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=_SIMILAR)
            hint = f"Did you mean {likely[0]}? " if likely else ""
            message = f"No such option {error.option_name}. {hint}Options of the program follow --, as in: FILE -- "
            raise click.UsageError(message + error.option_name, ctx) from error


PROGRAM_ARGUMENTS = "allranks.program_arguments"
_SIMILAR = 0.75
"""Required similarity of a suggested option: most unknown options belong to the program."""


@click.command(
    cls=WithProgramArguments,
    epilog=EXAMPLES,
    options_metavar="[OPTIONS]",
)
@click.argument("files", nargs=-1, metavar="[FILE...] [-- ARGUMENTS]", shell_complete=complete_files)
@filename_option
@click.option("-m", "--module", metavar="MODULE", help="The program is a Python module, such as package.train.")
@set_option
@code_option
@click.option(
    "-n", "--replicas", type=Count(min=1), metavar="N", help="Ranks of a program without a manifest. [default: 1]"
)
@click.option("--gpus", type=Count(min=0), metavar="N", help="GPUs of each rank of such a program. [default: 0]")
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    help="Framework of such a program. [default: by the packages that it imports]",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the manifest of such a program to FILE, which must not exist.",
)
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Set a variable of every rank. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Print the pods as YAML without starting them.")
@volume_option
@click.option(
    "--workdir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Working directory of containers without a workingDir that exists here. [default: the current directory]",
)
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for logs, volumes and the final status. [default: runs/JOB/TIME, with the link runs/JOB/latest]",
)
@click.option(
    "--grace-period",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time between SIGTERM and SIGKILL. [default: terminationGracePeriodSeconds of the pod, or 30]",
)
@click.option(
    "--restarts",
    type=Count(min=0, max=9_999),
    metavar="N",
    help="Restart the job up to N times after failures of the program. [default: restart.maxRestarts, but without it "
    "in the manifest a job of which no rank has reported a step is not restarted]",
)
@click.option("--caller", type=click.Choice(list(WORDS)), default="command", hidden=True)
@click.option("--state-interval", type=click.FloatRange(min=0), default=5.0, hidden=True)
@click.option("--restart-pipe", type=int, hidden=True)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), help="Print the final status in this format.")
@click.option("--no-logs", is_flag=True, help="Do not print the output of the ranks.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the outcome.")
@click.option(
    "--no-color", "--no-colour", is_flag=True, help="Do not use colours; NO_COLOR=1 in the environment does the same."
)
@click.pass_context
def run(
    ctx: click.Context,
    files: tuple[str, ...],
    filenames: tuple[str, ...],
    module: str | None,
    sets: tuple[str, ...],
    code: Path | None,
    replicas: int | None,
    gpus: int | None,
    framework: str | None,
    save: Path | None,
    env: tuple[str, ...],
    dry_run: bool,
    volumes: tuple[str, ...],
    workdir: Path,
    run_dir: Path | None,
    grace_period: float | None,
    restarts: int | None,
    caller: str,
    state_interval: float,
    restart_pipe: int | None,
    output: str | None,
    no_logs: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Run jobs on this machine, one after the other.

    FILE is a manifest, a Python script or a notebook (SCRIPT.py, NOTEBOOK.ipynb, which need no manifest), or - for
    standard input. ARGUMENTS after -- are appended to the arguments of the program; for a notebook they are its
    parameters. Without FILE, -m MODULE runs a module, and the words after -- are a command that each rank runs.

    Each pod runs as a process tree with the environment, arguments and volumes that it has on a cluster. The output of
    all ranks is printed with the rank in front, and stored in the run directory. No process outlives this command:
    Ctrl-C sends SIGTERM to the ranks and waits for the grace period, a second Ctrl-C kills them immediately. Ranks that
    store checkpoints on request are asked for one before SIGTERM.
    """
    from allranks.authoring.script_job import load_program
    from allranks.errors import AllranksError, InvalidOption
    from allranks.local import LocalRun, Options, run_directories

    files, words = (*files, *filenames), ctx.meta[PROGRAM_ARGUMENTS]
    program = _program(files, module, words)
    if not program and (option := _first_set(replicas=replicas, gpus=gpus, framework=framework, save=save)):
        raise click.UsageError(
            f"--{option} describes the job of a program without a manifest; change a manifest with --set, for example "
            "--set roles.worker.replicas=2."
        )
    exit_on_ctrl_c()
    sets = _settings(sets, restarts, developed=bool(program) and restart_pipe is not None)
    human = sys.stderr if output else sys.stdout
    colour = use_colour(human) and not no_color
    reserved: list[Path] = []
    ctx.call_on_close(lambda: run_directories.remove_empty(reserved))  # of runs that did not start
    try:
        mapped = mapped_volumes(volumes)
        additions = words, _pairs(env)
        if program:
            try:
                loaded, texts = load_program(
                    program,
                    sets,
                    arguments=additions[0],
                    env=additions[1],
                    replicas=replicas or 1,
                    gpus=gpus or 0,
                    framework=framework,
                    workdir=code or workdir,
                    save=save,
                    ships=bool(code),
                )
            except InvalidOption as error:
                raise click.UsageError(str(error)) from error
        else:
            loaded, texts = _load(files, sets, additions, code), []
        restart_pipe = _kept_open(restart_pipe, loaded)
        if loaded.sweeps:
            from allranks.cli.live.sweep_session import run_sweep

            sys.exit(
                run_sweep(
                    _only_sweep(loaded, dry_run),
                    run_dir=run_dir,
                    workdir=workdir,
                    volumes=mapped,
                    grace=grace_period,
                    output=output,
                    quiet=quiet,
                    no_color=no_color,
                )
            )
        claims: dict[str, Path] = {}
        runs = [
            LocalRun(
                job,
                Options(
                    run_dir=_run_dir(run_dir, job.name, None if dry_run else reserved, several=len(loaded.jobs) > 1),
                    link_latest=run_dir is None,
                    workdir=workdir.absolute(),
                    volumes=mapped,
                    claims=claims,
                    grace=grace_period,
                    code=bundle_of(loaded, job),
                    state_interval=state_interval,
                    restart_option=WORDS[caller].restarts,
                ),
            )
            for job in loaded.jobs
        ]
        if dry_run:
            _print_pods(runs)
            return
        notes = _check(runs, mapped)
    except AllranksError as error:
        print_error(error)
        sys.exit(NOT_STARTED)
    note = functools.partial(_note, human, quiet=quiet, colour=colour)
    for text in (*texts, *(f"{kind} {name} is not used here" for kind, name in _unused(loaded))):
        note(text)
    for severity, text in loaded.notes():
        note(text, label=severity)
    words = WORDS["command" if human.isatty() else caller]  # a terminal sends Ctrl-C to this command itself
    session = Session(human, output, colour=colour, logs=not no_logs, quiet=quiet, words=words, restarts=restart_pipe)
    for number, (local_run, notes_of_run) in enumerate(zip(runs, notes, strict=True), 1):
        for text in notes_of_run:
            note(text)
        status = session.run(local_run)
        if status != OK:
            if number < len(runs):
                click.echo(f"not run: {', '.join(later.job.name for later in runs[number:])}", file=human)
            sys.exit(status)


def _settings(sets: tuple[str, ...], restarts: int | None, *, developed: bool) -> tuple[str, ...]:
    """Return what replaces fields of the manifest. `developed`: a program without one, by `allranks dev`."""
    first = ("progress.automatic=true",) if developed else ()  # its helper restarts the ranks in their pods
    last = () if restarts is None else (f"restart.maxRestarts={restarts}",)
    return (*first, *sets, *last)


def _kept_open(restart_pipe: int | None, loaded: Loaded) -> int | None:
    """Return the pipe that asks for restarts. Without one, `allranks dev` runs all again after a change."""
    if restart_pipe is None or (len(loaded.jobs) == 1 and not loaded.bundles):
        return restart_pipe
    os.close(restart_pipe)
    return None


def _only_sweep(loaded: Loaded, dry_run: bool) -> LoadedSweep:
    """Return the sweep that runs as with `allranks sweep`. Raise CannotRun for more than one, and beside jobs."""
    from allranks.errors import CannotRun

    if loaded.jobs or len(loaded.sweeps) > 1 or dry_run:
        text = "--dry-run prints the pods of jobs" if dry_run else "the files have more than one TrainingSweep or job"
        raise CannotRun(f"{text}: run a sweep alone, with allranks sweep FILE")
    return loaded.sweeps[0]


def _program(files: Sequence[str], module: str | None, words: Sequence[str]) -> Program | None:
    """Return the program that has no manifest, or None if all files are manifests. Raise UsageError for anything else.

    Without files, `words`, which follow --, are a command."""
    if module and files:
        raise click.UsageError(f"-m {module} is the program: leave out {files[0]}, or put it after -- as an argument.")
    if module:
        return Program(module=module)
    if not files and not (words and words[0] and not words[0].startswith("-")):
        raise click.UsageError("no program given: specify a FILE, - for standard input, -m MODULE, or -- COMMAND.")
    script = _only_script(files)
    return Program(script) if script or not files else None


def _only_script(files: Sequence[str]) -> str:
    """Return the script; empty if all files are manifests. Raise UsageError for further files beside a script."""
    scripts = [file for file in files if is_script(file)]
    if scripts and len(files) > 1:
        script, words = scripts[0], [file for file in files if file != scripts[0]]
        if words[0] in _LAUNCHERS and words[0] == files[0]:
            raise click.UsageError(f"leave out {words[0]}, which allranks adds: allranks run {script}")
        manifests = any(word.endswith(FILES) or word == "-" for word in words)
        example = "--lr 0.1" if manifests else " ".join(words)
        raise click.UsageError(
            f"{script}: a script runs alone; put arguments of the program after --, for example "
            f"allranks run {script} -- {example}"
        )
    return scripts[0] if scripts else ""


_LAUNCHERS = ("python", "python3", "torchrun", "horovodrun", "accelerate", "mpirun")


def _first_set(**options: Any) -> str | None:
    return next((name for name, value in options.items() if value is not None), None)


_Additions = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""(arguments, variables) of the command line."""


def _load(files: Sequence[str], sets: Sequence[str], additions: _Additions, code: Path | None) -> Loaded:
    from allranks.authoring.manifests import load
    from allranks.authoring.overrides import Additions

    return load(
        files,
        sets,
        additions=Additions(*additions),
        random_names=True,
        code=code,
        local=True,
        sweeps_suffice=True,
    )


def _unused(loaded: Loaded) -> Iterator[tuple[str, str]]:
    """Yield kind and name of objects that a local run does not use, and that the notes of the jobs do not mention."""
    for document in loaded.others:
        yield document.kind, document.name
    pools_of_jobs = {name for job in loaded.jobs for name in job.spec.pools.values()}
    for pool in loaded.pools:
        if pool.name not in pools_of_jobs:
            yield "TrainingPool", pool.name


def bundle_of(loaded: Loaded, job: Job) -> Bundle | None:
    """Return the code that was collected for the job."""
    return loaded.bundles.get(job.spec.code.config_map or "") if job.spec.code else None


def _pairs(items: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of each item. Raise CannotRun for an item that is not NAME=VALUE."""
    from allranks.errors import CannotRun

    pairs = []
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals):
            raise CannotRun(f"--env {item}: must be NAME=VALUE, for example OMP_NUM_THREADS=4")
        pairs.append((name, value))
    return tuple(pairs)


def _check(runs: Sequence[LocalRun], mapped: Iterable[str]) -> list[list[str]]:
    """Return the notes on each job. Raise InvalidManifest with every reason why a job cannot run here."""
    from allranks.errors import CannotRun, InvalidManifest

    notes: list[list[str]] = []
    problems: list[tuple[str, str]] = []
    for local_run in runs:
        try:
            notes.append(local_run.check())
        except CannotRun as error:
            problems += [(local_run.job.name, line) for line in str(error).splitlines()]
    problems += unknown_volumes(mapped, {name for local_run in runs for name in local_run.volume_names})
    if problems:
        raise InvalidManifest(problems)
    return notes


def _run_dir(run_dir: Path | None, job: str, reserved: list[Path] | None, *, several: bool) -> Path:
    """Return the directory of a job: `run_dir` of the command line, or its subdirectory if it is for several jobs.

    Without `run_dir` it is a new directory in runs/JOB. With `reserved` that is created, and added to the list.
    """
    from allranks.local import run_directories

    if run_dir is not None:
        return run_dir / job if several else run_dir
    return run_directories.new_directory(job) if reserved is None else run_directories.reserve_directory(job, reserved)


def _print_pods(runs: Iterable[LocalRun]) -> None:
    from allranks.authoring.yaml_text import dump

    click.echo("# The pods that allranks run would start. The ports are examples: each run uses free ports.")
    click.echo(dump([pod for local_run in runs for pod in local_run.preview()]), nl=False)


def _note(human: TextIO, text: str, *, quiet: bool, colour: bool, label: str = "note") -> None:
    if not quiet:
        style = {"fg": "yellow"} if label == "warning" else {"dim": True}
        click.echo(f"{click.style(f'{label}:', **style) if colour else f'{label}:'} {text}", file=human, color=colour)
