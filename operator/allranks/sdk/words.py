"""Errors that the commands share with Python, in the words of Python: parameters instead of options."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Where

_OPTION = re.compile(
    r"(?<![\w-])--(?P<name>context|namespace|kubeconfig|framework|run-dir|restarts|code)\b"
    r"(?: (?P<value>\d+\b|FILE\b|[/.~]\S*))?"
    r"|(?<=with )-n\b"
)
_COMMANDS = {
    "allranks get lists the jobs": "allranks.jobs() lists the jobs",
    "`allranks run` runs the job on this machine, and `allranks runs` has its logs and reports": "allranks.run(..., "
    "ranks=-2) runs two ranks on this machine",
}


def in_python(text: str) -> str:
    """`--restarts 3` is `restarts=3`, and `--run-dir` is `run_dir=`."""
    for command, call in _COMMANDS.items():
        text = text.replace(command, call)
    return _OPTION.sub(_parameter, text)


def _parameter(found: re.Match[str]) -> str:
    name = found["name"].replace("-", "_") if found["name"] else "namespace"
    return f"{name}={found['value'] or ''}"


@contextlib.asynccontextmanager
async def connected(where: Where) -> AsyncIterator[Cluster]:
    """As `Cluster.connect`. Raises ClusterError in the words of Python."""
    try:
        async with Cluster.connect(where) as cluster:
            yield cluster
    except ClusterError as error:
        text = in_python(str(error))
        if text == str(error):
            raise
        raise ClusterError(text, error.status, error.reason, uncertain=error.uncertain) from error
