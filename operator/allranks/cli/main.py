"""The command `allranks` and its subcommands."""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from allranks.cli.suggestions import FILES, SuggestingGroup
from allranks.extras import Extra, install_command
from allranks.version import __version__
from allranks.views.safe_output import guard_output

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("allranks.cli.commands.run:run", "Run a job on this machine."),
    "sweep": ("allranks.cli.commands.sweep:sweep", "Search for the best parameters of a job on this machine."),
    "verify": ("allranks.cli.commands.verify:verify", "Find out whether a program resumes well after kills."),
    "runs": ("allranks.cli.commands.runs:runs", "List, print and remove the stored runs of this machine."),
    "init": ("allranks.cli.commands.init:init", "Write a commented manifest for a script."),
    "dev": ("allranks.cli.commands.dev:dev", "Run a job on this machine, and restart it when files change."),
    "validate": ("allranks.cli.commands.validate:validate", "Validate a manifest and print every error."),
    "convert": ("allranks.cli.commands.convert:convert", "Convert jobs of other operators."),
    "render": ("allranks.cli.commands.render:render", "Print the objects that the operator creates for a job."),
    "plan": ("allranks.cli.commands.plan:plan", "Predict room, start, duration and cost of a job."),
    "submit": ("allranks.cli.commands.submit:submit", "Create jobs on a cluster."),
    "get": ("allranks.cli.commands.get:get", "Print jobs as a table, YAML or JSON; watch them."),
    "describe": ("allranks.cli.commands.describe:describe", "Show details of a job: ranks, last failure, events."),
    "queue": ("allranks.cli.commands.queue:queue", "Show queues: quota, who waits, and for how long."),
    "nodes": ("allranks.cli.commands.nodes:nodes", "Show what failed on nodes, and which jobs avoid them."),
    "top": ("allranks.cli.commands.top:top", "Show live progress, rates, ranks and goodput of jobs."),
    "ui": ("allranks.cli.commands.ui:ui", "Show jobs and runs in the browser."),
    "mcp": ("allranks.cli.commands.mcp:mcp", "Serve jobs to an assistant (Model Context Protocol)."),
    "report": ("allranks.cli.commands.report:report", "Print a one-page report on a job, as text, HTML or JSON."),
    "usage": ("allranks.cli.commands.usage:usage", "Sum up GPU-hours, cost, goodput and queue time of jobs."),
    "logs": ("allranks.cli.commands.logs:logs", "Print the merged logs of all ranks."),
    "checkpoints": ("allranks.cli.commands.checkpoints:checkpoints", "Print the newest checkpoints of a job."),
    "stacks": ("allranks.cli.commands.stacks:stacks", "Print what the threads of each rank do at the moment."),
    "debug": ("allranks.cli.commands.debug:debug", "Write everything about a job into one archive."),
    "wait": ("allranks.cli.commands.wait:wait", "Wait until a job has finished."),
    "exec": ("allranks.cli.commands.kubectl:exec_", "Run a command, or a shell, in the pod of a rank."),
    "attach": ("allranks.cli.commands.kubectl:attach", "Connect the terminal to the program of a rank."),
    "port-forward": ("allranks.cli.commands.kubectl:port_forward", "Make ports of a rank reachable here."),
    "cp": ("allranks.cli.commands.kubectl:cp", "Copy files from or to the pod of a rank."),
    "suspend": ("allranks.cli.commands.actions:suspend", "Suspend jobs: delete their pods and keep the jobs."),
    "resume": ("allranks.cli.commands.actions:resume", "Resume suspended jobs."),
    "restart": ("allranks.cli.commands.actions:restart", "Restart all ranks of jobs in new pods."),
    "promote": ("allranks.cli.commands.promote:promote", "Print the job that continues a trial of a sweep."),
    "scale": ("allranks.cli.commands.actions:scale", "Change the number of workers of a job."),
    "delete": ("allranks.cli.commands.actions:delete", "Delete jobs and everything they own."),
    "doctor": ("allranks.cli.commands.doctor:doctor", "Find what is missing on this machine and on the cluster."),
    "completion": ("allranks.cli.commands.completion:completion", "Print the completion script of a shell."),
    "version": ("allranks.cli.commands.version:version", "Print the versions of allranks and Python."),
}
"""Name -> (module:attribute, one-line help). The module is imported when the command is used."""

HIDDEN = {
    "list": "allranks.cli.commands.get:get",
    "operator": "allranks.cli.commands.operator:operator",
    "operator-frontend": "allranks.cli.commands.operator_frontend:operator_frontend",
    "archiver": "allranks.cli.commands.archiver:archiver",
    "inject": "allranks.cli.commands.inject:inject",
    "ui-server": "allranks.cli.commands.ui:ui_server",
}
"""Name -> module:attribute of commands that the help does not list: programs of pods, and another name of get."""

IN_PODS = ("operator", "operator-frontend", "archiver", "inject", "ui-server")
"""Commands that images and the chart run. The reference describes them."""

SECTIONS = {
    "On this machine": ("run", "sweep", "verify", "runs", "init", "dev", "validate", "convert", "render"),
    "On a cluster": (
        *(
            "plan",
            "submit",
            "get",
            "describe",
            "queue",
            "nodes",
            "top",
            "ui",
            "mcp",
            "report",
            "usage",
            "logs",
            "stacks",
        ),
        *("checkpoints", "debug", "wait", "exec", "attach", "port-forward", "cp"),
        *("suspend", "resume", "restart", "promote", "scale", "delete"),
    ),
    "About allranks": ("doctor", "completion", "version"),
}
"""Groups in the help."""

SYNONYMS = {
    **dict.fromkeys(("ls", "ps", "jobs"), "get"),
    **dict.fromkeys(("queues", "squeue", "quota"), "queue"),
    **dict.fromkeys(("estimate", "predict", "forecast"), "plan"),
    **dict.fromkeys(("apply", "create", "sbatch"), "submit"),
    **dict.fromkeys(("sacct", "sreport", "history", "cost", "accounting"), "usage"),
    **dict.fromkeys(("start", "train", "launch"), "run"),
    **dict.fromkeys(("rm", "remove", "cancel", "kill", "scancel"), "delete"),
    **dict.fromkeys(("stop", "pause"), "suspend"),
    **dict.fromkeys(("status", "show", "explain"), "describe"),
    **dict.fromkeys(("lint", "check"), "validate"),
    **dict.fromkeys(("diagnose", "info", "env", "collect-env"), "doctor"),
    **dict.fromkeys(("ssh", "shell", "sh"), "exec"),
    **dict.fromkeys(("bundle", "dump", "support-bundle"), "debug"),
    **dict.fromkeys(("tune", "search", "optimize", "hpo"), "sweep"),
    "forward": "port-forward",
    "copy": "cp",
    **dict.fromkeys(("new", "scaffold"), "init"),
    "continue": "resume",
    "template": "render",
    "follow": "logs",
    "watch": "top",
    **dict.fromkeys(("py-spy", "pystack", "stack", "traceback"), "stacks"),
    **dict.fromkeys(("dashboard", "web", "open"), "ui"),
    "help": "--help",
    "completions": "completion",
}


class LazyGroup(SuggestingGroup):
    """Imports a command only to run it or to print its help."""

    synonyms = SYNONYMS

    def explain(self, name: str) -> str:
        return f"To run it on this machine: allranks run {name}" if name.endswith(FILES) else ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = HIDDEN.get(cmd_name) or COMMANDS.get(cmd_name, ("", ""))[0]
        if not target:
            return None
        module, name = target.split(":")
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
        except KeyboardInterrupt:  # click would print "Aborted!" and exit with 1
            sys.exit(128 + signal.SIGINT)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names without importing the commands: a Tab must be fast."""
        names = [CompletionItem(name, help=COMMANDS[name][1]) for name in COMMANDS if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def _explain(command: str, error: ModuleNotFoundError) -> NoReturn:
    """Raise a message that names the extra to install, if a package that is not allranks' own is missing."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "allranks"):
        raise error
    extras: dict[str, Extra] = {"operator": "operator", "archiver": "archive", "ui": "ui"}
    install = install_command(extras.get(command.partition("-")[0], "cli"))
    raise click.ClickException(
        f"allranks {command} needs the Python package {package}, which is not installed: {install}"
    ) from error


EXAMPLES = """\b
Examples:
  allranks run examples/penguins-pytorch.yaml
  allranks run job.yaml --set roles.worker.replicas=2 --volume data=./data
  allranks validate job.yaml
  allranks render job.yaml | kubectl apply --dry-run=server -f -
  allranks submit job.yaml --logs
  allranks get -w
  allranks doctor
\b
Documentation:
  docs/index.md in the source of allranks; `make docs` builds it as a web site.
  If something does not work: allranks doctor, and docs/guides/troubleshooting.md.
"""


@click.group(cls=LazyGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="allranks")
def cli() -> None:
    """Distributed training jobs, on Kubernetes and on this machine.

    A job is a manifest of kind DistributedTraining: a group of PyTorch, TensorFlow, Horovod, JAX, Ray, MPI or other
    ranks. allranks starts the ranks together, connects them, monitors them and restarts them after failures.
    """
    # Text that the terminal encoding cannot show must not raise an error.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    guard_output()
