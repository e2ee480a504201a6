"""Removes terminal control sequences and invisible characters from untrusted text before it is printed."""

from __future__ import annotations

import re

INVISIBLE = (
    "\u2028\u2029"  # line separators
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls, which reorder the rest of a line
    "\u00ad\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"  # zero width, and deprecated formats
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"  # formats, tags
)
"""Characters that are not displayed, for a character class of a regular expression: two names that look equal may
differ in them, and the order on the screen may differ from the text (https://trojansource.codes)."""

_SEQUENCE = re.compile(
    # Strings: titles, links, the clipboard, device control. \x80-\x9f are the one-character forms of ESC sequences.
    r"(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor movements
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    rf"|[{INVISIBLE}]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_OPEN_COLOUR = re.compile(r"\x1b\[(?!0?m)[0-9;:]*m[^\x1b\n]*(?=\n|\Z)")
_RESET = "\x1b[0m"


def last_state(line: bytes) -> bytes:
    """Return the last state of a line: a progress bar redraws its line after `\r`."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def clean(line: bytes, colour: bool) -> str:
    """Return a line that is safe to print: without control sequences, except colours if `colour` is set."""
    text = line.decode("utf-8", errors="replace")
    if text.isprintable():
        return text
    text = _removed(text, colour)
    return text + _RESET if "\x1b" in text else text


def clean_text(text: str, colour: bool) -> str:
    """Clean text of several lines, as `clean` does. Colours end at the end of their line."""
    if not _SEQUENCE.search(text):
        return text
    text = _removed(text, colour)
    return _OPEN_COLOUR.sub(lambda match: match[0] + _RESET, text) if colour else text


def _removed(text: str, colour: bool) -> str:
    return _SEQUENCE.sub(lambda match: match[0] if colour and _COLOUR.fullmatch(match[0]) else "", text)
