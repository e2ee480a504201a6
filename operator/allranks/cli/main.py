"""The command `allranks`: which subcommands there are, and how errors are told."""

from __future__ import annotations

import importlib
import sys

import click

from allranks.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("allranks.cli.run:run", "Run a job on this machine."),
    "validate": ("allranks.cli.render:validate", "Check a manifest, with every error at once."),
    "render": ("allranks.cli.render:render", "Print the objects that the cluster would get."),
    "inject": ("allranks.cli.inject:inject", "Copy the in-pod helpers into a directory (an init container runs this)."),
}
"""Name -> (where the command is, what it does): the command's module is imported when it is used."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it or to print its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


EXAMPLES = """\b
Examples:
  allranks run examples/penguins-pytorch.yaml
  allranks run job.yaml --set roles.worker.replicas=2 --volume data=./data
  allranks validate job.yaml
  allranks render job.yaml | kubectl apply --dry-run=server -f -
"""


@click.group(cls=LazyGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="allranks")
def cli() -> None:
    """Distributed training jobs, on Kubernetes and on this machine.

    A job is a manifest of kind DistributedTraining: PyTorch, TensorFlow or Horovod ranks that are started together,
    told of one another, watched, and restarted for the right reason.
    """
    # A reader that went away (`allranks render | head`) is not an error.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
