"""Convert all jobs in the documents of files, with comments. Other objects stay as they are."""

from __future__ import annotations

import copy
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allranks.authoring import templates
from allranks.authoring import yaml_text as yaml
from allranks.authoring.convert import wrappers
from allranks.authoring.convert.draft import Draft, Fields, Path
from allranks.authoring.convert.kinds import Kind, group_and_version, is_runtime, kind_of, unknown
from allranks.authoring.convert.trainjob import FindRuntime
from allranks.errors import InvalidManifest

_WIDTH = 118


@dataclass(frozen=True)
class Converted:
    """A document of the input, converted."""

    source: str
    original: dict[str, Any]
    draft: Draft | None = None
    """None for an object that stays as it is."""
    problems: tuple[tuple[str, str], ...] = field(default=())
    """(path in the source, message) of a job that cannot be converted; it has no documents."""
    name: str = ""
    """`PyTorchJob mnist`"""
    unknown: str = ""
    """Why a job of another kind is not converted, as a clause; empty for other objects."""
    inner: tuple[tuple[wrappers.Slot, Converted], ...] = ()
    """The jobs inside of the object, with their places."""
    remarks: tuple[tuple[str, str], ...] = ()
    """(place, text) of what a person has to do or to look at, beside the job."""

    @property
    def documents(self) -> tuple[dict[str, Any], ...]:
        """One object, and for a job the objects that complete it."""
        if self.problems:
            return ()
        if self.draft:
            return (self.draft.document, *self.draft.further)
        return (self._filled(),)

    def parts(self) -> Iterator[Converted]:
        """Yield the result itself, and the jobs inside of it."""
        yield self
        for _, result in self.inner:
            yield from result.parts()

    def text(self) -> str:
        """Return YAML with comments."""
        if self.draft is None:
            head = [f"{self.name} {self.unknown}."] if self.unknown else []
            head += [f"{place}: {text}." for place, text in self.remarks]
            comments = [line for text in head for line in _lines(text, "")]
            return "".join(f"{line}\n" for line in comments) + yaml.dump([self._filled()])
        head = [f"Converted from {self.name} by allranks convert."]
        head += [f"Dropped: {path}: {reason}." for path, reason in self.draft.dropped]
        first = _commented(self.draft.document, head, self.draft.comments)
        return "---\n".join([first, *(yaml.dump([document]) for document in self.draft.further)])

    def _filled(self) -> dict[str, Any]:
        """Return the object with the converted jobs inside of it."""
        for slot, result in self.inner:
            if draft := result.draft:
                restored = replace(
                    draft,
                    document=_with_texts(draft.document, slot.restore),
                    comments=[(path, slot.restore(text)) for path, text in draft.comments],
                    dropped=[(slot.restore(path), slot.restore(reason)) for path, reason in draft.dropped],
                )
                slot.fill(restored.document, replace(result, draft=restored).text())
        return self.original


def unlisted(documents: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the documents. A List, as `kubectl get -o yaml` prints several objects, is replaced by its items."""
    for document in documents:
        if not isinstance(document, dict):
            continue
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            kind = str(document["kind"])[: -len("List")]
            inherited = {"apiVersion": document.get("apiVersion"), "kind": kind} if kind else {}
            yield from unlisted({**inherited, **item} for item in items if isinstance(item, dict))
        else:
            yield document


def convert(documents: Sequence[tuple[str, dict[str, Any]]]) -> list[Converted]:
    """Return the results for (file, object) pairs. TrainingRuntimes are used by TrainJobs, and have no result."""
    runtimes = [document for _, document in documents if is_runtime(document)]

    def find(kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        for runtime in runtimes:
            metadata = runtime.get("metadata") or {}
            same = kind != "TrainingRuntime" or not namespace or metadata.get("namespace", namespace) == namespace
            if (runtime.get("kind"), metadata.get("name")) == (kind, name) and same:
                return runtime
        return None

    pairs = [pair for pair in _without_wraps(documents) if not is_runtime(pair[1])]
    jobs = any(kind_of(document) or wrappers.is_wrapper(document) for _, document in pairs)
    return [_converted(source, document, find, alone=not jobs) for source, document in pairs]


def _without_wraps(documents: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Replace each AppWrapper by the objects in it."""
    for source, document in documents:
        if document.get("kind") == "AppWrapper" and wrappers.is_wrapper(document):
            yield from ((source, item) for item in wrappers.components(document))
        else:
            yield source, document


def _converted(source: str, document: dict[str, Any], find: FindRuntime, *, alone: bool, inside: str = "") -> Converted:
    """Return the result for a document. `alone`: no job is among the documents. `inside`: the object that it is in."""
    kind = kind_of(document)
    name = f"{inside}{_name(document, kind)}"
    if kind is None and not inside and wrappers.is_wrapper(document):
        return _wrapped(source, document, name, find)
    if kind is None:
        return Converted(source, document, name=name, unknown=unknown(document, alone=alone))
    group, version = group_and_version(document)
    if kind.versions and version not in kind.versions:
        text = f"{group}/{version} is not supported: {', '.join(kind.versions)} are"
        return Converted(source, document, problems=(("apiVersion", text),), name=name)
    if not inside and (template := templates.in_document(document)):
        return Converted(source, document, problems=(("metadata", template),), name=name)
    try:
        draft = kind.convert(Fields(document), find)
    except InvalidManifest as error:
        return Converted(source, document, problems=tuple(error.problems), name=name)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # There is no schema of the other operator. An API server that has it would have rejected this object.
        text = f"a field has a type that no {kind.name} has"
        cure = ": `kubectl apply --dry-run=server` names it" if kind.group else ""
        return Converted(source, document, problems=(("spec", text + cure),), name=name)
    return Converted(source, document, draft, name=name)


def _name(document: Mapping[str, Any], kind: Kind | None) -> str:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    named = metadata.get("name") or metadata.get("generateName") or document.get("cluster_name")
    named = named or ("" if document.get("kind") else document.get("name")) or ""
    kind_name = kind.name if kind else str(document.get("kind") or "the document")
    return f"{kind_name} {named}".strip()


def _wrapped(source: str, document: dict[str, Any], name: str, find: FindRuntime) -> Converted:
    """Return the result for an object that has the manifests of jobs inside."""
    outer = copy.deepcopy(document)
    inner: list[tuple[wrappers.Slot, Converted]] = []
    remarks: list[tuple[str, str]] = []
    for slot in wrappers.slots(outer):
        if slot.manifest is None:
            problem = ("", "the manifest cannot be read: write numbers instead of placeholders outside of quotes")
            inner.append((slot, Converted(source, {}, problems=(problem,), name=f"{name}: {slot.path}")))
            continue
        result = _converted(source, slot.manifest, find, alone=True, inside=f"{name}: {slot.path}: ")
        if result.draft:
            remarks += [(slot.path, text) for text in slot.remarks]
        restored = tuple((path, slot.restore(text)) for path, text in result.problems)
        inner.append((slot, replace(result, problems=restored, name=slot.restore(result.name))))
    wrong = [result for _, result in inner if result.problems]
    problems = tuple((f"{result.name}: {path}", text) for result in wrong for path, text in result.problems)
    if problems:
        return Converted(source, outer, problems=problems, name=name)
    return Converted(source, outer, name=name, inner=tuple(inner), remarks=tuple(remarks))


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value with all its texts changed."""
    if isinstance(value, dict):
        return {change(str(key)): _with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _commented(document: Mapping[str, Any], head: Iterable[str], comments: Iterable[tuple[Path, str]]) -> str:
    """Return YAML with `head` as comments before it, and each comment above its field.

    A comment on a field that does not exist is above the nearest field around it. A comment on an item of a list is
    above the list.
    """
    marker = "comment"
    while marker in json.dumps(document, default=str):
        marker += "_"
    texts: list[str] = []
    marked = _copy(document)
    for path, text in comments:
        if text not in texts:  # several roles can have the same remark
            _mark(marked, path, f"{marker}{len(texts)}")
            texts.append(text)
    out = [line for text in head for line in _lines(text, "")]
    for line in yaml.dump([marked]).splitlines():
        match = re.fullmatch(rf"( *){marker}(\d+): null", line)
        out += _lines(texts[int(match[2])], match[1]) if match else [line]
    return "\n".join(out) + "\n"


def _lines(text: str, indent: str) -> list[str]:
    start = f"{indent}# "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False, break_long_words=False
    )


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _mark(document: dict[str, Any], path: Path, marker: str) -> None:
    """Put a marker before the last key of the path that exists."""
    section, name = document, ""
    parent = document
    for step in path:
        if not isinstance(section, dict) or step not in section:
            break
        parent, name, section = section, step, section[step]
    items = list(parent.items())
    parent.clear()
    for key, value in items:
        if key == name:
            parent[marker] = None
        parent[key] = value
