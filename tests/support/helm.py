"""Helm for tests, with a separate home: it neither reads nor writes the user's files."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from . import tools

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "allranks"
Manifest = dict[str, Any]


def built(name: str) -> Path:
    """The path of `helm`, of Helm 3 (`helm3`) or of `untt`, which is built if it is missing."""
    return tools.built("go-tools.sh", name) / name.removesuffix("3")


class HelmError(Exception):
    """Helm's output on stderr."""


@dataclass(frozen=True)
class Helm:
    """`helm`, with `home` for its caches and `arguments` before those of each call."""

    program: Path
    home: Path
    arguments: tuple[str, ...] = field(default=())

    def __call__(self, *arguments: str, values: Manifest | None = None, timeout: float = 600) -> str:
        """Runs Helm and returns its stdout. Raises HelmError."""
        if values is not None:
            file = self.home / "values.json"
            file.write_text(json.dumps(values))
            arguments = (*arguments, f"--values={file}")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        done = subprocess.run(
            [self.program, *self.arguments, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=kept | {"HOME": str(self.home), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": "", "XDG_DATA_HOME": ""},
        )
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def template(self, values: Manifest | None = None, *arguments: str, namespace: str = "sys") -> list[Manifest]:
        """Every object of the release `allranks`, including hooks."""
        text = self("template", "allranks", str(CHART), f"--namespace={namespace}", *arguments, values=values or {})
        return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]
