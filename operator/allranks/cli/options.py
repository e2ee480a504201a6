"""Parts that commands share: options, exit statuses, error messages, Ctrl-C, and the names of jobs."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from allranks.api.job import GROUP, KIND, PLURAL
from allranks.cli.completers import complete_contexts, complete_files, complete_namespaces
from allranks.cli.suggestions import FILES, suggestions
from allranks.client.interrupt import signals_wake_the_loop
from allranks.client.jobs import Changed, get_job, with_suggestion
from allranks.errors import AllranksError, CannotRun, ClusterError, InvalidManifest
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.text import joined
from allranks.views.format import duration
from allranks.views.format.objects import OBJECT_OUTPUTS, render_objects

OK, FAILED, BAD_MANIFEST, TIMED_OUT = 0, 1, 2, 124
"""Exit statuses. timeout(1) has 124 too. click also exits with 2, for wrong usage."""
AFTER_WAITING = {"Reached": OK, "Failed": FAILED, "TimedOut": TIMED_OUT}

_KINDS = frozenset({"dt", PLURAL, KIND.lower(), f"{PLURAL}.{GROUP}", f"{KIND.lower()}.{GROUP}"})


# --- manifests -------------------------------------------------------------------------------------------------------


def files_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Add `FILE...` and kubectl's `-f FILE` to `command(files=...)`, which gets at least one file."""

    @functools.wraps(command)
    def with_files(files: tuple[str, ...], filenames: tuple[str, ...], **options: Any) -> None:
        if not files and not filenames:
            raise click.UsageError("no manifest given: specify a FILE, or - for standard input.")
        command(files=(*files, *filenames), **options)

    argument = click.argument("files", nargs=-1, metavar="FILE...", shell_complete=complete_files)
    return argument(filename_option(with_files))


filename_option = click.option(
    "-f",
    "--filename",
    "filenames",
    multiple=True,
    metavar="FILE",
    help="The same as FILE.",
    shell_complete=complete_files,
)
code_option = click.option(
    "--code",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Ship the code in DIR to the pods, which run it in place of the image's code. `code: DIR` in the manifest "
    "does the same.",
)
set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override a field, for example roles.worker.replicas=2. Repeatable.",
)


def root_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--root",
        type=click.Path(file_okay=False, path_type=Path),
        default="runs",
        show_default=True,
        help="The directory of the runs.",
    )(command)


# --- errors ----------------------------------------------------------------------------------------------------------


def print_error(error: AllranksError) -> None:
    """Print `error: ...` to stderr, one line for each problem."""
    if isinstance(error, InvalidManifest):
        lines = [f"{path}: {message}" if path else message for path, message in error.problems]
    else:
        lines = str(error).splitlines()
    for line in lines:
        print_problem("error", line)


_COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}


def print_problem(severity: str, text: str) -> None:
    """Print `error: ...`, `warning: ...` or `note: ...` to stderr."""
    click.echo(f"{click.style(f'{severity}:', fg=_COLOURS[severity])} {text}", err=True)


# --- clusters --------------------------------------------------------------------------------------------------------


def on_cluster(command: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Turn `async command(cluster, **options) -> exit status` into a click callback with the cluster options."""

    @cluster_options
    @functools.wraps(command)
    def run(where: Where, **options: Any) -> None:
        sys.exit(run_on_cluster(command, where, options))

    return run


def with_options(
    command: Callable[..., Any], options: Sequence[Callable[[Callable[..., Any]], Callable[..., Any]]]
) -> Callable[..., Any]:
    """Add options to a command, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select a cluster and a namespace to `command(where, **options)`."""

    @functools.wraps(command)
    def run(namespace: str | None, context: str | None, kubeconfig: str | None, **options: Any) -> None:
        command(Where(namespace, context, kubeconfig), **options)

    return with_options(run, _CLUSTER_OPTIONS)


_CLUSTER_OPTIONS = (
    click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        help="The namespace. [default: the namespace of the context, or default]",
        shell_complete=complete_namespaces,
    ),
    click.option(
        "--context",
        metavar="NAME",
        help="The kubeconfig context. [default: the current context]",
        shell_complete=complete_contexts,
    ),
    click.option(
        "--kubeconfig",
        metavar="FILE",
        shell_complete=complete_files,
        help="The kubeconfig file. [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]",
    ),
)


def run_on_cluster(
    command: Callable[..., Awaitable[int]],
    where: Where,
    options: dict[str, Any],
    otherwise: Callable[[AllranksError], int] | None = None,
) -> int:
    """Connect, run the command and print its errors, or pass them to `otherwise`. Return the exit status."""
    on_interrupt = ""

    async def main() -> int:
        nonlocal on_interrupt
        with signals_wake_the_loop():
            async with Cluster.connect(where) as cluster:
                try:
                    return await command(cluster, **options)
                finally:
                    on_interrupt = cluster.interrupted

    try:
        return asyncio.run(main())
    except KeyboardInterrupt:
        if on_interrupt:
            click.echo(on_interrupt, err=True)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has exited, as with `| head`: what is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except AllranksError as error:
        if otherwise:
            return otherwise(error)
        print_error(error)
        return FAILED


def job_name(argument: str) -> str:
    """Return `penguins` for `penguins`, `dt/penguins`, `distributedtraining.allranks.dev/penguins`.

    Raise UsageError for a file, another kind, and a name that is not valid.
    """
    if argument.endswith(FILES):
        raise click.UsageError(f"{argument} looks like a file: specify the name of a job, which is its metadata.name.")
    kind, slash, name = argument.rpartition("/")
    if slash and kind.lower() not in _KINDS:
        raise click.UsageError(
            f"{argument}: this command supports only jobs (NAME or dt/NAME): use kubectl for {kind}."
        )
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        raise click.UsageError(f"{argument!r} is not a valid job name: use lower-case letters, digits and '-'.")
    return name


def names_callback(_context: click.Context, _parameter: click.Parameter, arguments: Sequence[str]) -> tuple[str, ...]:
    # Users of kubectl type `get dt NAME`.
    words = arguments[1:] if arguments and arguments[0] in _KINDS else arguments
    return tuple(job_name(word) for word in words)


def name_callback(_context: click.Context, _parameter: click.Parameter, argument: str | None) -> str | None:
    return job_name(argument) if argument else None


object_output_option = click.option(
    "-o", "--output", type=click.Choice(OBJECT_OUTPUTS), help="Print the jobs in this format, as they are at the end."
)


async def for_each_job(
    cluster: Cluster,
    names: Sequence[str],
    change: Callable[[Manifest], Awaitable[Changed]],
    output: str | None,
    *,
    single: bool | None = None,
    ignore_not_found: bool = False,
) -> int:
    """Call `change` for one job after the other and print the results. An error does not stop the rest.

    Return the exit status. `change` raises ClusterError.

    `single`: print the job itself and not a List. The default is true if `names` has one name.
    """
    status = OK
    jobs: list[Manifest] = []
    for name in names:
        try:
            changed = await change(await get_job(cluster, name))
            jobs.append(changed.job)
            if not output:
                click.echo(changed.line)
        except ClusterError as error:
            if error.status == 404 and ignore_not_found:
                continue
            print_error(await with_suggestion(cluster, name, error))
            status = FAILED
    print_jobs(jobs, output, single=len(names) == 1 if single is None else single)
    return status


def print_jobs(jobs: Sequence[Manifest], output: str | None, *, single: bool) -> None:
    """Print jobs as objects. Print nothing without `output`, and nothing for a single job that does not exist."""
    if output and (jobs or not single):
        click.echo(render_objects(jobs, output, single=single), nl=False)


# --- ranks and volumes -----------------------------------------------------------------------------------------------


def check_rank(name: str, ranks: Mapping[str, int | None], rank: int) -> None:
    """Raise UsageError if the job has no such rank. `ranks`: replica -> rank."""
    existing = {number for number in ranks.values() if number is not None}
    if ranks and rank not in existing:
        ranks_text = f"its ranks are 0 to {max(existing)}" if existing else "it has no ranks"
        raise click.UsageError(f"{name} has no rank {rank}: {ranks_text} (one for each pod).")


def check_role(name: str, ranks: Mapping[str, int | None], role: str) -> None:
    """Raise UsageError if the job has no such role. `ranks`: replica -> rank."""
    roles = {key.rpartition("-")[0] for key in ranks}
    if roles and role not in roles:
        verb = "role is" if len(roles) == 1 else "roles are"
        raise click.UsageError(f"{name} has no role {role}: its {verb} {joined(sorted(roles), 'and')}.")


volume_option = click.option(
    "--volume", "volumes", multiple=True, metavar="NAME=DIR", help="Use DIR for the volume or claim NAME. Repeatable."
)
workdir_option = click.option(
    "--workdir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Working directory of the programs. [default: the current directory]",
)
grace_period_option = click.option(
    "--grace-period", type=click.FloatRange(min=0), metavar="SECONDS", help="Time between SIGTERM and SIGKILL."
)
_ADDED = ("dshm", "allranks-")
"""Prefixes of the names of volumes that allranks adds to pods."""


def mapped_volumes(volumes: Sequence[str]) -> dict[str, Path]:
    """Return volume name -> directory. Raise CannotRun for an item that is not NAME=DIR."""
    mapped: dict[str, Path] = {}
    for item in volumes:
        name, equals, directory = item.partition("=")
        if not (name and equals and directory):
            raise CannotRun(f"--volume {item}: must be NAME=DIR, for example data=./data")
        mapped[name] = Path(directory).expanduser().absolute()
    return mapped


def unknown_volumes(mapped: Iterable[str], names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, problem) for each mapped name that no job has: a typing error would lose a training's output."""
    volumes = sorted(name for name in names if not name.startswith(_ADDED))
    for name in mapped:
        if name not in names:
            near = suggestions(name, volumes, {})
            existing = f"the jobs have {', '.join(volumes)}" if volumes else "the jobs have no volumes"
            hint = f", did you mean {near[0]}?" if near else f"; {existing}"
            yield f"--volume {name}", f"no volume, claim, input or output has this name{hint}"


# --- small parts -----------------------------------------------------------------------------------------------------


class Count(click.IntRange):
    """A whole number. click's messages use `name`."""

    name = "whole number"


class Duration(click.ParamType[float]):
    """`90s`, `5m`, `1h30m`; a plain number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else duration.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
