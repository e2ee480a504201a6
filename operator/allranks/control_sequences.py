"""Removes terminal control sequences from untrusted text before it is printed."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_RESET = "\x1b[0m"


def clean(line: bytes, colour: bool) -> str:
    """One line that is safe to print: without control sequences, except colours if `colour` is set."""
    text = line.decode("utf-8", errors="replace")
    if text.isprintable():
        return text
    text = _SEQUENCE.sub(lambda match: match[0] if colour and match[0].endswith("m") and "[" in match[0] else "", text)
    return text + _RESET if "\x1b" in text else text
