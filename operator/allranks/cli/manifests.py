"""Reads manifests from files or stdin, and applies overrides of the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from allranks.api import pool
from allranks.api.job import KIND, Job
from allranks.api.pool import Pool
from allranks.api.validation import parse, parse_pool
from allranks.core.manifests import pods, pool_template
from allranks.errors import InvalidManifest

_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_FastLoader):  # type: ignore[misc]
    """Rejects duplicate keys: YAML forbids them, but PyYAML silently drops the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in names and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
            names.add(name)
        return super().construct_mapping(node, deep)


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
    documents: tuple[dict[str, Any], ...] = ()
    """All documents as written, with the overrides applied to the jobs."""

    def pool(self, name: str) -> Pool | None:
        """The TrainingPool with this name, if any. The last one wins, as with `kubectl apply`."""
        return next((pool for pool in reversed(self.pools) if pool.name == name), None)


@dataclass(frozen=True, slots=True)
class Additions:
    """What the command line adds to every job."""

    arguments: tuple[str, ...] = ()
    """Appended to `spec.args`."""
    env: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs for `spec.env`; they replace variables of the same name."""

    def apply(self, document: dict[str, Any]) -> None:
        """Leaves fields of a wrong type as they are; validation reports them."""
        spec = document.get("spec")
        if not isinstance(spec, dict):
            return
        if self.arguments and isinstance(spec.get("args") or [], list):
            spec["args"] = [*(spec.get("args") or []), *self.arguments]
        if self.env and isinstance(spec.get("env") or [], list):
            names = {name for name, _ in self.env}
            kept = [
                item for item in spec.get("env") or [] if not (isinstance(item, dict) and item.get("name") in names)
            ]
            spec["env"] = [*kept, *({"name": name, "value": value} for name, value in self.env)]


def load(
    files: Iterable[str], sets: Sequence[str] = (), *, pools_suffice: bool = False, additions: Additions | None = None
) -> Loaded:
    """Reads the objects in `files` (`-` is stdin), and applies each `path=value` of `sets` to the jobs.

    The files must contain a job; with `pools_suffice` a pool is enough. Raises InvalidManifest with the problems of
    all documents; each path starts with the file and the object.
    """
    problems: list[tuple[str, str]] = []
    documents = _documents(files, problems)
    loaded = load_documents(documents, sets, problems, additions=additions)
    if not loaded.jobs and not (loaded.pools and pools_suffice):
        sources = ", ".join("stdin" if file == "-" else file for file in files)
        raise InvalidManifest([(sources, f"contains no {KIND}")])
    return loaded


def load_documents(
    documents: Iterable[tuple[str, Any]],
    sets: Sequence[str] = (),
    problems: list[tuple[str, str]] | None = None,
    *,
    additions: Additions | None = None,
) -> Loaded:
    """As `load`, for (source, document) pairs. `problems` is also filled while `documents` is read."""
    problems = [] if problems is None else problems
    overrides = [_parse_set(item) for item in sets]
    jobs: list[Job] = []
    others: list[Other] = []
    found: list[Pool] = []
    written: list[dict[str, Any]] = []
    for source, document in documents:
        kind = document.get("kind") if isinstance(document, dict) else None
        name = _name(document)
        if isinstance(document, dict):
            written.append(document)
        if kind not in (KIND, pool.KIND, None) and isinstance(document, dict):
            others.append(Other(str(kind), name, source))
            continue
        try:
            if kind == pool.KIND:
                found.append(_checked_pool(document))
                continue
            if isinstance(document, dict):
                for path, value in overrides:
                    _set(document, path, value)
                if additions:
                    additions.apply(document)
            job = parse(document)
            if wrong := pods.problems(job):
                raise InvalidManifest(wrong)
            jobs.append(job)
        except InvalidManifest as error:
            problems += [
                (f"{source}: {name}: {path}" if path else f"{source}: {name}", m) for path, m in error.problems
            ]
    if problems:
        raise InvalidManifest(problems)
    return Loaded(tuple(jobs), tuple(others), tuple(found), tuple(written))


def _checked_pool(document: Any) -> Pool:
    """Raises InvalidManifest."""
    parsed = parse_pool(document)
    if wrong := pool_template.problems(parsed.spec):
        raise InvalidManifest(wrong)
    return parsed


def _documents(files: Iterable[str], problems: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    for file in files:
        source = "stdin" if file == "-" else file
        try:
            raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
            text = raw.decode("utf-8-sig")
            documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
        except OSError as error:
            problems.append((source, f"cannot be read: {(error.strerror or str(error)).lower()}"))
        except UnicodeDecodeError:
            problems.append((source, "is not a UTF-8 text file"))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
            problems.append((where, f"is not YAML: {error.problem or error.context}"))
        except yaml.YAMLError as error:
            problems.append((source, f"is not YAML: {str(error).splitlines()[0]}"))
        except ValueError as error:  # for example month 13 in a timestamp
            problems.append((source, f"is not YAML: {error}"))
        except RecursionError:
            problems.append((source, "is nested too deeply"))
        else:
            yield from ((source, document) for document in documents)


def _name(document: Any) -> str:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return str(name) if name else "(no name)"


_STEP = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")


def _parse_set(item: str) -> tuple[list[str], Any]:
    path, equals, text = item.partition("=")
    steps = [bracketed or plain for bracketed, plain in _STEP.findall(path)]
    if not equals or not steps:
        raise InvalidManifest([(f"--set {item}", "must be path=value, for example roles.worker.replicas=2")])
    if steps[0] in ("metadata", "spec"):
        prefix, steps = steps[:1], steps[1:]
    else:
        prefix = ["spec"]
    try:
        return prefix + steps, yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise InvalidManifest([(f"--set {item}", "the value is not YAML")]) from error


def _set(document: dict[str, Any], path: list[str], value: Any) -> None:
    """Sets `value` at `path`, and creates missing maps.

    Raises InvalidManifest if the path leads through a value that is not a map, or to a missing list item.
    """
    here: Any = document
    for depth, step in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(here, list):
            if not step.isdigit() or int(step) >= len(here):
                raise InvalidManifest([(".".join(path), f"--set: the list has no item {step}")])
            if last:
                here[int(step)] = value
            else:
                here = here[int(step)]
        elif isinstance(here, dict):
            if last:
                here[step] = value
            else:
                if here.get(step) is None:
                    here[step] = {}
                here = here[step]
        else:
            raise InvalidManifest([(".".join(path), f"--set: {'.'.join(path[:depth])} is not a map")])
