"""`allranks inject`: what the init container of a pod with a helper runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

import allranks

HELPERS = Path(allranks.__file__).parent / "inpod"


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def inject(directory: Path) -> None:
    """Copy the in-pod helpers (standard library only) into DIRECTORY."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for helper in sorted(HELPERS.glob("[!_]*.py")):
            shutil.copyfile(helper, directory / helper.name)
    except OSError as error:
        click.echo(f"error: cannot write to {directory}: {error.strerror}", err=True)
        sys.exit(1)
