"""What all commands on a cluster share: options, how a job is named, exit statuses, Ctrl-C, errors in one sentence."""

from __future__ import annotations

import asyncio
import difflib
import functools
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TextIO

import click

from allranks.api.job import GROUP, KIND, PLURAL
from allranks.cli.commands.render import complain
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.paths import job_path

OK, FAILED, TIMED_OUT = 0, 1, 124
"""Exit statuses; 124 as timeout(1) has it. 2 is click's, for wrong usage, and a bad manifest's."""

_KINDS = frozenset({"dt", PLURAL, KIND.lower(), f"{PLURAL}.{GROUP}", f"{KIND.lower()}.{GROUP}"})


def on_cluster(command: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Makes `async command(cluster, **options) -> exit status` one that click can call, with the options for where."""

    @where_options
    @functools.wraps(command)
    def called(where: Where, **options: Any) -> None:
        sys.exit(connected(command, where, options))

    return called


def where_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives `command(where, **options)` the options that say which cluster, and which namespace."""

    @functools.wraps(command)
    def called(namespace: str | None, context: str | None, kubeconfig: str | None, **options: Any) -> None:
        command(Where(namespace, context, kubeconfig), **options)

    for option in reversed(_WHERE):
        called = option(called)
    return called


_WHERE = (
    click.option("-n", "--namespace", metavar="NAME", help="Namespace. [default: the context's, else default]"),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig. [default: its current one]"),
    click.option("--kubeconfig", metavar="FILE", help="Kubeconfig. [default: $KUBECONFIG, ~/.kube/config, the pod's]"),
)


def connected(command: Callable[..., Awaitable[int]], where: Where, options: dict[str, Any]) -> int:
    """Connects and carries the command out. Its exit status; errors are told."""
    told = {"interrupted": ""}

    async def main() -> int:
        async with Cluster.connect(where) as cluster:
            try:
                return await command(cluster, **options)
            finally:
                told["interrupted"] = cluster.interrupted

    try:
        return asyncio.run(main())
    except KeyboardInterrupt:
        if told["interrupted"]:
            click.echo(told["interrupted"], err=True)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has gone, as with `| head`; what is still in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except AllranksError as error:
        tell(error)
        return FAILED


def tell(error: AllranksError) -> None:
    """Prints an error for people, each of its lines as one."""
    for line in str(error).splitlines():
        complain(AllranksError(line))


def job_name(given: str) -> str:
    """`penguins` of `penguins`, `dt/penguins`, `distributedtraining.allranks.dev/penguins`. Raises UsageError."""
    kind, slash, name = given.rpartition("/")
    if slash and kind.lower() not in _KINDS:
        raise click.UsageError(f"{given}: only jobs are served here (NAME or dt/NAME): use kubectl for {kind}.")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        raise click.UsageError(f"{given!r} is no name of a job: lower-case letters, digits and '-'.")
    return name


def names_callback(_context: click.Context, _parameter: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    # `kubectl get dt NAME` out of habit.
    words = given[1:] if given and given[0] in _KINDS else given
    return tuple(job_name(word) for word in words)


def name_callback(_context: click.Context, _parameter: click.Parameter, given: str) -> str:
    return job_name(given)


async def get_job(cluster: Cluster, name: str) -> Manifest:
    """Raises ClusterError; for a name that is not there, with those that look like it."""
    try:
        return await cluster.get(job_path(cluster.namespace, name))
    except ClusterError as error:
        raise await not_found(cluster, name, error) from error


async def not_found(cluster: Cluster, name: str, error: ClusterError) -> ClusterError:
    """The same error, but where a job is not found, with its near names and its namesakes elsewhere."""
    if error.reason != "NotFound" or f'"{name}" not found' not in str(error):
        return error
    hint = ""
    try:
        there = await cluster.get(job_path(cluster.namespace))
        names = [item["metadata"]["name"] for item in there["items"]]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.6) or [n for n in names if name in n or n in name]
        if near:
            hint = f", did you mean {joined(near[:3], 'or')}?"
        else:
            everywhere = await cluster.get(job_path(None), {"fieldSelector": f"metadata.name={name}"})
            elsewhere = [item["metadata"]["namespace"] for item in everywhere["items"]]
            if elsewhere:
                hint = f", but in {joined(elsewhere[:3], 'and')}: choose it with -n"
            elif names:
                hint = ": allranks get lists those that are there"
    except ClusterError:
        pass  # not allowed to look around
    return ClusterError(f"there is no job {name} in namespace {cluster.namespace}{hint}", 404, "NotFound")


def joined(words: Iterable[str], last: str) -> str:
    """`a, b or c`."""
    *front, end = words
    return f"{', '.join(front)} {last} {end}" if front else end


def colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR")


def seconds(text: str) -> float:
    """Seconds of `90`, `90s`, `1m30s`, `2h`, `1d`. Raises BadParameter."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
    if text and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise click.BadParameter(f"{text} is no duration: write 90s, 5m or 1h30m")
    return value


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """`90s`, `5m`, `1h30m`; a plain number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return value if isinstance(value, float) else seconds(str(value))
