"""Convert all jobs in the documents of files, with comments. Other objects stay as they are."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from allranks.authoring import yaml_text as yaml
from allranks.authoring.convert import indexed_job, mpijob, ray_launcher, rayjob, training_operator, trainjob
from allranks.authoring.convert.draft import Draft, Fields, Path
from allranks.authoring.convert.trainjob import FindRuntime
from allranks.errors import InvalidManifest

_WIDTH = 118


@dataclass(frozen=True)
class Converted:
    """A document of the output."""

    source: str
    documents: tuple[dict[str, Any], ...]
    """One object, and for a job the objects that complete it."""
    draft: Draft | None = None
    """None for an object that stays as it is."""
    problems: tuple[tuple[str, str], ...] = field(default=())
    """(path in the source, message) of a job that cannot be converted; it has no documents."""
    name: str = ""
    """`PyTorchJob mnist`"""

    def text(self) -> str:
        """Return YAML with comments."""
        if self.draft is None:
            return yaml.dump(self.documents)
        head = [f"Converted from {self.name} by allranks convert."]
        head += [f"Dropped: {path}: {reason}." for path, reason in self.draft.dropped]
        first = _commented(self.draft.document, head, self.draft.comments)
        return "---\n".join([first, *(yaml.dump([document]) for document in self.draft.further)])


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

    return [_converted(source, document, find) for source, document in documents if not is_runtime(document)]


def _converted(source: str, document: dict[str, Any], find: FindRuntime) -> Converted:
    kind = kind_of(document)
    if kind is None:
        return Converted(source, (document,))
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    named = metadata.get("name") or metadata.get("generateName") or document.get("cluster_name") or ""
    name = f"{kind.name} {named}".strip()
    try:
        draft = kind.convert(Fields(document), find)
    except InvalidManifest as error:
        return Converted(source, (), problems=tuple(error.problems), name=name)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # There is no schema of the other operator. An API server that has it would have rejected this object.
        text = f"a field has a type that no {kind.name} has"
        cure = "" if kind is LAUNCHER else ": `kubectl apply --dry-run=server` names it"
        return Converted(source, (), problems=(("spec", text + cure),), name=name)
    return Converted(source, (draft.document, *draft.further), draft, name=name)


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


# --- kinds ------------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind that can be converted, with its place on the API server."""

    name: str
    group: str
    versions: tuple[str, ...]
    plural: str
    convert: Callable[[Fields, FindRuntime], Draft]


def _alone(convert: Callable[[Fields], Draft]) -> Callable[[Fields, FindRuntime], Draft]:
    return lambda source, _find: convert(source)


# A new kind: write its function in a file of this folder, and add it here.
KINDS: tuple[Kind, ...] = (
    Kind("PyTorchJob", "kubeflow.org", ("v1",), "pytorchjobs", _alone(training_operator.convert_pytorchjob)),
    Kind("TFJob", "kubeflow.org", ("v1",), "tfjobs", _alone(training_operator.convert_tfjob)),
    Kind("MPIJob", "kubeflow.org", ("v2beta1", "v1", "v1alpha2"), "mpijobs", _alone(mpijob.convert)),
    Kind("JAXJob", "kubeflow.org", ("v1",), "jaxjobs", _alone(training_operator.convert_jaxjob)),
    Kind("TrainJob", "trainer.kubeflow.org", ("v1alpha1",), "trainjobs", trainjob.convert),
    Kind("RayJob", "ray.io", ("v1", "v1alpha1"), "rayjobs", _alone(rayjob.convert)),
    Kind("Job", "batch", ("v1",), "jobs", _alone(indexed_job.convert)),
)
LAUNCHER = Kind(ray_launcher.KIND, "", (), "", _alone(ray_launcher.convert))
"""A file of `ray up`, which no API server has."""
RUNTIMES: Mapping[str, str] = {
    "ClusterTrainingRuntime": "clustertrainingruntimes",
    "TrainingRuntime": "trainingruntimes",
}
"""Kinds that a TrainJob refers to, with their plural."""
RUNTIME_GROUP = "trainer.kubeflow.org"


def kind_of(document: Mapping[str, Any]) -> Kind | None:
    """Return the kind of a job; None if it cannot be converted. A Job that is not Indexed has no ranks."""
    if ray_launcher.is_launcher(document):
        return LAUNCHER
    group, _, _version = str(document.get("apiVersion", "")).rpartition("/")
    kind = next((kind for kind in KINDS if (kind.group, kind.name) == (group, document.get("kind"))), None)
    if kind and kind.name == "Job":
        spec = document.get("spec")
        return kind if isinstance(spec, dict) and spec.get("completionMode") == "Indexed" else None
    return kind


def is_runtime(document: Mapping[str, Any]) -> bool:
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    return group == RUNTIME_GROUP and str(document.get("kind")) in RUNTIMES
