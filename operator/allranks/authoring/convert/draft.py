"""The manifest that a conversion reads, and the job that it builds.

The source remembers which fields were read: the others have no counterpart and are reported. The result has a comment
on each line that means something else, and the list of what was dropped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.api.validation_messages import json_type
from allranks.authoring.checks import schema
from allranks.errors import InvalidManifest
from allranks.frameworks import FRAMEWORKS


class NotConvertible(InvalidManifest):
    """A manifest that has no counterpart, or that the other operator would reject."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__([(path, message)])


def check(value: Any, kind: str, path: str) -> None:
    """Raises InvalidManifest if a value does not have the form of a Kubernetes type such as PodTemplateSpec."""
    problems = schema.problems(value, kind, path)
    if errors := [(problem.path, problem.message) for problem in problems if problem.severity == "error"]:
        raise InvalidManifest(errors)


class Fields:
    """A map of a manifest, which remembers the fields that were read."""

    def __init__(self, value: Any, path: str = "") -> None:
        """`value` None: an empty map. Raises NotConvertible if it is not a map."""
        if value is not None and not isinstance(value, Mapping):
            raise NotConvertible(path, f"must be a map, not {json_type(value)}")
        self.path = path
        self._value: Mapping[str, Any] = value or {}
        self._read: dict[str, list[Fields]] = {}

    def __contains__(self, name: str) -> bool:
        return self._value.get(name) is not None

    def __bool__(self) -> bool:
        return bool(self._value)

    def names(self) -> list[str]:
        return list(self._value)

    def place(self, name: str) -> str:
        """Return the path of a field, for messages."""
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str, default: Any = None) -> Any:
        """Return the whole value of a field, and mark it as read."""
        self._read.setdefault(name, [])
        value = self._value.get(name)
        return default if value is None else value

    def number(self, name: str, default: int = 0) -> int:
        """Return a field that is a whole number, perhaps in quotes. Raises NotConvertible."""
        value = self.take(name, default)
        try:
            return int(str(value))
        except ValueError:
            raise NotConvertible(self.place(name), f"must be a whole number, not {value}") from None

    def texts(self, name: str) -> list[str] | None:
        """Return a field that is a list of texts; None if it is absent. Raises NotConvertible."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            raise NotConvertible(self.place(name), f"must be a list, not {json_type(value)}")
        return None if value is None else [str(item) for item in value]

    def child(self, name: str) -> Fields:
        """Return a field that is a map; empty if it is absent. Raises NotConvertible."""
        if not self._read.get(name):
            self._read[name] = [Fields(self._value.get(name), self.place(name))]
        return self._read[name][0]

    def children(self, name: str) -> list[Fields]:
        """Return a field that is a list of maps. Raises NotConvertible."""
        value = self._value.get(name)
        if value is not None and not isinstance(value, list):
            raise NotConvertible(self.place(name), f"must be a list, not {json_type(value)}")
        place = self.place(name)
        self._read[name] = [Fields(item, f"{place}[{number}]") for number, item in enumerate(value or ())]
        return self._read[name]

    def nested(self) -> list[Fields]:
        """Return all fields, each of which must be a map. Raises NotConvertible."""
        return [self.child(name) for name in self._value]

    def left(self) -> Iterator[str]:
        """Yield the paths of the fields that were not read and are not empty."""
        for name, value in self._value.items():
            if name not in self._read:
                if value not in (None, "", [], {}, False):
                    yield self.place(name)
            else:
                for child in self._read[name]:
                    yield from child.left()


# --- the result -------------------------------------------------------------------------------------------------------


Path = tuple[str, ...]
"""Keys from the top of a document."""
Row = tuple[str, str, str]
"""(name of a field in the source, its path below the spec of the result, a comment or "")"""

_ORDER = (
    "framework image command args env resources workingDir roles "
    + " ".join(FRAMEWORKS)
    + " success elastic restart suspend managedBy cleanPodPolicy ttlSecondsAfterFinished activeDeadlineSeconds "
    "startupDeadlineSeconds scheduling template"
).split()
ADDED = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        *("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"),
    }
)
"""Labels and annotations that kubectl and the API server add, in a Job also to its pod template."""


@dataclass
class Draft:
    """`document` is the result. `comments`: (path in the document, text). `dropped`: (path in the source, reason).
    `remarks`: comments on what may not mean the same, which are also reported."""

    kind: str
    """Kind of the source."""
    source: Fields
    document: dict[str, Any]
    comments: list[tuple[Path, str]] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    remarks: list[tuple[Path, str]] = field(default_factory=list)
    further: list[dict[str, Any]] = field(default_factory=list)
    """Objects that complete the job, such as an autoscaler."""
    read: list[Fields] = field(default_factory=list)
    """Other objects that were read, such as a runtime. Their unread fields are dropped too."""

    @classmethod
    def begin(cls, source: Fields, kind: str) -> Draft:
        """Return a draft with the metadata of the source and an empty spec."""
        source.take("apiVersion"), source.take("kind"), source.take("status")
        fields = Fields(source.take("metadata"), "metadata")  # what the API server adds is not reported
        metadata: dict[str, Any] = {}
        for name in ("name", "generateName", "namespace", "labels", "annotations"):
            value = fields.take(name)
            if isinstance(value, Mapping):
                value = {key: text for key, text in value.items() if key not in ADDED}
            if value and not (name == "generateName" and "name" in metadata):
                metadata[name] = value
        return cls(kind, source, {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {}})

    @property
    def name(self) -> str:
        metadata = self.document["metadata"]
        return str(metadata.get("name") or f"{metadata.get('generateName', '')}*")

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.document["spec"]
        return spec

    def framework(self, name: str, comment: str = "") -> None:
        self.set("framework", name, comment)

    def set(self, path: str, value: Any, comment: str = "") -> None:
        """Set a field of the spec. `path`: keys with dots between them."""
        *above, name = path.split(".")
        section = self.spec
        for step in above:
            section = section.setdefault(step, {})
        section[name] = copy.deepcopy(value)
        if comment:
            self.comment(("spec", *path.split(".")), comment)

    def get(self, path: str) -> Any:
        """Return a field of the spec; None if it is not set."""
        value: Any = self.spec
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        return value

    def comment(self, path: Path, text: str) -> None:
        self.comments.append((path, text))

    def remark(self, path: Path, text: str) -> None:
        """Comment on a line of the result that may not mean the same: a person has to look at it."""
        if (path, text) not in self.remarks:
            self.remarks.append((path, text))
            self.comment(path, text)

    def drop(self, path: str, reason: str) -> None:
        self.dropped.append((path, reason))

    def move(self, fields: Fields, rows: Iterable[Row]) -> None:
        """Move fields of the source by a table."""
        for name, path, comment in rows:
            if name in fields:
                self.set(path, fields.take(name), comment)

    def drop_all(self, fields: Fields, reasons: Mapping[str, str]) -> None:
        """Drop fields of the source by a table: name -> reason. An empty or false field is only marked as read."""
        for name, reason in reasons.items():
            if fields.take(name) not in (None, "", [], {}, False):
                self.drop(fields.place(name), reason)

    def finish(self) -> Draft:
        """Order the spec, and drop the fields that were not read."""
        for fields in (self.source, *self.read):
            for path in fields.left():
                self.drop(path, "has no counterpart")
        ranks = {name: number for number, name in enumerate(_ORDER)}
        self.document["spec"] = dict(sorted(self.spec.items(), key=lambda item: ranks.get(item[0], len(ranks))))
        return self
