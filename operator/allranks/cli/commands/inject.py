"""`allranks inject`: what the init container of a pod with a helper runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from allranks.pod_bundle import copy


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def inject(directory: Path) -> None:
    """Copy what runs inside pods (standard library only) into DIRECTORY: the helpers, and below `python/`, which
    PYTHONPATH names there, the report library."""
    try:
        copy(directory)
    except OSError as error:
        click.echo(f"error: cannot write to {directory}: {error.strerror}", err=True)
        sys.exit(1)
