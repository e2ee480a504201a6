"""Recognizes files that a program has to fill in before they are manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_BRACES = re.compile(r"\{\{-?.*?\}\}|\{%-?.*?%\}", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?")
_GAP = re.compile(r"<[A-Za-z][\w .-]*>")
_HELM = re.compile(r"\{\{-?\s*(?:\.Values|\.Release|\.Chart|\$?\.|include|template|define|if|range|with|toYaml|\$)")


def is_batch_script(text: str) -> bool:
    """Return whether a text is a script of Slurm's sbatch."""
    return text.startswith("#!") and re.search(r"^#SBATCH\b", text, re.MULTILINE) is not None


def gap_in(script: str) -> str:
    """Return the first gap of a script, such as `<your-token>`; empty without one."""
    gap = re.search(r"<(?:your|YOUR|my|MY)[\w .-]*>", script)
    return gap[0] if gap else ""


def in_text(text: str, command: str = "convert") -> str:
    """Return how to render a text that is not YAML because it is a template, as a clause; empty for other texts.

    `command`: the command of allranks that reads the result.
    """
    if not (braces := _BRACES.search(text)):
        return ""
    return _with_braces(braces[0], command)


def in_document(document: Mapping[str, Any]) -> str:
    """Return how to render a document with placeholders where no manifest can have them, as a clause; empty for a
    manifest."""
    for text in _plain(document):
        if braces := _BRACES.search(text):
            return _with_braces(braces[0])
        if _VARIABLE.search(text):
            return "is a template: render it first: `envsubst < FILE | allranks convert -`"
        if gap := _GAP.search(text):
            return f"is a template: write a value for {gap[0]} first"
    return ""


def _with_braces(text: str, command: str = "convert") -> str:
    if _HELM.match(text):
        return f"is a template: render it first: `helm template ... | allranks {command} -`"
    return f"is a template: render it first, by the program that fills in {text.strip()}"


_NUMBERS = frozenset({"replicas", "slotsPerWorker", "nprocPerNode", "completions", "parallelism", "numNodes"})


def _plain(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts that a manifest cannot have placeholders in: its name, images and numbers."""
    metadata = document.get("metadata")
    if isinstance(metadata, Mapping):
        yield from (str(metadata[key]) for key in ("name", "generateName", "namespace") if metadata.get(key))
    yield from _inner(document.get("spec"))


def _inner(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "image" or key in _NUMBERS:
                yield from [item] if isinstance(item, str) else []
            else:
                yield from _inner(item)
    elif isinstance(value, list):
        for item in value:
            yield from _inner(item)
