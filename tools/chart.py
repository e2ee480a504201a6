"""Writes the generated parts of the chart: `tools/chart.py`; `--check` compares, and fails if one is stale.

Sources are crds/ (for the CRD templates), the comments in values.yaml (for the descriptions in values.schema.json and
the table in README.md) and the version of allranks (for version and appVersion, and in charts/argo-cd.yaml).
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "allranks"

CRD_HEAD = """\
{{- /* Generated from crds/%s by `make generate`. Do not edit. */ -}}
{{- if .Values.crds.enabled }}
"""
CRD_METADATA = """\
  labels:
    {{- include "allranks.labels" . | nindent 4 }}
  {{- $keep := .Values.crds.keep | ternary (dict "helm.sh/resource-policy" "keep") dict }}
  {{- with include "allranks.annotations" (list . $keep) }}
  {{- . | nindent 2 }}
  {{- end }}
"""
TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- /values -->)", re.DOTALL)
KEY = re.compile(r"( *)([\w-]+):(?: |$)")


def main() -> None:
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text() != text}
    stale |= dict.fromkeys(left_over())
    if "--check" not in sys.argv[1:]:
        for path, text in stale.items():
            path.unlink() if text is None else path.write_text(text)
        return
    for path, text in stale.items():
        now = path.read_text() if path.exists() else ""
        sys.stdout.writelines(difflib.unified_diff(now.splitlines(True), (text or "").splitlines(True), str(path)))
    sys.exit(1 if stale else 0)


def generated() -> dict[Path, str]:
    """Path of each generated file -> its content."""
    values = list(documented((CHART / "values.yaml").read_text()))
    files = {CHART / "templates" / f"crd-{source.name}": template(source) for source in crds()}
    files[CHART / "values.schema.json"] = schema((CHART / "values.schema.json").read_text(), values)
    files[CHART / "README.md"] = TABLE.sub(lambda _: table(values), (CHART / "README.md").read_text())
    for path in (CHART / "Chart.yaml", CHART.parent / "argo-cd.yaml"):
        files[path] = with_version(path.read_text())
    return files


def crds() -> list[Path]:
    return sorted((ROOT / "crds").glob("*.yaml"))


def left_over() -> list[Path]:
    """Templates of CRDs that no longer exist."""
    names = {f"crd-{source.name}" for source in crds()}
    return [path for path in (CHART / "templates").glob("crd-*.yaml") if path.name not in names]


def template(source: Path) -> str:
    """The CRD as a template: adds the condition and the chart's labels, and escapes braces."""
    text = re.sub(r"^#.*\n", "", source.read_text(), flags=re.MULTILINE)
    text = re.sub(r"\{\{|\}\}", lambda braces: f'{{{{ "{braces[0]}" }}}}', text)
    head, name, rest = re.split(r"(?<=^metadata:\n)(  name: \S+\n)", text, maxsplit=1, flags=re.MULTILINE)
    assert not rest.startswith(" "), f"{source} has metadata other than a name"
    return CRD_HEAD % source.name + head + name + CRD_METADATA + rest + "{{- end }}\n"


@dataclass(frozen=True)
class Value:
    """One value of values.yaml."""

    path: tuple[str, ...]
    default: Any
    description: str


def documented(text: str) -> Iterator[Value]:
    """Every value with a comment directly above it. A map without a comment is a group of values."""
    data = yaml.safe_load(text)
    comment: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip(" #"))
            continue
        if found := KEY.match(line):
            path = [*path[: len(found[1]) // 2], found[2]]
            if comment:
                default = data
                for key in path:
                    default = default[key]
                yield Value(tuple(path), default, " ".join(comment))
        comment = []


def schema(text: str, values: list[Value]) -> str:
    """The schema with the descriptions of values.yaml."""
    document = json.loads(text)
    for value in values:
        node = document
        for key in value.path:
            node = node["properties"][key]
        described = {"description": value.description} | {k: v for k, v in node.items() if k != "description"}
        node.clear()
        node.update(described)
    return json.dumps(document, indent=2) + "\n"


def table(values: list[Value]) -> str:
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for value in values:
        default = json.dumps(value.default)
        meaning = value.description.replace("|", "\\|")
        rows.append(f"| `{'.'.join(value.path)}` | `{default}` | {meaning} |")
    return "\n".join(rows) + "\n"


def with_version(text: str) -> str:
    source = (ROOT / "operator" / "allranks" / "version.py").read_text()
    version = re.search(r'__version__ = "(.+)"', source)
    assert version, "no version in version.py"
    text = re.sub(r"^    targetRevision: .*$", f"    targetRevision: {version[1]}", text, flags=re.MULTILINE)
    text = re.sub(r"^version: .*$", f"version: {version[1]}", text, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f'appVersion: "{version[1]}"', text, flags=re.MULTILINE)


if __name__ == "__main__":
    main()
