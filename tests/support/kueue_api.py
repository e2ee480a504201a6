"""The API of Kueue without Kueue itself: its published CustomResourceDefinitions, from its Go module.

Tests that use it play Kueue's part themselves, and say so.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

VERSION = "v0.15.1"
_MODULE = f"sigs.k8s.io/kueue@{VERSION}"
_SERVED = ("workloads", "localqueues", "clusterqueues", "resourceflavors", "workloadpriorityclasses")


@cache
def module() -> Path:
    """The folder of the module. Go downloads it once."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "go.mod").write_text("module tests\n")
        answer = subprocess.run(
            ["go", "mod", "download", "-json", _MODULE], cwd=folder, capture_output=True, text=True, check=True
        )
    return Path(json.loads(answer.stdout)["Dir"])


def definitions(folder: Path) -> tuple[Path, ...]:
    """Files with the definitions that allranks uses, written to that folder.

    Kueue stores v1beta1 and converts objects by a webhook. Without it, v1beta2 is stored.
    """
    out = []
    for plural in _SERVED:
        file = module() / "config" / "components" / "crd" / "bases" / f"kueue.x-k8s.io_{plural}.yaml"
        definition: dict[str, Any] = yaml.load(file.read_text(), yaml.CSafeLoader)
        for version in definition["spec"]["versions"]:
            version["storage"] = version["name"] == "v1beta2"
        target = folder / file.name
        target.write_text(json.dumps(definition))
        out.append(target)
    return tuple(out)
