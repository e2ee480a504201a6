"""Loads the job of a script for `allranks run SCRIPT.py`, and writes its manifest for --save."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from allranks.authoring.manifests import Loaded, load_documents
from allranks.authoring.script_job import make_job, read_script
from allranks.authoring.yaml_text import dump
from allranks.errors import CannotRun
from allranks.frameworks import FRAMEWORKS

Additions = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""(arguments, variables) of the command line."""


def load_script(
    script: str,
    sets: Sequence[str],
    additions: Additions,
    replicas: int,
    gpus: int,
    framework: str | None,
    workdir: Path,
    save: Path | None,
    *,
    ships: bool,
) -> tuple[Loaded, list[str]]:
    """The script's job and notes on it; writes its manifest to `save`. `ships`: the code in `workdir` is shipped.
    Raises InvalidManifest."""
    arguments, env = additions
    framework = _framework_of_script(framework, sets)
    if ships:
        script = _inside(script, workdir)
    source = read_script(script, workdir)
    document, notes = make_job(source, framework=framework, replicas=replicas, gpus=gpus, env=env, arguments=arguments)
    loaded = load_documents([(script, document)], sets, code=workdir if ships else None, here=True)
    if save:
        written, needed = loaded.documents[0], f"contains {script}"
        if ships:
            written = {**written, "spec": {**written["spec"], "code": os.path.relpath(workdir, save.parent)}}
            needed = "has the packages that it imports"
        _save(save, written)
        notes.append(f"the manifest is in {save}: set its image to one that {needed}, then submit it")
    return loaded, notes


def _inside(script: str, code: Path) -> str:
    """The path of the script in the shipped code. It is relative to the current directory, as is `code`, or to `code`.
    Raises CannotRun."""
    given = Path(script)
    if not given.is_file() and (code / script).is_file():
        return script
    if not given.resolve().is_relative_to(code.resolve()):
        raise CannotRun(f"{script} is not in {code}, the directory of --code: name a directory that contains it")
    return str(given.resolve().relative_to(code.resolve()))


def _framework_of_script(option: str | None, sets: Sequence[str]) -> str | None:
    """The framework of --framework, or of --set framework=NAME, which means the same: it also chooses the command."""
    values = [value for path, _, value in (item.partition("=") for item in sets) if path in _FRAMEWORK_PATHS]
    if not values:
        return option
    if values[-1] not in FRAMEWORKS:
        names = ", ".join(FRAMEWORKS)
        raise click.UsageError(f"--set framework={values[-1]}: there is no such framework; there are {names}.")
    if option not in (None, values[-1]):
        raise click.UsageError(f"--framework {option} and --set framework={values[-1]} differ: specify one of them.")
    return values[-1]


_FRAMEWORK_PATHS = ("framework", "spec.framework")


def _save(file: Path, document: dict[str, Any]) -> None:
    """Raises CannotRun if the file exists or cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(dump([document]))
    except FileExistsError:
        raise CannotRun(f"--save {file}: the file exists; choose another name or remove it") from None
    except OSError as error:
        raise CannotRun(f"--save {file}: cannot be written: {(error.strerror or str(error)).lower()}") from error
