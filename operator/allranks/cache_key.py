"""The name of data in the cache of inputs: the core mounts what `allranks.data` fetched."""

from __future__ import annotations

import hashlib
import json


def cache_key(uri: str, pin: str) -> str:
    """Return the key of a source. `pin` is the revision, or `sha256:` and the sum."""
    return hashlib.sha256(json.dumps([uri, pin]).encode()).hexdigest()[:32]
