"""Machine-readable output, which has one form in all commands: see docs/guides/cluster.md, Output for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from allranks.api.job import GROUP, KIND
from allranks.authoring.yaml_text import dump
from allranks.kube.cluster import Manifest
from allranks.kube.store import without_managed_fields

OBJECT_OUTPUTS = ("name", "yaml", "json")
DATA_OUTPUTS = ("yaml", "json")


def render_objects(items: Sequence[Manifest], output: str, *, single: bool) -> str:
    """Write objects as the API server stores them. `single`: the object itself; otherwise a List of them."""
    if output == "name":
        return "".join(f"{KIND.lower()}.{GROUP}/{item['metadata']['name']}\n" for item in items)
    shown = list(map(without_managed_fields, items))
    whole = shown[0] if single and shown else {"apiVersion": "v1", "kind": "List", "items": shown}
    return render_data(whole, output)


def render_data(data: Any, output: str) -> str:
    return json.dumps(data, indent=2) + "\n" if output == "json" else dump([data])
