"""Terminals: which of them can be drawn on, what becomes of typed keys, and a screen that is all ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Lines = Callable[[int, int, bool], Iterable[Sequence[tuple[str, str]]]]
"""(width, height, whether more than ASCII can be shown) -> lines of (text, style)."""


def terminal(stream: TextIO, colour: bool) -> Console | None:
    """None where rich is not installed, or the terminal cannot move its cursor."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(file=stream, no_color=not colour, highlight=False, markup=False)
    return None if console.is_dumb_terminal or not console.is_terminal else console


def set_keys(number: int, *, echo: bool, lines: bool = True) -> None:
    """Whether the terminal of this descriptor shows what is typed, and hands it on by lines or key by key."""
    import termios

    try:
        if os.tcgetpgrp(number) != os.getpgrp():
            return  # in the background; changing the terminal would stop us
        settings = termios.tcgetattr(number)
        for flag, on in ((termios.ECHO, echo), (termios.ICANON, lines)):
            settings[3] = settings[3] | flag if on else settings[3] & ~flag
        termios.tcsetattr(number, termios.TCSANOW, settings)
    except (OSError, termios.error):
        pass  # it has gone


class Board:
    """The terminal's other screen, drawn anew each time; the user's own comes back afterwards."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Board:
        set_keys(self._console.file.fileno(), echo=False, lines=False)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        set_keys(self._console.file.fileno(), echo=True)

    def draw(self, lines: Lines) -> None:
        from rich.console import Group
        from rich.text import Text

        from allranks.cli.format.plots import draws

        unicode = draws(self._console.encoding)
        made = lines(self._console.width, self._console.height, unicode)
        texts = (Text.assemble(*line, no_wrap=True, overflow="crop") for line in made)
        self._live.update(Group(*texts), refresh=True)
