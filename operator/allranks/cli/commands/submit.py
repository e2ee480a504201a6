"""`allranks submit`: the objects of manifests, created on a cluster."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from allranks.api.job import API_VERSION, GROUP, KIND, PLURAL
from allranks.api.status import FINISHED
from allranks.api.validation import parse, with_defaults
from allranks.cli.commands.render import BAD_MANIFEST, complain, files_argument, set_option
from allranks.cli.format.yaml import dump
from allranks.cli.options import FAILED, OK, Duration, on_cluster, tell
from allranks.errors import ClusterError, InvalidManifest
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.merge_patch import diff


@click.command(
    epilog="""\b
Examples:
  allranks submit job.yaml
  allranks submit job.yaml --set roles.worker.replicas=8 --set metadata.name=penguins-8
  allranks submit job.yaml --logs
  allranks submit job.yaml --wait --timeout 2h && echo trained
  allranks render job.yaml && allranks submit job.yaml --dry-run
\b
Exit status:
  0 all is there (and with --wait or --logs: every job succeeded), 1 something is not, or a job failed,
  2 a bad manifest: nothing was sent, 124 the time was over, 130 interrupted by Ctrl-C (the jobs go on).
"""
)
@files_argument
@set_option
@click.option("--dry-run", is_flag=True, help="Let the API server check everything, and create nothing.")
@click.option("-o", "--output", type=click.Choice(["name", "yaml", "json"]), help="Print the objects so.")
@click.option("--wait", "wait_for", is_flag=True, help="Follow the jobs to their end.")
@click.option("--logs", is_flag=True, help="The same, and show what the ranks print.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="With --wait or --logs: give up after so long.")
@on_cluster
async def submit(
    cluster: Cluster,
    files: tuple[str, ...],
    sets: tuple[str, ...],
    dry_run: bool,
    output: str | None,
    wait_for: bool,
    logs: bool,
    timeout: float | None,
) -> int:
    """Create the jobs in FILEs on a cluster, and what else is in the files (claims, pools, config maps).

    Manifests are checked first: where one is wrong, nothing is sent. An object that is there already is left as it is
    if it is the same, and changed where that is possible. FILE may be - for standard input.
    """
    from allranks.cli.manifests import load

    try:
        documents = load(files, sets, pools_suffice=True).documents
    except InvalidManifest as error:
        complain(error)
        return BAD_MANIFEST
    session = Session(cluster, dry_run)
    status = OK
    jobs: list[Manifest] = []
    stored: list[Manifest] = []
    for document in documents:
        try:
            done, answer = await session.apply(document)
        except ClusterError as error:
            tell(error)
            status = FAILED
            continue
        stored.append(answer)
        if answer["kind"] == KIND:
            jobs.append(answer)
        if not output:
            click.echo(f"{session.title(answer)} {done}{' (dry run by the server)' if dry_run else ''}")
    if output:
        _print(stored, session, output)
    if status != OK or dry_run:
        return status
    if not (wait_for or logs):
        _advise(jobs)
        return status
    from allranks.cli.commands.wait import until
    from allranks.kube.pod_logs import Wanted

    deadline = None if timeout is None else time.monotonic() + timeout
    human = sys.stderr if output else sys.stdout
    for job in jobs:
        sys.stdout.flush()
        wanted = Wanted() if logs else None
        cluster.namespace = job["metadata"]["namespace"]
        status = await until(cluster, job, "succeeded", human, deadline=deadline, wanted=wanted)
        if status != OK:
            return status
    return OK


def _advise(jobs: list[Manifest]) -> None:
    """Only to people."""
    if jobs and sys.stderr.isatty():
        name = jobs[0]["metadata"]["name"]
        click.echo(click.style(f"follow it: allranks logs -f {name}", dim=True), err=True)


def _print(stored: list[Manifest], session: Session, output: str) -> None:
    if output == "name":
        for answer in stored:
            click.echo(session.title(answer))
        return
    for answer in stored:
        answer["metadata"].pop("managedFields", None)
    click.echo("\n".join(json.dumps(item, indent=2) for item in stored) if output == "json" else dump(stored).rstrip())


@dataclass
class Session:
    """Puts objects into a cluster."""

    cluster: Cluster
    dry_run: bool
    _resources: dict[tuple[str, str], tuple[str, bool]] = field(
        default_factory=lambda: {(API_VERSION, KIND): (PLURAL, True)}
    )
    """(apiVersion, kind) -> (name in paths, whether namespaced)"""

    async def apply(self, document: Manifest) -> tuple[str, Manifest]:
        """(`created`, `unchanged` or `configured`, the object as it is stored). Raises ClusterError."""
        title = self.title(document)
        collection, place = await self._paths(document)
        query = {"fieldManager": "allranks", "fieldValidation": "Strict", "dryRun": "All" if self.dry_run else None}
        try:
            return "created", await self.cluster.request("POST", collection, query, document)
        except ClusterError as error:
            if error.reason != "AlreadyExists":
                raise _about(title, error) from error
        there = await self.cluster.get(place)
        change = difference(_stored(there), _stored(document))
        done = f"unchanged{_over(there)}"
        if not change:
            return done, there
        try:
            answer = await self.cluster.request("PATCH", place, query, change)
        except ClusterError as error:
            raise _differs(title, document, error) from error
        same = _but_versions(answer) == _but_versions(there)
        return (done if same else "configured"), answer

    def title(self, document: Manifest) -> str:
        """`distributedtraining.allranks.dev/penguins`, as kubectl says it."""
        group, slash, _ = str(document.get("apiVersion", "")).partition("/")
        kind = str(document.get("kind", "")).lower()
        return f"{kind}.{group}/{_name(document)}" if slash else f"{kind}/{_name(document)}"

    async def _paths(self, document: Manifest) -> tuple[str, str]:
        """(where such objects are created, where this one is)"""
        version, kind = str(document.get("apiVersion", "")), str(document.get("kind", ""))
        plural, namespaced = await self._resource(version, kind)
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if namespaced:
            base += f"/namespaces/{self._namespace(document)}"
        return f"{base}/{plural}", f"{base}/{plural}/{_name(document)}"

    def _namespace(self, document: Manifest) -> str:
        own = document["metadata"].get("namespace")
        wanted = self.cluster.wanted_namespace
        if own and wanted and own != wanted:
            advice = "leave one of them out, or --set metadata.namespace= for a job"
            raise ClusterError(f"{self.title(document)} is of namespace {own}, and -n says {wanted}: {advice}")
        return str(own or self.cluster.namespace)

    async def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        if (version, kind) not in self._resources:
            try:
                known = await self.cluster.get(f"/apis/{version}" if "/" in version else f"/api/{version}")
            except ClusterError as error:
                if error.status != 404:
                    raise
                known = {"resources": []}
            for resource in known["resources"]:
                if "/" not in resource["name"]:  # no subresource
                    self._resources[version, resource["kind"]] = (resource["name"], bool(resource["namespaced"]))
        if (version, kind) not in self._resources:
            more = f": install crds/{kind.lower()}s.yaml" if version.startswith(f"{GROUP}/") else ""
            raise ClusterError(f"the cluster knows no {kind} of {version}{more or ': is its apiVersion right?'}")
        return self._resources[version, kind]


def _name(document: Manifest) -> str:
    name = (document.get("metadata") or {}).get("name")
    if not name:
        raise ClusterError(f"{document.get('kind')}: metadata.name is missing")
    return str(name)


def _stored(document: Manifest) -> Manifest:
    """What is compared: of a job with its defaults, so that a field that was taken out is a change."""
    meta = document.get("metadata") or {}
    kept = {key: meta[key] for key in ("labels", "annotations") if meta.get(key)}
    rest = {key: value for key, value in document.items() if key not in ("metadata", "status")}
    if document.get("kind") == KIND:
        bare = {**rest, "metadata": {"name": meta["name"]}}
        with contextlib.suppress(InvalidManifest):  # of a newer version: compared as it is
            rest = with_defaults(bare, parse(bare))
    return {**rest, "metadata": kept}


def difference(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes `there` what is `wanted`. Only from a job's spec are fields removed: others may have
    added labels and annotations, and fields of objects of other kinds."""
    change = diff(there, wanted, remove=False)
    if wanted.get("kind") == KIND and (spec := diff(there["spec"], wanted["spec"])):
        change["spec"] = spec
    return change


def _but_versions(answer: Manifest) -> Manifest:
    meta = {key: value for key, value in answer["metadata"].items() if key not in ("resourceVersion", "managedFields")}
    return {**answer, "metadata": meta}


def _over(there: Manifest) -> str:
    """Who submits a job that is over wants it to run again."""
    phase = status_of(there).phase if there.get("kind") == KIND else ""
    if phase not in FINISHED:
        return ""
    name = there["metadata"]["name"]
    return f": it is {phase}; to run it again, allranks delete {name} first, or --set metadata.name=..."


def _about(title: str, error: ClusterError) -> ClusterError:
    lines = [f"{title}: {line}" for line in str(error).splitlines()]
    return ClusterError("\n".join(lines), error.status, error.reason)


def _differs(title: str, document: Manifest, error: ClusterError) -> ClusterError:
    """It is there with other values, and the API server does not let them be changed."""
    if error.status != 422:
        return _about(title, error)
    name = _name(document)
    if document.get("kind") == KIND:
        advice = f"delete it first (allranks delete {name}), or give this one another name (--set metadata.name=...)"
    else:
        advice = f"delete it first (kubectl delete {title}), or leave it out of the file"
    causes = "; ".join(str(error).splitlines())
    return ClusterError(f"{title} is there and differs: {causes}\n{title}: {advice}", error.status, error.reason)
