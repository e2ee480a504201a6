"""Command groups whose error for an unknown command suggests the command that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import click

FILES = (".py", ".ipynb", ".yaml", ".yml", ".json")
"""Endings of files that users name in the place of a command or a job."""


class SuggestingGroup(click.Group):
    """`No such command 'valdate'. Did you mean 'validate'?`"""

    synonyms: Mapping[str, str] = {}
    """Words that other tools use -> command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name[:1] != "-" and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command {name!r}.{self._hint(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def _hint(self, ctx: click.Context, name: str) -> str:
        if advice := self.explain(name):
            return f" {advice}"
        commands = suggestions(name, self.list_commands(ctx), self.synonyms)
        return f" Did you mean {' or '.join(map(repr, commands))}?" if commands else ""

    def explain(self, name: str) -> str:
        """Return advice on a word that is no command; empty for the commands that resemble it."""
        return ""


def suggestions(name: str, commands: Iterable[str], synonyms: Mapping[str, str]) -> list[str]:
    """Return the commands that are most like the name, at most three."""
    word = name.lower()
    if word in synonyms:
        return [synonyms[word]]
    names = list(commands)
    return difflib.get_close_matches(word, names, n=3, cutoff=0.6) or [
        command for command in names if len(word) > 1 and command.startswith(word)
    ]
