"""Completes arguments in a shell: files, names of jobs, namespaces and contexts of the cluster, stored runs.

A completer never prints, never asks for a password, and returns nothing when the answer takes too long or fails.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from allranks.kube.cluster import Where

ANSWER_SECONDS = 3.0
"""Time limit of an answer: the user waits for it after pressing Tab."""
LIMIT = 500

_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:@/]*")

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the names of files."""
    return [CompletionItem(incomplete, type="file")]


def _names(find: Callable[[click.Context], Iterable[str]]) -> Completer:
    """Return a completer of the names that `find` yields in time."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # A server must not write anything else into the user's command line.
        names = {name for name in _in_time(lambda: find(context)) if _NAME.fullmatch(name)}
        names -= set(context.params.get("names") or ())
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]

    return complete


def _in_time(find: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names that `find` yields before an error or the end of ANSWER_SECONDS."""
    names: list[str] = []

    def work() -> None:
        with contextlib.suppress(Exception):
            for name in find():
                names.append(name)

    with _silent():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(ANSWER_SECONDS)
        return list(names)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide stdin, so that login programs do not ask the user, and stderr, so that they print no messages."""
    before = sys.stdin, sys.stderr
    sys.stdin = sys.stderr = None
    try:
        yield
    finally:
        sys.stdin, sys.stderr = before


def _jobs_of_the_cluster(context: click.Context) -> list[str]:
    from allranks.kube.paths import job_path

    return _listed(context, job_path)


def _namespaces(context: click.Context) -> list[str]:
    return _listed(context, lambda _namespace: "/api/v1/namespaces")


def _contexts(context: click.Context) -> list[str]:
    from allranks.kube.auth import kubeconfig_files
    from allranks.kube.kubeconfig import context_names

    return context_names(kubeconfig_files(context.params.get("kubeconfig")))


def _runs(context: click.Context) -> list[str]:
    from allranks.local.run_directories import ROOT
    from allranks.local.sweep_files import list_stored

    runs = list_stored(Path(context.params.get("root") or ROOT))
    return [name for run in runs for name in (run.job, run.name)]


def _jobs_and_runs(context: click.Context) -> Iterator[str]:
    yield from _runs(context)
    yield from _jobs_of_the_cluster(context)


def _listed(context: click.Context, path: Callable[[str], str]) -> list[str]:
    import asyncio

    from allranks.kube.cluster import Where

    where = Where(*(context.params.get(name) for name in ("namespace", "context", "kubeconfig")))
    return asyncio.run(_list(where, path))


async def _list(where: Where, path: Callable[[str], str]) -> list[str]:
    """Return the names of the objects below `path(namespace)`. Raise ClusterError."""
    from allranks.kube.cluster import METADATA, Cluster

    async with Cluster.connect(where) as cluster:
        answer = await cluster.get(path(cluster.namespace), {"limit": LIMIT}, METADATA)
    return [item["metadata"]["name"] for item in answer["items"]]


complete_jobs = _names(_jobs_of_the_cluster)
complete_namespaces = _names(_namespaces)
complete_contexts = _names(_contexts)
complete_runs = _names(_runs)
complete_jobs_and_runs = _names(_jobs_and_runs)
