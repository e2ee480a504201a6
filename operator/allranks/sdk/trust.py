"""Decides which results of a job a process may load: a pickle runs code."""

from __future__ import annotations

import hmac
from typing import NamedTuple

from allranks.inpod import call_function
from allranks.inpod.call_function import SIGNATURE, SIGNATURE_BYTES
from allranks.kube.cluster import Manifest
from allranks.sdk import result_key
from allranks.sdk.outcome import Stored


class Source(NamedTuple):
    """What a record is about."""

    job: Manifest
    attempt: int
    kind: str
    rank: int


class Trust(NamedTuple):
    """Decides about pickles, which run code when they are loaded."""

    key: bytes | None = None
    """Of the submission, if this process made it."""
    allow_pickle: bool = False

    def refusal(self, stored: Stored, source: Source) -> str:
        """Return the reason not to load a pickle, as the end of a sentence; empty if it may be loaded."""
        metadata = source.job["metadata"]
        if self.allow_pickle or (self.key and self._is_signed(stored, source)):
            return ""
        cure = (
            f"call result(allow_pickle=True) if you trust everybody who may create ConfigMaps in namespace "
            f"{metadata.get('namespace')}"
        )
        if self.key:
            problem = f"it has no valid signature of a rank of {metadata['name']}"
            causes = "another user stored it, or the operator of the cluster is older than this allranks"
            return f"{problem} ({causes}): {cure}"
        name = metadata["name"]
        problem = (
            f"another process submitted {name}"
            if result_key.has_key(source.job)
            else f"the ranks of {name} have no key to sign with"
        )
        return f"it is a pickle, which runs code when it is loaded, and {problem}: {cure}"

    def is_forged(self, stored: Stored, source: Source) -> bool:
        """Return whether a record of this process's own job has no valid signature."""
        return self.key is not None and not self.allow_pickle and not self._is_signed(stored, source)

    def _is_signed(self, stored: Stored, source: Source) -> bool:
        head, _, data = stored.content.partition(b"\n")
        end = head[-SIGNATURE_BYTES + 2 :]
        content = head[: len(head) - len(end)] + b"}\n" + data
        uid = source.job["metadata"]["uid"]
        digest = call_function.mac(self.key or b"", content, uid, str(source.attempt), source.kind, source.rank)
        return hmac.compare_digest(SIGNATURE % digest, end)
