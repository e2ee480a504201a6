"""What is observed of the uploads of outputs."""

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
    """Why it failed."""
