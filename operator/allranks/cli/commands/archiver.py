"""`allranks archiver`: the process that writes jobs and logs to an archive. The chart starts it (`archive.enabled`)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.log_options import log_options
from allranks.cli.options import cluster_options
from allranks.core.facts.quantity import quantity
from allranks.errors import AllranksError
from allranks.kube.cluster import Where

if TYPE_CHECKING:
    from allranks.archive.archiver import Archiver


class Bytes(click.ParamType[int | None]):
    """A number of bytes, such as `4Mi` or `50Gi`."""

    name = "bytes"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int | None:
        if isinstance(value, int):
            return value
        if not str(value).strip():
            return None
        try:
            number = int(quantity(str(value)))
        except (ValueError, OverflowError):
            number = 0
        if number < 1:
            self.fail(f"{value!r} is not a number of bytes, such as 4Mi or 50Gi", parameter, context)
        return number


@click.command(
    epilog="""\b
Example:
  allranks archiver --archive /var/lib/archive --log-format text
""",
)
@click.option(
    "--archive",
    envvar="ALLRANKS_ARCHIVE",
    required=True,
    metavar="DIR|URL",
    help="The archive: a directory that exists, or an address such as s3://BUCKET/PREFIX.",
)
@click.option(
    "--namespaces",
    envvar="ALLRANKS_NAMESPACES",
    default="",
    metavar="NAMES",
    help="Only these namespaces, separated by commas. [default: all of them]",
)
@click.option(
    "--log-bytes",
    envvar="ALLRANKS_ARCHIVE_LOG_BYTES",
    type=Bytes(),
    default="4Mi",
    show_default=True,
    help="The end of each log that is kept, before it is compressed.",
)
@click.option(
    "--logs",
    envvar="ALLRANKS_ARCHIVE_LOGS",
    type=click.IntRange(4, 4096),
    default=256,
    show_default=True,
    help="Logs that are read at the same time. Each takes up to twice --log-bytes of the spool.",
)
@click.option(
    "--max-age-days",
    envvar="ALLRANKS_ARCHIVE_MAX_AGE_DAYS",
    type=click.FloatRange(min=0),
    default=90,
    show_default=True,
    help="Delete jobs and sweeps this number of days after they were last written. 0: keep them.",
)
@click.option(
    "--max-bytes",
    envvar="ALLRANKS_ARCHIVE_MAX_BYTES",
    type=Bytes(),
    metavar="BYTES",
    help="Delete the oldest jobs and sweeps, while the archive is larger. Empty: no limit.",
)
@click.option(
    "--spool",
    envvar="ALLRANKS_ARCHIVE_SPOOL",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory for logs that are being read. [default: the system's directory]",
)
@click.option(
    "--address",
    envvar="ALLRANKS_ADDRESS",
    default="",
    metavar="ADDRESS",
    help="Address of the port. [default: all addresses, IPv4 and IPv6]",
)
@click.option(
    "--port",
    envvar="ALLRANKS_PORT",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of /metrics, /healthz and /readyz; 0 selects a free port.",
)
@log_options
@cluster_options
def archiver(
    where: Where,
    archive: str,
    namespaces: str,
    log_bytes: int,
    logs: int,
    max_age_days: float,
    max_bytes: int | None,
    spool: Path | None,
    address: str,
    port: int,
    log_level: str,
    log_format: str,
) -> None:
    """Write jobs, sweeps, their Events and the ends of logs to an archive, where they stay when they are deleted.

    It reads jobs, sweeps, pods, logs and Events, and changes no job. Where it may read Secrets, the values that pods
    have as variables are masked. allranks get --all, logs and report read the archive.
    """
    from allranks.archive.archiver import Archiver, Settings
    from allranks.kube.auth import connect
    from allranks.operator import log_config

    log_config.configure(log_level, log_format)
    settings = Settings(
        archive,
        tuple(name for name in namespaces.split(",") if name) or ((where.namespace,) if where.namespace else ()),
        log_bytes or 4 << 20,
        logs,
        max_age_days * 86_400 or None,
        max_bytes,
        spool,
        address,
        port,
    )
    try:
        asyncio.run(_run_until_stopped(Archiver(settings, connect(where.kubeconfig, where.context))))
    except AllranksError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        click.echo(f"Error: cannot serve port {port}: {error.strerror or error}", err=True)
        sys.exit(1)


async def _run_until_stopped(archiver: Archiver) -> None:
    """Run until SIGTERM or SIGINT. Raise the error that ends the archiver."""
    running = asyncio.create_task(archiver.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
