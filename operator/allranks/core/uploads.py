"""What is observed of the transfers of inputs and outputs, and where they keep their files on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Upload:
    """The state of the upload of an output."""

    state: Literal["Uploading", "Uploaded", "Failed"]
    bytes: int | None = None
    files: int | None = None
    message: str = ""
    """Why it failed, or what keeps it from going on."""
    where: str = ""
    """Where the files are, as a part of a sentence."""


@dataclass(frozen=True, slots=True)
class DataStore:
    """Settings of a cluster for inputs that are fetched and for outputs."""

    claim: str
    """Name of the claim, in each namespace of jobs, with the cache of inputs and the directories of outputs."""
    image: str
    """Image of the pods that transfer files: allranks with its extra `data`."""
    cache_bytes: int
    """Bytes of inputs that the claim holds before what was used longest ago is evicted."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What the unfinished jobs of a namespace have in the cache of inputs."""

    keys: tuple[str, ...]
    """Names of entries (`cache_key`), sorted."""
