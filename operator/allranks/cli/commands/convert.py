"""`allranks convert`: converts jobs of other operators."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.api.job import KIND
from allranks.authoring import manifest_files
from allranks.authoring.convert.kinds import KINDS, RUNTIME_GROUP, RUNTIMES, Kind, kind_of
from allranks.authoring.manifest_files import Unreadable
from allranks.cli.completers import complete_files
from allranks.cli.options import BAD_MANIFEST, FAILED, OK, cluster_options, print_problem, run_on_cluster, set_option
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where

if TYPE_CHECKING:
    from allranks.authoring.checks.problem import Problem, Severity
    from allranks.authoring.convert.documents import Converted
    from allranks.authoring.manifests import Loaded

LIVE = "live objects"
"""Stands for a file in messages about objects of a cluster."""


@click.command(
    epilog="""\b
Examples:
  allranks convert pytorchjob.yaml > job.yaml
  allranks convert trainjob.yaml runtime.yaml  # a TrainJob with the runtime that it names
  allranks convert train.sbatch > job.yaml     # a script of Slurm
  allranks convert --live tfjob/mnist -n team
  kubectl get pytorchjobs -o yaml | allranks convert - | allranks validate -
  allranks convert job.yaml --set 'command=[python3, train.py]'
  allranks convert job.yaml --check            # run the result on this machine
  allranks convert job.yaml -o json | jq '.[].dropped'
\b
Exit status:
  0 converted, and the result means the same, or there is no job; 1 something was dropped or has to be looked at,
  a kind cannot be converted, the result is not complete, or --check failed; 2 a manifest cannot be read, or a job
  of a kind that can be converted is not valid.
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

    Supported are PyTorchJob, TFJob, MPIJob, JAXJob, XGBoostJob, PaddleJob, TrainJob, RayJob, JobSet, Indexed Jobs of
    batch/v1, Jobs of Volcano, HyperPodPyTorchJob, these in AppWrappers, in steps of Argo and in experiments of Katib,
    scripts of sbatch, the files of `ray up`, SkyPilot and dstack, and command jobs of Azure ML. FILE can be - for
    standard input, and a List. The result has a comment above each line that means something else, and lists what was
    dropped, which is also printed on standard error. Other objects stay as they are.
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
    parts = [part for result in results for part in result.parts()]
    findings = _set_and_validate(parts, sets)
    if any(part.draft for part in parts) or not any(part.problems or part.unknown for part in parts):
        _print(results, output)
    messages = [
        (severity, f"{part.source}: {part.name}: {text}") for part in parts for severity, text in _messages(part)
    ]
    for severity, text in (*messages, *findings):
        print_problem(severity, text)
    if not any(part.draft or part.problems or part.unknown for part in parts):
        for name in dict.fromkeys(name for name, _ in documents):
            click.echo(f"{name}: nothing to convert", err=True)
    if sys.stderr.isatty():
        _summarize(parts)
    if any(part.problems for part in parts):
        return BAD_MANIFEST
    if any(severity == "error" for severity, _ in findings):
        return FAILED
    status = _check(parts) if check else OK
    return FAILED if messages else status


def _print(results: Sequence[Converted], output: str) -> None:
    if output == "json":
        click.echo(json.dumps([_as_json(result) for result in results], indent=2, default=str))
    else:
        click.echo("---\n".join(result.text() for result in results if result.documents), nl=False)


def _messages(part: Converted) -> Iterator[tuple[Severity, str]]:
    """Yield (severity, text) of what is not converted, of what was dropped, and of what may mean something else."""
    for path, message in part.problems:
        yield "error", f"{path}: {message}" if path else message
    if part.unknown:
        yield "error", part.unknown
    for path, reason in part.draft.dropped if part.draft else ():
        yield "warning", f"dropped {path}: {reason}"
    for steps, text in part.draft.remarks if part.draft else ():
        yield "warning", f"{'.'.join(steps)}: {text}"
    for place, text in part.remarks:
        yield "warning", f"{place}: {text}"


def _set_and_validate(parts: Iterable[Converted], sets: Sequence[str]) -> list[tuple[Severity, str]]:
    """Apply --set to the jobs. Return (severity, text) of what `allranks validate` would print, without its notes."""
    from allranks.authoring.manifests import InvalidManifests, load_documents

    out: list[tuple[Severity, str]] = []
    for part in parts:
        if part.draft is None:
            continue
        try:
            findings = load_documents([(part.source, part.draft.document)], sets).findings
        except InvalidManifests as error:
            findings = tuple(error.findings)
        for problem, text in ((finding.problem, finding.text) for finding in findings):
            if problem.severity != "note":
                line = f"{part.source}: {part.name}: {problem.path}: {text}{_cure(problem)}"
                out.append((problem.severity, line))
    return out


def _cure(problem: Problem) -> str:
    """Return how --set corrects a problem, for what the input often does not have."""
    if problem.severity != "error":
        return ""
    if problem.path == "metadata.name":
        return ". Set it, for example --set metadata.name=shorter"
    missing = problem.path.endswith(".command") and "is needed" in problem.message
    return ". Set it, for example --set 'command=[python3, train.py]'" if missing else ""


def _as_json(result: Converted) -> dict[str, Any]:
    drafts = [part.draft for part in result.parts() if part.draft]
    errors = [text for part in result.parts() for severity, text in _messages(part) if severity == "error"]
    return {
        "source": result.source,
        "from": result.name if drafts or errors else None,
        "documents": list(result.documents),
        "changes": [{"path": ".".join(path), "message": text} for draft in drafts for path, text in draft.comments],
        "dropped": [{"path": path, "message": reason} for draft in drafts for path, reason in draft.dropped],
        "remarks": [{"path": ".".join(path), "message": text} for draft in drafts for path, text in draft.remarks],
        "errors": errors,
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
        if result.draft is None or result.draft.document["kind"] != KIND:
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
    from allranks.authoring import templates
    from allranks.authoring.convert import slurm

    name = manifest_files.source_name(file)
    content: Any = manifest_files.text(file)
    template = ""
    if not isinstance(content, Unreadable):
        if templates.is_batch_script(content):
            return [(name, {slurm.SCRIPT: content, "name": Path(name).stem})]
        template = templates.in_text(content)
        content = manifest_files.documents(content)
    if not isinstance(content, Unreadable):
        return [(name, document) for document in content]
    place = name + (f":{content.line}:{content.column}" if content.line else "")
    message = template or content.message
    print_problem("error", f"{place}: {message}" + (f"\n{content.excerpt}" if content.excerpt else ""))
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
    kinds = ", ".join(dict.fromkeys(kind.name.lower() for kind in KINDS))
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
