"""Reads the manifest of another operator, and remembers what was read: the rest has no counterpart and is reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from allranks.api.validation_messages import json_type
from allranks.authoring.checks import schema
from allranks.errors import InvalidManifest


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
