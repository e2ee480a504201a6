"""`allranks inject`: runs in the init container of pods that need in-pod helpers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from allranks.pod_bundle import copy


@click.command(hidden=True)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def inject(directory: Path) -> None:
    """Copy the in-pod helpers into DIRECTORY, and the report library into DIRECTORY/python (for PYTHONPATH)."""
    try:
        copy(directory)
    except OSError as error:
        click.echo(f"error: cannot write to {directory}: {error.strerror}", err=True)
        sys.exit(1)
