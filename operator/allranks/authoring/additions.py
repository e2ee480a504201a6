"""What a command line adds to every job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
