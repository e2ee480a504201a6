"""The command `allranks` and its subcommands."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import click

from allranks.cli.safe_output import guard_output
from allranks.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("allranks.cli.commands.run:run", "Run a job on this machine."),
    "runs": ("allranks.cli.commands.runs:runs", "List, print and remove the stored runs of this machine."),
    "validate": ("allranks.cli.commands.validate:validate", "Validate a manifest and print every error."),
    "convert": ("allranks.cli.commands.convert:convert", "Convert manifests of earlier versions to today's form."),
    "render": ("allranks.cli.commands.render:render", "Print the objects that the operator creates for a job."),
    "submit": ("allranks.cli.commands.submit:submit", "Create jobs on a cluster."),
    "get": ("allranks.cli.commands.get:get", "Print jobs as a table, YAML or JSON; watch them."),
    "list": ("allranks.cli.commands.list:list_", "Print the jobs of a namespace."),
    "describe": ("allranks.cli.commands.describe:describe", "Show details of a job: ranks, last failure, events."),
    "top": ("allranks.cli.commands.top:top", "Show live progress, rates, ranks and goodput of jobs."),
    "report": ("allranks.cli.commands.report:report", "Print a one-page report on a job, as text, HTML or JSON."),
    "logs": ("allranks.cli.commands.logs:logs", "Print the merged logs of all ranks."),
    "wait": ("allranks.cli.commands.wait:wait", "Wait until a job has finished."),
    "suspend": ("allranks.cli.commands.suspend:suspend", "Suspend jobs: delete their pods and keep the jobs."),
    "resume": ("allranks.cli.commands.resume:resume", "Resume suspended jobs."),
    "scale": ("allranks.cli.commands.scale:scale", "Change the number of workers of a job."),
    "delete": ("allranks.cli.commands.delete:delete", "Delete jobs and everything they own."),
    "operator": ("allranks.cli.commands.operator:operator", "Run the operator, which runs the jobs of a cluster."),
    "inject": (
        "allranks.cli.commands.inject:inject",
        "Copy the in-pod helpers into a directory, for init containers.",
    ),
}
"""Name -> (module:attribute, one-line help). The module is imported when the command is used."""

SECTIONS = {
    "On this machine": ("run", "runs", "validate", "convert", "render"),
    "On a cluster": (
        *("submit", "get", "list", "describe", "top", "report", "logs", "wait"),
        *("suspend", "resume", "scale", "delete"),
    ),
}
"""Groups in the help. The other commands run in pods."""


class LazyGroup(click.Group):
    """Imports a command only to run it or to print its help."""

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

    A job is a manifest of kind DistributedTraining: a group of PyTorch, TensorFlow or Horovod ranks. allranks starts
    the ranks together, connects them, monitors them and restarts them after failures.
    """
    # Text that the terminal encoding cannot show must not raise an error.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    guard_output()
