"""Prints docs/reference/fields.md: every field of the manifest and of status, from the schema that the CRD carries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allranks.api import job, pool
from allranks.api.crd import root_schema

HEAD = """# Reference: every field

Generated from the types by `make generate`. `kubectl explain dt.spec` and `kubectl explain tp.spec` print the same
texts. What the fields mean together is told in [manifest.md](../guides/manifest.md).
"""


def rows(schema: dict[str, Any], path: str) -> Iterator[str]:
    """One table row for each field below `schema`, depth first."""
    required = set(schema.get("required", ()))
    for name, child in schema.get("properties", {}).items():
        notes = [note for note in ("required" if name in required else "", _bounds(child)) if note]
        meaning = child.get("description", "") + (f" ({'; '.join(notes)})" if notes else "")
        yield f"| `{path}.{name}` | {_kind(child)} | {_default(child)} | {meaning} |"
        if path == "spec.roles":
            continue  # roles are alike: told once below
        suffix = "[]" if "items" in child else ""
        yield from rows(child.get("items", child), f"{path}.{name}{suffix}")
    if path == "spec.roles":
        role = schema["properties"]["worker"]
        yield from rows(role | {"properties": {"replicas": role["properties"]["replicas"]}}, "spec.roles.*")
        own = ", ".join(f"`{name}`" for name in role["properties"] if name != "replicas")
        yield f"| {own} of `spec.roles.*` | | | As in spec, for this role alone. |"


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    if value is None or value == {}:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _kind(schema: dict[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "items" in schema:
        return f"list of {_kind(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_kind(schema['additionalProperties'])}"
    return str(schema.get("type", "object"))


def _bounds(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    low, high = schema.get("minimum"), schema.get("maximum")
    if schema.get("type") == "integer" and high is not None and high < 2**31 - 1:
        return f"{low} to {high}"
    return ""


def main() -> None:
    """Prints the page."""
    print(HEAD)
    for kind, part in ((job.KIND, "spec"), (job.KIND, "status"), (pool.KIND, "spec")):
        title = part if kind == job.KIND else f"{part} of a {kind}"
        print(f"## {title}\n\n| field | type | default | meaning |\n|---|---|---|---|")
        schema = root_schema(kind)["properties"][part]
        print("\n".join(" ".join(row.split()) for row in rows(schema, part)), end="\n\n")


if __name__ == "__main__":
    main()
