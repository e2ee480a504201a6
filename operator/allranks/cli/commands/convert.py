"""`allranks convert`: converts jobs of other operators, and manifests of earlier versions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import yaml

from allranks.cli import manifest_files
from allranks.cli.completers import complete_files
from allranks.cli.convert import old_form
from allranks.cli.manifest_files import Unreadable
from allranks.cli.options import BAD_MANIFEST, FAILED, OK, cluster_options, print_problem, run_on_cluster, set_option
from allranks.kube.cluster import Cluster, Where

if TYPE_CHECKING:
    from allranks.cli.convert.documents import Converted
    from allranks.cli.manifests import Loaded

LIVE = "live objects"
"""Stands for a file in messages about objects of a cluster."""


@click.command(
    epilog="""\b
Examples:
  allranks convert pytorchjob.yaml > job.yaml
  allranks convert trainjob.yaml runtime.yaml  # a TrainJob with the runtime that it names
  allranks convert --live tfjob/mnist -n team
  kubectl get pytorchjobs -o yaml | allranks convert - | allranks validate -
  allranks convert job.yaml --set 'command=[python3, train.py]'
  allranks convert job.yaml --check            # run the result on this machine
  allranks convert job.yaml -o json | jq '.[].dropped'
  allranks convert --in-place jobs/*.yaml      # manifests of allranks 0.1
\b
Exit status:
  0 converted, or nothing to convert; 1 something was dropped, the result is not complete, or --check failed;
  2 a manifest cannot be read or converted.
"""
)
@click.argument("arguments", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_files)
@click.option("--live", is_flag=True, help="Read objects of a cluster instead of files: KIND/NAME, or KIND for all.")
@click.option("--check", is_flag=True, help="Run the result on this machine, if its programs are here.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="The format. [default: yaml]")
@click.option("-i", "--in-place", is_flag=True, help="Rewrite manifests of allranks 0.1 instead of printing them.")
@set_option
@cluster_options
def convert(
    where: Where,
    arguments: tuple[str, ...],
    live: bool,
    check: bool,
    output: str,
    in_place: bool,
    sets: tuple[str, ...],
) -> None:
    """Convert jobs of other operators into DistributedTrainings.

    Supported are PyTorchJob, TFJob, MPIJob, JAXJob, TrainJob, RayJob, and Indexed Jobs of batch/v1. FILE can be - for
    standard input, and a List. The result has a comment above each line that means something else, and lists what was
    dropped, which is also printed on standard error. Other objects stay as they are.

    Values of allranks 0.1, such as `action: restart`, become `action: Restart`. Comments and layout stay there.
    """
    if in_place and (live or "-" in arguments):
        raise click.UsageError("--in-place needs files: standard input cannot be rewritten.")
    if live:
        sys.exit(run_on_cluster(_live, where, {"arguments": arguments, "sets": sets, "output": output, "check": check}))
    texts = [(file, _read(file)) for file in arguments]
    found = [(file, document) for file, text in texts for document in _documents(file, text)]
    from allranks.cli.convert import documents

    if documents.has_jobs(document for _, document in found):
        if in_place:
            raise click.UsageError("--in-place is for manifests of allranks 0.1: redirect the output to a new file.")
        sys.exit(_convert(found, sets, output, check))
    if sets or check or output == "json":
        raise click.UsageError("--set, --check and -o json need a job of another operator, and the input has none.")
    _rewrite(texts, in_place)


async def _live(cluster: Cluster, arguments: Sequence[str], sets: Sequence[str], output: str, check: bool) -> int:
    from allranks.cli.other_operators import read

    found = [(LIVE, document) for document in await read(cluster, arguments)]
    return _convert(found, sets, output, check)


# --- other operators -------------------------------------------------------------------------------------------------


def _convert(found: list[tuple[str, Any]], sets: Sequence[str], output: str, check: bool) -> int:
    from allranks.cli.convert.documents import convert, unlisted

    pairs = [
        (manifest_files.source_name(file), document) for file, content in found for document in unlisted([content])
    ]
    results = convert(pairs)
    if failed := [one for one in results if one.problems]:
        for one in failed:
            for path, message in one.problems:
                print_problem("error", f"{one.source}: {one.name}: {path}: {message}")
        return BAD_MANIFEST
    incomplete = _set_and_validate(results, sets)
    if output == "json":
        click.echo(json.dumps([_as_json(one) for one in results], indent=2, default=str))
    else:
        click.echo("---\n".join(one.text() for one in results), nl=False)
    dropped = False
    for one in results:
        for path, why in one.draft.dropped if one.draft else ():
            print_problem("warning", f"{one.source}: {one.name}: dropped {path}: {why}")
            dropped = True
    for line in incomplete:
        print_problem("error", line)
    if sys.stderr.isatty():
        _summarize(results)
    if incomplete:
        return FAILED
    status = _check(results) if check else OK
    return FAILED if dropped else status


def _set_and_validate(results: Iterable[Converted], sets: Sequence[str]) -> list[str]:
    """Applies --set to the jobs. Returns what `allranks validate` would refuse."""
    from allranks.cli.manifests import InvalidManifests, load_documents

    out = []
    for one in results:
        if one.draft is None:
            continue
        try:
            load_documents([(one.source, one.draft.document)], sets)
        except InvalidManifests as error:
            for finding in error.findings:
                if finding.problem.severity == "error":
                    cure = _CURES.get(finding.problem.path.rpartition(".")[2], "")
                    out.append(f"{one.source}: {one.name}: {finding.problem.path}: {finding.text}{cure}")
    return out


_CURES = {
    "command": ". Set it, for example --set 'command=[python3, train.py]'",
    "name": ". Set it, for example --set metadata.name=shorter",
}


def _as_json(one: Converted) -> dict[str, Any]:
    draft = one.draft
    return {
        "source": one.source,
        "from": one.name or None,
        "documents": list(one.documents),
        "changes": [{"path": ".".join(path), "message": text} for path, text in draft.comments] if draft else [],
        "dropped": [{"path": path, "message": why} for path, why in draft.dropped] if draft else [],
    }


def _summarize(results: Iterable[Converted]) -> None:
    for one in results:
        if one.draft:
            changes = len({text for _, text in one.draft.comments})
            lines = f"{changes} comment{'s' * (changes != 1)} on lines that mean something else"
            click.echo(f"{one.name}: {lines}, {len(one.draft.dropped)} dropped", err=True)


def _check(results: Iterable[Converted]) -> int:
    """Runs the jobs with `allranks run`. A job whose programs are not here is not run."""
    from allranks.cli.format.yaml import dump
    from allranks.cli.manifests import load_documents

    status = OK
    for one in results:
        if one.draft is None:
            continue
        missing = _missing_programs(load_documents([(one.source, one.draft.document)]))
        if missing:
            print_problem("note", f"{one.name}: not run: {', '.join(missing)} not on this machine")
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "job.yaml")
            file.write_text(dump([one.draft.document]))
            command = [sys.executable, "-m", "allranks", "run", str(file)]
            # Standard output has the manifest.
            status = subprocess.run(command, stdout=sys.stderr, check=False).returncode or status
    return FAILED if status else OK


def _missing_programs(loaded: Loaded) -> list[str]:
    """Programs and scripts of the jobs that this machine does not have."""
    out: list[str] = []
    for job in loaded.jobs:
        for role in (job.spec, *(spec for _, spec in job.spec.roles.items())):
            line = [*(role.command or ()), *(role.args or ())]
            if line and not shutil.which(line[0]):
                out.append(line[0])
            folder = Path(role.working_dir or ".")
            out += [text for text in line[1:] if text.endswith(".py") and not (folder / text).exists()]
        if not any(role.command for role in (job.spec, *(spec for _, spec in job.spec.roles.items()))):
            out.append("the image's entrypoint")
    return list(dict.fromkeys(out))


# --- manifests of allranks 0.1 ---------------------------------------------------------------------------------------


def _rewrite(texts: Sequence[tuple[str, str]], in_place: bool) -> None:
    written = []
    for file, text in texts:
        changes = old_form.found(text)
        new = old_form.applied(text, changes)
        if in_place and changes:
            Path(file).write_bytes(new.encode())
        name = manifest_files.source_name(file)
        for change in changes:
            click.echo(f"{name}:{change.line}: {change.path}: {change.old} -> {change.new}", err=True)
        if not changes:
            click.echo(f"{name}: nothing to convert", err=True)
        written.append(new)
    if not in_place:
        click.echo("".join(_separated(written)), nl=False)


def _read(file: str) -> str:
    """The text of a file. Its line ends stay."""
    text = manifest_files.read_text(file)
    return _refuse(file, text) if isinstance(text, Unreadable) else text


def _documents(file: str, text: str) -> list[Any]:
    found = manifest_files.parsed(text, lambda text: [one for one in yaml.safe_load_all(text) if one is not None])
    return _refuse(file, found) if isinstance(found, Unreadable) else found


def _refuse(file: str, why: Unreadable) -> NoReturn:
    place = manifest_files.source_name(file) + (f":{why.line}:{why.column}" if why.line else "")
    print_problem("error", f"{place}: {why.message}" + (f"\n{why.excerpt}" if why.excerpt else ""))
    sys.exit(BAD_MANIFEST)


def _separated(texts: list[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if number and not text.startswith("---"):
            yield "---\n"
        yield text if text.endswith("\n") else f"{text}\n"
