"""The option `--volume NAME=DIR`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from allranks.cli.suggestions import suggestions
from allranks.errors import CannotRun

_ADDED = ("dshm", "allranks-")
"""How the names of volumes begin that allranks adds to pods."""


def mapped_volumes(volumes: Sequence[str]) -> dict[str, Path]:
    """Volume name -> directory. Raises CannotRun for an item that is not NAME=DIR."""
    mapped: dict[str, Path] = {}
    for item in volumes:
        name, equals, directory = item.partition("=")
        if not (name and equals and directory):
            raise CannotRun(f"--volume {item}: must be NAME=DIR, for example data=./data")
        mapped[name] = Path(directory).expanduser().absolute()
    return mapped


def unknown_volumes(mapped: Iterable[str], names: Collection[str]) -> Iterator[tuple[str, str]]:
    """(option, problem) of each mapped name that no job has: a typing error would lose the output of a training."""
    own = sorted(name for name in names if not name.startswith(_ADDED))
    for name in mapped:
        if name not in names:
            near = suggestions(name, own, {})
            existing = f"the jobs have {', '.join(own)}" if own else "the jobs have no volumes"
            meant = f", did you mean {near[0]}?" if near else f"; {existing}"
            yield f"--volume {name}", f"no volume, claim, input or output has this name{meant}"
