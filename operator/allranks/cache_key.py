"""The name of data in the cache of inputs: the core mounts what `allranks.data` fetched."""

from __future__ import annotations

import hashlib
import json


def pin_of(revision: str | None, sha256: str | None, unpacked: bool) -> str:
    """Return the pin of data: what determines its content, besides the address."""
    pin = f"sha256:{sha256}" if sha256 else revision or ""
    return f"unpacked:{pin}" if pin and unpacked else pin


def cache_key(uri: str, pin: str) -> str:
    """Return the key of a source. `pin`: see `pin_of`."""
    return hashlib.sha256(json.dumps([uri, pin]).encode()).hexdigest()[:32]
