"""`allranks init`: writes a commented manifest for a script."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from allranks.cli.completers import complete_files
from allranks.cli.options import BAD_MANIFEST, OK, Count, print_error, print_problem
from allranks.errors import AllranksError, CannotRun
from allranks.frameworks import FRAMEWORKS


@click.command(
    epilog="""\b
Examples:
  allranks init train.py                        # writes job.yaml
  allranks init train.py --replicas 4 --gpus 8 --image registry.example.com/train:1
  allranks init src/train.py -o train.yaml && allranks run train.yaml
  allranks init train.py -o - | allranks run -
\b
Exit status:
  0 written, 2 the script cannot be read, or its framework is unclear, or the file exists.
"""
)
@click.argument("script", metavar="SCRIPT", shell_complete=complete_files)
@click.option(
    "-o",
    "--output",
    default="job.yaml",
    show_default=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="Write this file, which must not exist; - for standard output.",
)
@click.option("-n", "--replicas", type=Count(1), default=2, show_default=True, metavar="N", help="Number of pods.")
@click.option("--gpus", type=Count(0), default=0, metavar="N", help="GPUs of each pod. [default: 0]")
@click.option("--image", metavar="NAME", help="The image. [default: JOB:dev, to be replaced]")
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    help="The framework. [default: by the packages that the script imports]",
)
def init(script: str, output: str, replicas: int, gpus: int, image: str | None, framework: str | None) -> None:
    """Write a manifest for a script, with comments, that allranks validate and run accept.

    The script is read and not run. Its imports choose the framework and the command; its command-line options
    (argparse, click) become arguments with their defaults; ALLRANKS_CHECKPOINT_DIR in it adds a volume for checkpoints.
    """
    from allranks.authoring.script_job import read_script
    from allranks.authoring.starter_manifest import make_starter, source_of

    if not script.endswith(".py"):
        raise click.UsageError(f"{script}: specify a Python script (FILE.py).")
    try:
        program = read_script(script, Path())
        starter = make_starter(
            program,
            source_of(Path(script)),
            file=Path(output).name if output != "-" else "job.yaml",
            framework=framework,
            replicas=replicas,
            gpus=gpus,
            image=image,
        )
        _write(output, starter.text)
    except AllranksError as error:
        print_error(error)
        sys.exit(BAD_MANIFEST)
    for note in starter.notes:
        print_problem("note", note)
    if output != "-":
        click.echo(f"wrote {output}: try it with `allranks run {output}`", err=True)
    sys.exit(OK)


def _write(output: str, text: str) -> None:
    """Write the file, or stdout for -. Raise CannotRun if the file exists or cannot be written."""
    if output == "-":
        click.echo(text, nl=False)
        return
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CannotRun(f"{output} exists: choose another name with -o, or remove it") from None
    except OSError as error:
        raise CannotRun(f"{output} cannot be written: {(error.strerror or str(error)).lower()}") from error
