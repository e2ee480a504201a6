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
    """Raises InvalidManifest if a value has not the form of a Kubernetes type such as PodTemplateSpec."""
    found = schema.problems(value, kind, path)
    if wrong := [(one.path, one.message) for one in found if one.severity == "error"]:
        raise InvalidManifest(wrong)


class Fields:
    """A map of a manifest."""

    def __init__(self, value: Any, path: str = "") -> None:
        """Raises NotConvertible if the value is not a map. An absent map is empty."""
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
        """The path of a field, for messages."""
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str, default: Any = None) -> Any:
        """The whole value of a field."""
        self._read.setdefault(name, [])
        value = self._value.get(name)
        return default if value is None else value

    def number(self, name: str, default: int = 0) -> int:
        """A field that is a whole number, perhaps in quotes. Raises NotConvertible."""
        value = self.take(name, default)
        try:
            return int(str(value))
        except ValueError:
            raise NotConvertible(self.place(name), f"must be a whole number, not {value}") from None

    def texts(self, name: str) -> list[str] | None:
        """A field that is a list of texts; None if it is absent. Raises NotConvertible."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            raise NotConvertible(self.place(name), f"must be a list, not {json_type(value)}")
        return None if value is None else [str(item) for item in value]

    def child(self, name: str) -> Fields:
        """A field that is a map, empty if it is absent. Raises NotConvertible."""
        if not self._read.get(name):
            self._read[name] = [Fields(self._value.get(name), self.place(name))]
        return self._read[name][0]

    def children(self, name: str) -> list[Fields]:
        """A field that is a list of maps. Raises NotConvertible."""
        value = self._value.get(name)
        if value is not None and not isinstance(value, list):
            raise NotConvertible(self.place(name), f"must be a list, not {json_type(value)}")
        place = self.place(name)
        self._read[name] = [Fields(item, f"{place}[{number}]") for number, item in enumerate(value or ())]
        return self._read[name]

    def left(self) -> Iterator[str]:
        """The paths of all fields that nothing has read and that are not empty."""
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
    """`document` is the result. `comments`: (path in the document, text); `dropped`: (path in the source, why)."""

    kind: str
    """Kind of the source."""
    source: Fields
    document: dict[str, Any]
    comments: list[tuple[Path, str]] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    further: list[dict[str, Any]] = field(default_factory=list)
    """Objects that complete the job, such as an autoscaler."""
    read: list[Fields] = field(default_factory=list)
    """Other objects that were read, whose unread fields are dropped too."""

    @classmethod
    def of(cls, source: Fields, kind: str) -> Draft:
        """The metadata of the source and an empty spec."""
        source.take("apiVersion"), source.take("kind"), source.take("status")
        given = Fields(source.take("metadata"), "metadata")  # what the API server adds is not reported
        metadata: dict[str, Any] = {}
        for name in ("name", "generateName", "namespace", "labels", "annotations"):
            value = given.take(name)
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
        found: dict[str, Any] = self.document["spec"]
        return found

    def framework(self, name: str, comment: str = "") -> None:
        self.set("framework", name, comment)

    def set(self, path: str, value: Any, comment: str = "") -> None:
        """Sets a field of the spec; `path` has dots."""
        *above, name = path.split(".")
        here = self.spec
        for step in above:
            here = here.setdefault(step, {})
        here[name] = copy.deepcopy(value)
        if comment:
            self.comment(("spec", *path.split(".")), comment)

    def get(self, path: str) -> Any:
        """A field of the spec; None if it is not set."""
        here: Any = self.spec
        for step in path.split("."):
            here = here.get(step) if isinstance(here, dict) else None
        return here

    def comment(self, path: Path, text: str) -> None:
        self.comments.append((path, text))

    def drop(self, path: str, why: str) -> None:
        self.dropped.append((path, why))

    def move(self, fields: Fields, rows: Iterable[Row]) -> None:
        """Moves fields of the source by a table."""
        for name, path, comment in rows:
            if name in fields:
                self.set(path, fields.take(name), comment)

    def drop_all(self, fields: Fields, reasons: Mapping[str, str]) -> None:
        """Drops fields of the source by a table: name -> why."""
        for name, why in reasons.items():
            if fields.take(name) not in (None, "", [], {}, False):
                self.drop(fields.place(name), why)

    def finish(self) -> Draft:
        """Orders the spec, and drops what was not read."""
        for fields in (self.source, *self.read):
            for path in fields.left():
                self.drop(path, "has no counterpart")
        ranks = {name: number for number, name in enumerate(_ORDER)}
        self.document["spec"] = dict(sorted(self.spec.items(), key=lambda item: ranks.get(item[0], len(ranks))))
        return self
