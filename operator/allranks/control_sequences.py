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
_COLOUR = re.compile(r"\x1b\[([0-9;:]*)m")
_LEGIBLE = frozenset(map(str, (0, 1, 2, 3, 4, 22, 23, 24, *range(31, 37), 39, *range(90, 97))))
"""Parameters of colours that may pass: weights, and the colours of text that are legible on black and on white. Without
backgrounds and without conceal, no text is hidden."""
_MOST_PARAMETERS = 16
_OPEN_COLOUR = re.compile(r"\x1b\[(?!0?m)[0-9;:]*m[^\x1b\n]*(?=\n|\Z)")
_RESET = "\x1b[0m"


def last_state(line: bytes) -> bytes:
    """Return the last state of a line: a progress bar redraws its line after `\r`."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


_UP = re.compile(rb"\x1b\[(\d{0,3})A")
PARTIAL = re.compile(rb"\x1b(?:\[\d{0,3})?$")
"""A sequence that the next output may complete to one that moves the cursor up."""


def moved_up(output: bytes) -> int:
    """Return by how many lines output moves the cursor up, as it does to redraw a progress bar below others."""
    return sum(int(number or 1) for number in _UP.findall(output))


def clean(line: bytes, colour: bool) -> str:
    """Return a line that is safe to print: without control sequences, except colours if `colour` is set."""
    text = line.decode("utf-8", errors="replace")
    if text.isprintable():
        return text
    text = _removed(text, colour)
    return text + _RESET if "\x1b" in text else text


def clean_text(text: str, colour: bool) -> str:
    """Clean text of several lines, as `clean` does. Colours end at the end of their line."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    text = _removed(text, colour)
    return _OPEN_COLOUR.sub(lambda match: match[0] + _RESET, text) if colour else text


def _removed(text: str, colour: bool) -> str:
    return _SEQUENCE.sub(lambda match: _plain_colours(match[0]) if colour else "", text)


def _plain_colours(sequence: str) -> str:
    """Return the sequence with the parameters that may pass; empty if none may, or if it sets no colour."""
    match = _COLOUR.fullmatch(sequence)
    parameters = [text or "0" for text in match[1].split(";")] if match else []
    if len(parameters) > _MOST_PARAMETERS:
        return ""
    kept = []
    while parameters:
        parameter = parameters.pop(0)
        if parameter in ("38", "48", "58"):  # the numbers of one of 256 colours, or of red, green and blue
            del parameters[: {"5": 2, "2": 4}.get(parameters[0], 0) if parameters else 0]
        elif parameter in _LEGIBLE:
            kept.append(parameter)
    return f"\x1b[{';'.join(kept)}m" if kept else ""
