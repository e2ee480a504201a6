"""`allranks completion`: prints the script with which a shell completes commands, options, files and names of jobs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM, VARIABLE = "allranks", "_ALLRANKS_COMPLETE"
"""The variable is the one that click reads for a program of this name."""


@click.command(
    epilog="""\b
Install it, then open a new shell:
  bash:  allranks completion bash > ~/.local/share/bash-completion/completions/allranks
  zsh:   allranks completion zsh > ~/.zfunc/_allranks     # ~/.zshrc: fpath+=~/.zfunc; autoload -Uz compinit; compinit
  fish:  allranks completion fish > ~/.config/fish/completions/allranks.fish
\b
In this shell only:
  eval "$(allranks completion bash)"
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, files, the names of jobs and namespaces of the cluster, and stored runs.
    """
    completion_class = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    assert completion_class is not None  # click has these shells
    click.echo(completion_class(root, {}, PROGRAM, VARIABLE).source().strip())
