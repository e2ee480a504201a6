"""`allranks operator`: runs the operator, with a flag for each of its settings."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any, get_args

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from allranks.errors import AllranksError
from allranks.operator.settings import Settings

EXAMPLES = """\b
Examples:
  allranks operator                                   # inside a cluster: all namespaces
  allranks operator --kubeconfig ~/.kube/config --log-format text
  allranks operator --namespaces team-a,team-b --no-pools
"""


def _option(name: str, field: FieldInfo) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    if field.annotation is bool:
        kind: dict[str, Any] = {"type": bool, "is_flag": True}
        flag = f"{flag}/--no-{name.replace('_', '-')}"
    else:
        kind = {"type": click.Choice(choices) if choices else str, "metavar": None if choices else "VALUE"}
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    default_text = f" [{'default: ' + str(default) if default not in ('', None) else 'default: none'}]"
    return click.Option([flag], default=None, help=f"{field.description}{default_text}", **kind)


def _run(kubeconfig: str | None, context: str | None, **flags: Any) -> None:
    """Run the operator, which runs the DistributedTraining jobs of a cluster.

    Every flag can also be set as an environment variable, for example --log-level as ALLRANKS_LOG_LEVEL.
    """
    import uvloop

    from allranks.kube.auth import connect
    from allranks.operator import log_config
    from allranks.operator.app import Operator

    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))} (--{str(e['loc'][0]).replace('_', '-')} or "
            f"ALLRANKS_{str(e['loc'][0]).upper()}): {e['msg']}"
            for e in error.errors(include_url=False)
        )
        raise click.UsageError(problems) from error
    log_config.configure(settings.log_level, settings.log_format)
    try:
        operator = Operator(settings, connect(kubeconfig, context))
        # Objects created until here are never freed: excluding them makes each garbage collection 0.1 s shorter.
        gc.collect()
        gc.freeze()
        uvloop.run(operator.run(asyncio.Event()))
    except AllranksError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        ports = str(settings.port)
        ports += f", {settings.probe_port} for probes" if settings.probe_port else ""
        ports += f", or {settings.report_port} for reports" if settings.report_url else ""
        click.echo(f"Error: port {ports}: {error.strerror or error}", err=True)
        sys.exit(1)


operator = click.Command(
    "operator",
    callback=_run,
    params=[
        click.Option(
            ["--kubeconfig"],
            metavar="FILE",
            help="The kubeconfig file. [default: $KUBECONFIG, or the pod's service account]",
        ),
        click.Option(["--context"], metavar="NAME", help="The kubeconfig context. [default: the current context]"),
        *(_option(name, field) for name, field in Settings.model_fields.items()),
    ],
    help=_run.__doc__,
    epilog=EXAMPLES,
    hidden=True,
)
