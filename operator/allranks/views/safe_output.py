"""The only way to the terminal: stdout and stderr without control sequences other than the colours of text.

Commands print logs, messages and names that other people wrote. Each write is cleaned here, so that no command has to
remember it. The live views, which move the cursor on purpose, are drawn by rich on the unguarded stream, through a
console that cleans the text between rich's own control codes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO, cast

from allranks.control_sequences import clean_text

if TYPE_CHECKING:
    from rich.console import Console


def guard_output() -> None:
    """Replace sys.stdout and sys.stderr by streams that clean what is written to them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _GuardedStream):
            setattr(sys, name, cast("TextIO", _GuardedStream(stream)))


def unguard_output() -> None:
    """Restore sys.stdout for a protocol, which a program reads."""
    if isinstance(sys.stdout, _GuardedStream):
        sys.stdout = sys.stdout.stream


def use_colour(stream: TextIO) -> bool:
    """Return whether text on this stream may have colours: on a terminal that has them, without NO_COLOR.

    This is the only decision: streams and consoles remove colours wherever it is False (https://no-color.org).
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def console(stream: TextIO, colour: bool) -> Console:
    """Return a rich console on this stream. Raise ImportError without rich."""
    from rich.console import Console
    from rich.segment import Segment

    class GuardedConsole(Console):
        def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **options):
                # Segments with control codes are rich's own.
                if segment.control:
                    yield segment
                else:
                    yield Segment(clean_text(segment.text, colour), segment.style if colour else None)

    unguarded = stream.stream if isinstance(stream, _GuardedStream) else stream
    return GuardedConsole(file=unguarded, no_color=not colour, highlight=False, markup=False)


class _GuardedStream:
    """A text stream. It has no `buffer`, because click would write to that."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(clean_text(text, use_colour(self.stream)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.stream, name)
