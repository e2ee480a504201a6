"""`allranks convert`: converts jobs of other operators."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.authoring import manifest_files
from allranks.authoring.convert.documents import KINDS, RUNTIME_GROUP, RUNTIMES, Kind, kind_of
from allranks.authoring.manifest_files import Unreadable
from allranks.cli.completers import complete_files
from allranks.cli.options import BAD_MANIFEST, FAILED, OK, cluster_options, print_problem, run_on_cluster, set_option
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where

if TYPE_CHECKING:
    from allranks.authoring.convert.documents import Converted
    from allranks.authoring.manifests import Loaded

LIVE = "live objects"
"""Stands for a file in messages about objects of a cluster."""


@click.command(
    epilog="""\b
Examples:
  allranks convert pytorchjob.yaml > job.yaml
  allranks convert trainjob.yaml runtime.yaml  # a TrainJob with the runtime that it names
  allranks convert cluster.yaml                # of ray up
  allranks convert --live tfjob/mnist -n team
  kubectl get pytorchjobs -o yaml | allranks convert - | allranks validate -
  allranks convert job.yaml --set 'command=[python3, train.py]'
  allranks convert job.yaml --check            # run the result on this machine
  allranks convert job.yaml -o json | jq '.[].dropped'
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
@set_option
@cluster_options
def convert(
    where: Where,
    arguments: tuple[str, ...],
    live: bool,
    check: bool,
    output: str,
    sets: tuple[str, ...],
) -> None:
    """Convert jobs of other operators into DistributedTrainings.

    Supported are PyTorchJob, TFJob, MPIJob, JAXJob, TrainJob, RayJob, Indexed Jobs of batch/v1, and the files of Ray's
    cluster launcher (`ray up`). FILE can be - for standard input, and a List. The result has a comment above each line
    that means something else, and lists what was dropped, which is also printed on standard error. Other objects stay
    as they are.
    """
    if live:
        sys.exit(run_on_cluster(_live, where, {"arguments": arguments, "sets": sets, "output": output, "check": check}))
    sys.exit(_convert([pair for file in arguments for pair in _documents(file)], sets, output, check))


async def _live(cluster: Cluster, arguments: Sequence[str], sets: Sequence[str], output: str, check: bool) -> int:
    documents = [(LIVE, document) for document in await _read_live(cluster, arguments)]
    return _convert(documents, sets, output, check)


def _convert(documents: list[tuple[str, Any]], sets: Sequence[str], output: str, check: bool) -> int:
    from allranks.authoring.convert.documents import convert, unlisted

    results = convert([(name, item) for name, document in documents for item in unlisted([document])])
    if all(result.draft is None and not result.problems for result in results):
        for name in dict.fromkeys(name for name, _ in documents):
            click.echo(f"{name}: nothing to convert", err=True)
    if failed := [result for result in results if result.problems]:
        for result in failed:
            for path, message in result.problems:
                print_problem("error", f"{result.source}: {result.name}: {path}: {message}")
        return BAD_MANIFEST
    incomplete = _set_and_validate(results, sets)
    if output == "json":
        click.echo(json.dumps([_as_json(result) for result in results], indent=2, default=str))
    else:
        click.echo("---\n".join(result.text() for result in results), nl=False)
    dropped = False
    for result in results:
        for path, reason in result.draft.dropped if result.draft else ():
            print_problem("warning", f"{result.source}: {result.name}: dropped {path}: {reason}")
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
    """Apply --set to the jobs. Return the errors that `allranks validate` would print."""
    from allranks.authoring.manifests import InvalidManifests, load_documents

    errors = []
    for result in results:
        if result.draft is None:
            continue
        try:
            load_documents([(result.source, result.draft.document)], sets)
        except InvalidManifests as error:
            for finding in error.findings:
                if finding.problem.severity == "error":
                    cure = _CURES.get(finding.problem.path.rpartition(".")[2], "")
                    errors.append(f"{result.source}: {result.name}: {finding.problem.path}: {finding.text}{cure}")
    return errors


_CURES = {
    "command": ". Set it, for example --set 'command=[python3, train.py]'",
    "name": ". Set it, for example --set metadata.name=shorter",
}


def _as_json(result: Converted) -> dict[str, Any]:
    draft = result.draft
    return {
        "source": result.source,
        "from": result.name or None,
        "documents": list(result.documents),
        "changes": [{"path": ".".join(path), "message": text} for path, text in draft.comments] if draft else [],
        "dropped": [{"path": path, "message": reason} for path, reason in draft.dropped] if draft else [],
    }


def _summarize(results: Iterable[Converted]) -> None:
    for result in results:
        if result.draft:
            changes = len({text for _, text in result.draft.comments})
            lines = f"{changes} comment{'s' * (changes != 1)} on lines that mean something else"
            click.echo(f"{result.name}: {lines}, {len(result.draft.dropped)} dropped", err=True)


def _check(results: Iterable[Converted]) -> int:
    """Run the jobs with `allranks run`, except jobs whose programs are not here. Return the exit status."""
    from allranks.authoring.manifests import load_documents
    from allranks.authoring.yaml_text import dump

    status = OK
    for result in results:
        if result.draft is None:
            continue
        missing = _missing_programs(load_documents([(result.source, result.draft.document)]))
        if missing:
            print_problem("note", f"{result.name}: not run: {', '.join(missing)} not on this machine")
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "job.yaml")
            file.write_text(dump([result.draft.document]), encoding="utf-8")
            command = [sys.executable, "-m", "allranks", "run", str(file)]
            # Standard output has the manifest.
            status = subprocess.run(command, stdout=sys.stderr, check=False).returncode or status
    return FAILED if status else OK


def _missing_programs(loaded: Loaded) -> list[str]:
    """Return the programs and scripts of the jobs that this machine does not have."""
    missing: list[str] = []
    for job in loaded.jobs:
        for role in (job.spec, *(spec for _, spec in job.spec.roles.items())):
            line = [*(role.command or ()), *(role.args or ())]
            if line and not shutil.which(line[0]):
                missing.append(line[0])
            folder = Path(role.working_dir or ".")
            missing += [text for text in line[1:] if text.endswith(".py") and not (folder / text).exists()]
        if not any(role.command for role in (job.spec, *(spec for _, spec in job.spec.roles.items()))):
            missing.append("the image's entrypoint")
    return list(dict.fromkeys(missing))


def _documents(file: str) -> list[tuple[str, Any]]:
    """Return (name of the file, document) for each document of a file. Exit if the file cannot be read."""
    content, name = manifest_files.read(file), manifest_files.source_name(file)
    if not isinstance(content, Unreadable):
        return [(name, document) for document in content]
    place = name + (f":{content.line}:{content.column}" if content.line else "")
    print_problem("error", f"{place}: {content.message}" + (f"\n{content.excerpt}" if content.excerpt else ""))
    sys.exit(BAD_MANIFEST)


# --- live objects ----------------------------------------------------------------------------------------------------


async def _read_live(cluster: Cluster, arguments: Sequence[str]) -> list[Manifest]:
    """Return the jobs, and the runtimes that TrainJobs refer to.

    `arguments`: KIND/NAME, or KIND for all jobs of this kind in the namespace. Raise ClusterError and UsageError.
    """
    kinds_and_names = [_kind_and_name(argument) for argument in arguments]
    jobs: list[Manifest] = []
    for kind, name in kinds_and_names:
        jobs += await _live_jobs(cluster, kind, name)
    runtimes: dict[tuple[str, str], Manifest | None] = {}
    for job in jobs:
        reference = (job.get("spec") or {}).get("runtimeRef")
        if isinstance(reference, dict):
            key = str(reference.get("kind") or "ClusterTrainingRuntime"), str(reference.get("name"))
            if key not in runtimes:
                runtimes[key] = await _runtime(cluster, *key)
    return [*jobs, *(runtime for runtime in runtimes.values() if runtime)]


def _kind_and_name(argument: str) -> tuple[Kind, str]:
    kind_name, _, name = argument.partition("/")
    for kind in KINDS:
        names = {kind.name.lower(), kind.plural}
        if kind_name.lower() in names | {f"{short_name}.{kind.group}" for short_name in names}:
            return kind, name
    kinds = ", ".join(kind.name.lower() for kind in KINDS)
    raise click.UsageError(f"{argument}: --live needs KIND/NAME or KIND, where KIND is one of {kinds}.")


async def _live_jobs(cluster: Cluster, kind: Kind, name: str) -> list[Manifest]:
    missing: ClusterError | None = None
    for version in kind.versions:
        path = f"{_collection(kind.group, version, cluster.namespace)}/{kind.plural}"
        try:
            answer = await cluster.get(f"{path}/{name}" if name else path)
        except ClusterError as error:
            if error.status != 404:
                raise
            missing = missing or error
            continue
        items = [answer] if name else answer.get("items") or []
        objects = [{"apiVersion": f"{kind.group}/{version}", "kind": kind.name, **item} for item in items]
        # Without a name, a Job without ranks is not meant.
        return [item for item in objects if name or kind_of(item)]
    subject = f"{kind.name} {name}" if name else f"objects of kind {kind.name}"
    text = f"there is no {subject} in namespace {cluster.namespace}, or the cluster does not have this kind"
    raise ClusterError(f"{text} ({missing})", 404, "NotFound")


async def _runtime(cluster: Cluster, kind: str, name: str) -> Manifest | None:
    """Return the runtime, or None if it does not exist: it may be a default runtime of Trainer."""
    namespace = cluster.namespace if kind == "TrainingRuntime" else None
    path = (
        f"{_collection(RUNTIME_GROUP, 'v1alpha1', namespace)}/{RUNTIMES.get(kind, RUNTIMES['TrainingRuntime'])}/{name}"
    )
    try:
        runtime = await cluster.get(path)
    except ClusterError as error:
        if error.status == 404:
            return None
        raise
    return {"apiVersion": f"{RUNTIME_GROUP}/v1alpha1", "kind": kind, **runtime}


def _collection(group: str, version: str, namespace: str | None) -> str:
    base = f"/apis/{group}/{version}"
    return f"{base}/namespaces/{namespace}" if namespace else base
