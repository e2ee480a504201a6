"""`allranks inject`: runs in the init container of pods that need in-pod helpers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from allranks.inpod import job_code, unpack
from allranks.pod_bundle import copy


@click.command(hidden=True)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--code", type=click.Path(dir_okay=False, path_type=Path), help="Archive to unpack.")
@click.option("--sha256", default="", help="Hash of the uncompressed archive.")
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Directory for the code.")
def inject(directory: Path, code: Path | None, sha256: str, to: Path | None) -> None:
    """Copy the in-pod helpers into DIRECTORY, and the report library into DIRECTORY/python (for PYTHONPATH)."""
    try:
        copy(directory)
    except OSError as error:
        click.echo(f"error: cannot write to {directory}: {error.strerror}", err=True)
        sys.exit(1)
    if code and to:
        try:
            unpack.unpack(code, sha256, to)
            job_code.record(sha256, to, directory)
        except OSError as error:
            click.echo(f"error: cannot write to {directory}: {error.strerror}", err=True)
            sys.exit(1)
        except unpack.Unusable as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
