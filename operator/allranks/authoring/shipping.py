"""Puts directories of code into jobs: `--code DIR`, or `code: DIR` in a manifest, which only clients understand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks.authoring.checks.problem import Problem
from allranks.code.bundle import Bundle, collect
from allranks.errors import CannotShip, InvalidManifest

_PATH = "spec.code"


@dataclass
class Shipping:
    """The code of the jobs of one command."""

    code: Path | Bundle | None = None
    """In place of what the manifests say."""
    local: bool = False
    """The jobs run on this machine, where no ConfigMap limits the size."""
    bundles: dict[str, Bundle] = field(default_factory=dict)
    """ConfigMap -> the code for it."""
    _collected: dict[Path, Bundle] = field(default_factory=dict)

    def apply(self, document: dict[str, Any], file: str) -> list[Problem]:
        """Replace a directory in the job by the fields of the API. Return notes on files that are not shipped.

        `file`: the manifest, to which a directory is relative. Raise InvalidManifest."""
        spec = document.get("spec")
        if not isinstance(spec, dict):
            return []
        written = spec.get("code")
        try:
            bundle = self._bundle(written, file)
            if bundle is None:
                return []
            described = bundle.described if self.local else bundle.spec
        except CannotShip as error:
            raise InvalidManifest([(_PATH, str(error))]) from error
        kept = {"path": written["path"]} if isinstance(written, dict) and "path" in written else {}
        spec["code"] = {**described, **kept}
        self.bundles[bundle.config_map] = bundle
        return [Problem(_PATH, note, "note") for note in bundle.notes()]

    def _bundle(self, written: Any, file: str) -> Bundle | None:
        if isinstance(self.code, Bundle):
            return self.code
        if self.code is not None:
            return self._collect(self.code)
        if isinstance(written, str):
            return self._collect(Path(file).parent / Path(written).expanduser())
        return None

    def _collect(self, directory: Path) -> Bundle:
        """Return the code in a directory. Each directory is read once, so that all jobs get the same files."""
        key = directory.resolve()
        if key not in self._collected:
            self._collected[key] = collect(directory)
        return self._collected[key]
