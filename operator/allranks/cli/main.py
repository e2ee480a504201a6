"""The command `allranks`: which subcommands there are, and how errors are told."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import click

from allranks.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("allranks.cli.commands.run:run", "Run a job on this machine."),
    "validate": ("allranks.cli.commands.render:validate", "Check a manifest, with every error at once."),
    "render": ("allranks.cli.commands.render:render", "Print the objects that the cluster would get."),
    "submit": ("allranks.cli.commands.submit:submit", "Create a job on a cluster, and follow it if you like."),
    "get": ("allranks.cli.commands.get:get", "Print jobs, as a table or whole; watch them."),
    "list": ("allranks.cli.commands.get:list_", "Print the jobs of a namespace."),
    "describe": (
        "allranks.cli.commands.describe:describe",
        "Tell about a job: ranks, the last failure, events.",
    ),
    "top": ("allranks.cli.commands.top:top", "Show what jobs are doing, live: progress, rates, ranks, goodput."),
    "report": ("allranks.cli.commands.report:report", "Tell what became of a job, on one page: text, HTML or JSON."),
    "logs": ("allranks.cli.commands.logs:logs", "Print what all ranks print, merged."),
    "wait": ("allranks.cli.commands.wait:wait", "Wait until a job is over."),
    "suspend": ("allranks.cli.commands.change:suspend", "Delete a job's pods and keep the job."),
    "resume": ("allranks.cli.commands.change:resume", "Let a suspended job go on."),
    "scale": ("allranks.cli.commands.change:scale", "Change the number of workers."),
    "delete": ("allranks.cli.commands.change:delete", "Delete jobs and all that belongs to them."),
    "operator": ("allranks.cli.commands.operator:operator", "Run the operator: carry out jobs on a cluster."),
    "inject": (
        "allranks.cli.commands.inject:inject",
        "Copy the in-pod helpers into a directory (for init containers).",
    ),
}
"""Name -> (where the command is, what it does): the command's module is imported when it is used."""

SECTIONS = {
    "On this machine": ("run", "validate", "render"),
    "On a cluster": (
        *("submit", "get", "list", "describe", "top", "report", "logs", "wait"),
        *("suspend", "resume", "scale", "delete"),
    ),
}
"""How the help groups them; the rest is what pods of a cluster run."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only to run it or to print its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            _explain(cmd_name, error)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            _explain(ctx.invoked_subcommand or "", error)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped = {name for names in SECTIONS.values() for name in names}
        rest = tuple(name for name in COMMANDS if name not in grouped)
        for title, names in (*SECTIONS.items(), ("In pods", rest)):
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])


def _explain(command: str, error: ModuleNotFoundError) -> NoReturn:
    """Raises a message that names the extra to install, if a package that is not allranks' own is missing."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "allranks"):
        raise error
    extra = "operator" if command == "operator" else "cli"
    raise click.ClickException(
        f"allranks {command} needs the Python package {package}, which is not installed: "
        f"pip install 'allranks[{extra}]'"
    ) from error


EXAMPLES = """\b
Examples:
  allranks run examples/penguins-pytorch.yaml
  allranks run job.yaml --set roles.worker.replicas=2 --volume data=./data
  allranks validate job.yaml
  allranks render job.yaml | kubectl apply --dry-run=server -f -
  allranks submit job.yaml --logs
  allranks get -w
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
