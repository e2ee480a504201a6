"""Terminal control: detection, keyboard modes and the alternate screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from allranks.views.format.plots import supports_unicode
from allranks.views.format.table import Grid
from allranks.views.safe_output import console

if TYPE_CHECKING:
    from rich.console import Console

Line = Sequence[tuple[str, str]]
"""A line of (text, style)."""
Content = Callable[[int, int, bool], Iterable[Line | Grid]]
"""(width, height, whether the terminal supports Unicode) -> lines and tables."""


def terminal(stream: TextIO, colour: bool) -> Console | None:
    """Return None if rich is not installed or the terminal cannot move its cursor."""
    try:
        screen = console(stream, colour)
    except ImportError:
        return None
    return None if screen.is_dumb_terminal or not screen.is_terminal else screen


def set_keys(number: int, *, echo: bool, lines: bool = True) -> None:
    """Set whether the terminal of file descriptor `number` echoes keys, and buffers input by lines."""
    import termios

    try:
        if os.tcgetpgrp(number) != os.getpgrp():
            return  # in the background, changing the terminal would stop this process
        settings = termios.tcgetattr(number)
        for flag, on in ((termios.ECHO, echo), (termios.ICANON, lines)):
            settings[3] = settings[3] | flag if on else settings[3] & ~flag
        termios.tcsetattr(number, termios.TCSANOW, settings)
    except (OSError, termios.error):
        pass  # the terminal is gone


class FullScreen:
    """The alternate screen of the terminal. The previous screen is restored at the end."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> FullScreen:
        set_keys(self._console.file.fileno(), echo=False, lines=False)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        set_keys(self._console.file.fileno(), echo=True)

    def draw(self, content: Content) -> None:
        from rich.console import Group
        from rich.text import Text

        items = content(self._console.width, self._console.height, supports_unicode(self._console.encoding))
        drawn = (
            item.rich(wrap=False) if isinstance(item, Grid) else Text.assemble(*item, no_wrap=True, overflow="crop")
            for item in items
        )
        self._live.update(Group(*drawn), refresh=True)
