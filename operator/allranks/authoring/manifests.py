"""Loads the objects of manifests: applies overrides of the command line, and reports the problems of all documents."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks.api import pool, sweep, sweep_validation
from allranks.api.job import KIND, Job
from allranks.api.pool import Pool
from allranks.api.validation import parse, parse_pool
from allranks.api.validation_messages import json_type
from allranks.authoring import manifest_files, overrides
from allranks.authoring.checks import manifest as checks
from allranks.authoring.checks.problem import Problem, Severity
from allranks.authoring.overrides import Additions, Override
from allranks.authoring.shipping import Shipping
from allranks.authoring.sweep_manifests import LoadedSweep, finish_sweep, load_sweep
from allranks.code.bundle import Bundle
from allranks.core.facts import pool_template
from allranks.core.objects import pods
from allranks.errors import InvalidManifest

_SUFFIX_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Characters that the API server uses."""
_SUFFIX_LENGTH = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem and the place of its document."""

    file: str
    """Path of the file, or `stdin`."""
    problem: Problem
    document: int = 0
    """Number of the document in the file, from 1; 0 for a problem of the file."""
    name: str = ""
    line: int = 0
    column: int = 0
    """Place in the file, from 1; 0 where it is not determined."""
    excerpt: str = ""
    """Lines of the file at this place, for people."""

    @property
    def place(self) -> str:
        """`job.yaml: penguins: spec.image`, or `job.yaml:8:4`."""
        if self.line:
            return f"{self.file}:{self.line}:{self.column}"
        return ": ".join(part for part in (self.file, self.name, self.problem.path) if part)

    @property
    def text(self) -> str:
        """The message, with the excerpt."""
        return f"{self.problem.message}\n{self.excerpt}" if self.excerpt else self.problem.message

    def as_json(self) -> dict[str, Any]:
        """Return the finding for programs."""
        out: dict[str, Any] = {"file": self.file, "document": self.document, "name": self.name}
        out |= {"path": self.problem.path, "message": self.problem.message, "severity": self.problem.severity}
        return out | ({"line": self.line, "column": self.column} if self.line else {})


class InvalidManifests(InvalidManifest):
    """Files with errors. `findings` also has their warnings and notes."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = list(findings)
        super().__init__([(finding.place, finding.text) for finding in findings if finding.problem.severity == "error"])


@dataclass(frozen=True, slots=True)
class Other:
    """An object that is neither a job nor a pool, for example a claim or a config map."""

    kind: str
    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of the files, in their order."""

    jobs: tuple[Job, ...]
    others: tuple[Other, ...]
    pools: tuple[Pool, ...] = ()
    sweeps: tuple[LoadedSweep, ...] = ()
    documents: tuple[dict[str, Any], ...] = ()
    """All documents as written, with the overrides applied to the jobs."""
    findings: tuple[Finding, ...] = ()
    """Warnings and notes."""
    titles: tuple[str, ...] = ()
    """Names of the jobs for people: `sweep-*` for a name that the API server will make."""
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    """Name of a ConfigMap in `spec.code` of a job -> the code that it is to hold."""

    def notes(self) -> list[tuple[Severity, str]]:
        """Return (severity, text) of the warnings and notes, as commands print them."""
        return [(finding.problem.severity, f"{finding.place}: {finding.text}") for finding in self.findings]


def load(
    files: Iterable[str],
    sets: Sequence[str] = (),
    *,
    pools_suffice: bool = False,
    sweeps_suffice: bool = False,
    additions: Additions | None = None,
    random_names: bool = False,
    code: Path | None = None,
    local: bool = False,
) -> Loaded:
    """Read the objects in `files` (`-` is stdin), and apply each `path=value` of `sets` to the jobs.

    `code`: the directory with the code of all jobs, instead of the code that the manifests name. `local`: the jobs run
    on this machine, so the size of a ConfigMap does not limit the code.

    The files must contain a job; with `pools_suffice` or `sweeps_suffice` a pool or a sweep is enough. A job with
    `generateName` gets a name: with `random_names` one that is probably new, otherwise always the same. Raise
    InvalidManifests with the problems of all documents.
    """
    files = list(files)
    findings: list[Finding] = []
    documents = _documents(files, findings)
    loaded = load_documents(
        documents,
        sets,
        findings,
        additions=additions,
        random_names=random_names,
        code=code,
        local=local,
    )
    if not (loaded.jobs or (loaded.pools and pools_suffice) or (loaded.sweeps and sweeps_suffice)):
        problem = Problem("", _instead_of_jobs(loaded.documents))
        raise InvalidManifests([Finding(manifest_files.sources(files), problem)])
    return loaded


def _instead_of_jobs(documents: Sequence[dict[str, Any]]) -> str:
    """Return the message for input that has no job but these documents."""
    from allranks.authoring.convert.kinds import advice  # reads kinds of other systems

    others = [document for document in documents if document.get("kind") != pool.KIND]
    if not others:
        return f"contains no {KIND}"
    listed = ", ".join(dict.fromkeys(str(document.get("kind")) for document in others))
    text = f"contains no {KIND}, only {listed}"
    cure = advice(others)
    return f"{text}: {cure}" if cure else text


def load_documents(
    documents: Iterable[tuple[str, Any]],
    sets: Sequence[str] = (),
    findings: list[Finding] | None = None,
    *,
    additions: Additions | None = None,
    random_names: bool = False,
    code: Path | Bundle | None = None,
    local: bool = False,
) -> Loaded:
    """Load (source, document) pairs, as `load` does for files. `findings` is also filled while `documents` is read."""
    try:
        parsed_overrides = [overrides.parsed(item) for item in sets]
    except InvalidManifest as error:
        raise InvalidManifests([Finding(path, Problem("", message)) for path, message in error.problems]) from error
    shipping = Shipping(code, local)
    loading = _Loading([] if findings is None else findings, parsed_overrides, additions, random_names, shipping)
    for source, document in documents:
        loading.add(source, document)
    return loading.result()


def _documents(files: Iterable[str], findings: list[Finding]) -> Iterator[tuple[str, Any]]:
    for file in files:
        source, content = manifest_files.source_name(file), manifest_files.read(file)
        if isinstance(content, manifest_files.Unreadable):
            problem = Problem("", content.message)
            findings.append(Finding(source, problem, 0, "", content.line, content.column, content.excerpt))
        else:
            yield from ((source, document) for document in content)


@dataclass
class _Loading:
    """The state of loading one document after the other."""

    findings: list[Finding]
    overrides: list[Override]
    additions: Additions | None
    random_names: bool
    shipping: Shipping
    jobs: list[tuple[Job, Finding]] = field(default_factory=list)
    """Each job with a finding that has its place."""
    others: list[Other] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    sweeps: list[tuple[LoadedSweep, Finding]] = field(default_factory=list)
    written: list[dict[str, Any]] = field(default_factory=list)
    _generated: int = 0
    _numbers: dict[str, int] = field(default_factory=dict)
    _names: dict[tuple[str, str, str, str], Finding] = field(default_factory=dict)

    def add(self, source: str, document: Any) -> None:
        number = self._numbers[source] = self._numbers.get(source, 0) + 1
        name = _name(document)
        place = Finding(source, Problem("", ""), number, name)
        if not isinstance(document, dict):
            message = f"a manifest must be a mapping, not {json_type(document)}"
            self._report(place, [Problem("", message)])
            return
        self.written.append(document)
        kind = document.get("kind")
        if kind not in (KIND, pool.KIND, sweep.KIND, None):
            if problem := checks.misspelt_kind(document):
                self._report(place, [problem])
            self.others.append(Other(str(kind), name, source))
        elif kind == pool.KIND:
            self._report(place, self._add_pool(document))
        elif kind == sweep.KIND:
            self._report(place, self._add_sweep(document, place))
        else:
            self._report(place, self._add_job(document, place))
        self._check_name(document, place)

    def result(self) -> Loaded:
        """Return the loaded objects. Raise InvalidManifests if a document has an error."""
        by_name = {pool.name: pool.spec for pool in self.pools}
        claims = {
            _name(document): _claim_spec(document)
            for document in self.written
            if document.get("kind") == "ResourceClaimTemplate"
        }
        beside = checks.Beside(by_name, claims)
        for job, place in self.jobs:
            self._report(place, checks.finished(job, beside))
        for loaded, place in self.sweeps:
            self._report(place, finish_sweep(loaded, beside))
        if any(finding.problem.severity == "error" for finding in self.findings):
            raise InvalidManifests(self.findings)
        jobs = tuple(job for job, _ in self.jobs)
        titles = tuple(place.name for _, place in self.jobs)
        return Loaded(
            jobs,
            tuple(self.others),
            tuple(self.pools),
            tuple(loaded for loaded, _ in self.sweeps),
            tuple(self.written),
            tuple(self.findings),
            titles,
            self.shipping.bundles,
        )

    def _report(self, place: Finding, problems: Iterable[Problem]) -> None:
        self.findings += [
            Finding(place.file, problem, place.document, place.name) for problem in dict.fromkeys(problems)
        ]

    def _add_pool(self, document: dict[str, Any]) -> list[Problem]:
        problems: list[Problem] = []
        try:
            self.pools.append(_checked_pool(document))
        except InvalidManifest as error:
            problems = _problems(error)
        return _without_repetition(problems, checks.written_pool(document))

    def _add_sweep(self, document: dict[str, Any], place: Finding) -> list[Problem]:
        try:
            overrides.apply(document, self.overrides)
        except InvalidManifest as error:
            return _problems(error)
        if self.additions and (inner := sweep_validation.job_document(document)):
            self.additions.apply(inner)  # it shares its spec with the sweep
        loaded, problems = load_sweep(document, self.shipping, place.file)
        self.sweeps += [(loaded, place)] if loaded else []
        return problems

    def _add_job(self, document: dict[str, Any], place: Finding) -> list[Problem]:
        try:
            overrides.apply(document, self.overrides)
            if self.additions:
                self.additions.apply(document)
        except InvalidManifest as error:
            return _without_repetition(_problems(error), checks.written(document))
        notes, wrong = [], list[Problem]()
        try:
            notes = self.shipping.apply(document, place.file)
        except InvalidManifest as error:
            wrong = _problems(error)
        named = self._with_name(document)
        try:
            job = parse(named)
        except InvalidManifest as error:
            wrong = _without_repetition(wrong, _problems(error, generated=named is not document))
            further = checks.beside_errors(named, wrong)
            return _without_repetition([*wrong, *notes], [*checks.written(document), *further])
        wrong += [Problem(*problem) for problem in pods.problems(job)]
        out = _without_repetition([*wrong, *notes], checks.written(document, None if wrong else job))
        if any(problem.severity == "error" for problem in out):
            return _without_repetition(out, checks.beside_errors(named, out))
        self.jobs.append((job, place))
        return out

    def _with_name(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with a name made of `generateName`, as the API server makes one."""
        meta = document.get("metadata")
        if not isinstance(meta, dict) or meta.get("name") is not None or not isinstance(meta.get("generateName"), str):
            return document
        if self.random_names:
            suffix = "".join(random.choices(_SUFFIX_CHARACTERS, k=_SUFFIX_LENGTH))
        else:
            self._generated += 1
            suffix = f"{self._generated:0{_SUFFIX_LENGTH}}"
        return {**document, "metadata": {**meta, "name": meta["generateName"] + suffix}}

    def _check_name(self, document: dict[str, Any], place: Finding) -> None:
        meta = document.get("metadata")
        if not isinstance(meta, dict) or not isinstance(name := meta.get("name"), str):
            return
        group, kind = str(document.get("apiVersion")).partition("/")[0], str(document.get("kind"))
        key = (group, kind, str(meta.get("namespace")), name)
        if first := self._names.get(key):
            where = f"document {first.document} of {first.file}"
            message = f"another {kind} has the same name, {name} ({where}): rename or remove one of them"
            self._report(place, [Problem("metadata.name", message)])
        self._names.setdefault(key, place)


def _problems(error: InvalidManifest, *, generated: bool = False) -> list[Problem]:
    """Return the problems of an error. `generated`: a problem of the name belongs to `generateName`."""
    problems = [Problem(path, message, meant=error.meant.get(path, "")) for path, message in error.problems]
    if not generated:
        return problems
    added = f"with the {_SUFFIX_LENGTH} characters that the API server adds: "
    return [
        Problem("metadata.generateName", added + problem.message) if problem.path == "metadata.name" else problem
        for problem in problems
    ]


def _without_repetition(problems: list[Problem], further: list[Problem]) -> list[Problem]:
    """Return both lists, without problems of `further` at fields that have a problem already."""
    reported = {problem.path for problem in problems}
    return [*problems, *(problem for problem in further if problem.path not in reported)]


def _checked_pool(document: Any) -> Pool:
    """Return the pool. Raise InvalidManifest."""
    parsed = parse_pool(document)
    if wrong := pool_template.problems(parsed.spec):
        raise InvalidManifest(wrong)
    return parsed


def _claim_spec(template: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of the claims that a ResourceClaimTemplate describes."""
    outer = template.get("spec")
    inner = outer.get("spec") if isinstance(outer, dict) else None
    return inner if isinstance(inner, dict) else {}


def _name(document: Any) -> str:
    """Return the name of the object, `sweep-*` for a name that the API server will make."""
    if not isinstance(document, dict):
        return ""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return "(no name)"
    name, prefix = metadata.get("name"), metadata.get("generateName")
    return str(name) if name else f"{prefix}*" if prefix else "(no name)"
