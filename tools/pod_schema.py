"""Writes the types of pod templates that `allranks validate` uses: `tools/pod_schema.py`, for a new Kubernetes version.

The source is the OpenAPI document of the API server that `tools/controlplane.sh` builds. Kept are the names, types,
required fields and values of everything that a PodTemplateSpec can contain; descriptions are not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "operator" / "allranks" / "authoring" / "checks" / "pod_schema.json"
OPEN_API = "/openapi/v3/api/v1"
ROOT_TYPE = "PodTemplateSpec"
SCALARS = {"string", "integer", "number", "boolean"}
SPECIAL = {"Quantity": "quantity", "IntOrString": "intOrString", "Time": "time", "FieldsV1": "any"}
"""Types with a notation of their own, by the last part of their OpenAPI name."""


def main() -> None:
    """Starts an API server and asks it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.controlplane import ControlPlane

    done = subprocess.run([ROOT / "tools" / "controlplane.sh"], stdout=subprocess.PIPE, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        server = ControlPlane(Path(done.stdout.strip()), Path(folder))
        server.start()
        try:
            schema = compact(server.api.request("GET", OPEN_API), server.api.request("GET", "/version")["gitVersion"])
        finally:
            server.stop()
    FILE.write_text(text(schema))
    print(f"{FILE.relative_to(ROOT)}: Kubernetes {schema['kubernetes']}, {len(schema['types'])} types")


def compact(document: dict[str, Any], version: str) -> dict[str, Any]:
    """`{kubernetes: version, types: {name: {fields: {name: type}, required: [name]}}}`, sorted.

    A type is `string`, `integer`, `number`, `boolean`, `quantity`, `intOrString`, `time`, `any`, the name of another
    type, `A|B` for a string with these values, `[]T` for a list, or `{}T` for a mapping.
    """
    schemas = {name.rpartition(".")[2]: schema for name, schema in document["components"]["schemas"].items()}
    types: dict[str, Any] = {}
    left = [ROOT_TYPE]
    while left:
        name = left.pop()
        if name in types:
            continue
        schema = schemas[name]
        fields = {field: notation(of) for field, of in sorted(schema["properties"].items())}
        types[name] = {"fields": fields} | ({"required": schema["required"]} if schema.get("required") else {})
        left += [base for of in fields.values() if (base := of.replace("[]", "").replace("{}", "")) in schemas]
    return {"kubernetes": version.removeprefix("v"), "types": dict(sorted(types.items()))}


def notation(schema: dict[str, Any]) -> str:
    """The type of a field. Raises ValueError for a construct that this notation cannot express."""
    if references := [*schema.get("allOf", ()), *([schema] if "$ref" in schema else ())]:
        name = references[0]["$ref"].rpartition(".")[2]
        return SPECIAL.get(name, name)
    if schema.get("enum"):
        return "|".join(schema["enum"])
    match schema.get("type"):
        case "array":
            return "[]" + notation(schema["items"])
        case "object":
            return "{}" + notation(schema["additionalProperties"]) if "additionalProperties" in schema else "any"
        case str() as scalar if scalar in SCALARS:
            return scalar
    raise ValueError(f"cannot represent {schema}")


def text(schema: dict[str, Any]) -> str:
    """JSON with one type in a line, so that differences can be read."""
    types = ",\n".join(
        f"{json.dumps(name)}:{json.dumps(of, separators=(',', ':'))}" for name, of in schema["types"].items()
    )
    return f'{{"kubernetes":{json.dumps(schema["kubernetes"])},"types":{{\n{types}\n}}}}\n'


if __name__ == "__main__":
    main()
