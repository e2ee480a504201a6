"""Outputs of functions, and the values in them that are too large to be sent back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from allranks.kube.cluster import Manifest
from allranks.sdk.outcome import Stored

RESULTS = "results"
"""An output of this name holds the values of every size, so that it is never empty."""
Outputs = Mapping[str, str | Mapping[str, Any]]


def outputs(addresses: Outputs) -> list[dict[str, Any]]:
    """Return the value of `spec.outputs`. Raises ValueError."""
    return list(_entries(addresses))


def _entries(addresses: Outputs) -> Iterator[dict[str, Any]]:
    for name, entry in addresses.items():
        fields = {"to": entry} if isinstance(entry, str) else dict(entry)
        if not isinstance(fields.get("to"), str):
            raise ValueError(f"outputs[{name!r}]: must be an address such as s3://BUCKET/PREFIX, or fields with 'to'")
        yield {"name": name, "path": f"/outputs/{name}", **fields}


def arguments(addresses: Outputs) -> list[str]:
    """Return the options of the program that calls the function: where it writes values that are too large."""
    if not addresses:
        return []
    chosen = _for_values(outputs(addresses))
    return ["--output", chosen["path"], *(["--keep"] if chosen["name"] == RESULTS else [])]


def _for_values(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((entry for entry in entries if entry["name"] == RESULTS), entries[0])


def address_of(job: Manifest, stored: Stored) -> str:
    """Return the address of the value after the upload, if the rank wrote it to an output; otherwise empty."""
    name, entries = stored.described.get("inOutput"), (job.get("spec") or {}).get("outputs")
    return f"{str(_for_values(entries)['to']).rstrip('/')}/{name}" if name and entries else ""


def fetched(stored: Stored, address: str) -> Stored:
    """Read the pickle from an object store, and return the outcome with it.

    If this machine cannot read the pickle, or its checksum differs, the description says so: a pickle runs code when it
    is loaded.
    """
    from allranks.data.object_source import PACKAGES, filesystem

    scheme, _, path = address.partition("://")
    if scheme not in PACKAGES:
        return stored
    try:
        data = filesystem(address).cat_file(path)
    except Exception as error:  # those of fsspec and the client of the store
        return _not_fetched(stored, str(error) or type(error).__name__)
    if hashlib.sha256(data).hexdigest() != stored.described.get("sha256"):
        return _not_fetched(stored, "it is not what the rank wrote")
    kept = {key: value for key, value in stored.described.items() if key != "bytes"}
    return Stored(kept, data)


def _not_fetched(stored: Stored, reason: str) -> Stored:
    return Stored({**stored.described, "notFetched": reason}, stored.data)
