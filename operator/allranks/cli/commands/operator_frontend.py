"""`allranks operator-frontend`: the process of the operator's pod that parses HTTP. The chart starts it."""

from __future__ import annotations

import asyncio
import gc
import sys

import click

from allranks.cli.log_options import log_options

EXAMPLES = """\b
Example, beside `allranks operator --socket /tmp/operator.sock`:
  allranks operator-frontend --socket /tmp/operator.sock --report-port 8081 --log-format text
"""
_PORT = click.IntRange(0, 65535)


@click.command("operator-frontend", epilog=EXAMPLES)
@click.option(
    "--socket", envvar="ALLRANKS_SOCKET", required=True, metavar="PATH", help="The --socket of `allranks operator`."
)
@click.option(
    "--address",
    envvar="ALLRANKS_ADDRESS",
    default="",
    metavar="ADDRESS",
    help="Address of all ports. [default: all addresses, IPv4 and IPv6]",
)
@click.option(
    "--port",
    envvar="ALLRANKS_PORT",
    default=8080,
    show_default=True,
    type=_PORT,
    help="Port of /metrics, /healthz and /readyz; 0 selects a free port.",
)
@click.option(
    "--probe-port",
    envvar="ALLRANKS_PROBE_PORT",
    type=_PORT,
    help="Additional port of /healthz, /readyz and /livez for the kubelet. [default: none]",
)
@click.option(
    "--report-port",
    envvar="ALLRANKS_REPORT_PORT",
    type=_PORT,
    help="Port that receives reports. [default: none: reports are disabled]",
)
@log_options
def operator_frontend(
    socket: str,
    address: str,
    port: int,
    probe_port: int | None,
    report_port: int | None,
    log_level: str,
    log_format: str,
) -> None:
    """Serve the operator's ports for metrics, probes and reports in a process without any rights.

    It parses HTTP and asks `allranks operator --socket PATH` for everything else. Every option can also be set as an
    environment variable, for example --port as ALLRANKS_PORT.
    """
    import uvloop

    from allranks.operator import log_config
    from allranks.operator.ports.frontend import Frontend
    from allranks.operator.ports.http_servers import Ports

    log_config.configure(log_level, log_format)

    async def run() -> None:
        await Frontend(Ports(address, port, probe_port, report_port), socket).run(asyncio.Event())

    gc.collect()
    gc.freeze()
    try:
        uvloop.run(run())
    except OSError as error:
        ports = ", ".join(str(number) for number in (port, probe_port, report_port) if number is not None)
        click.echo(f"Error: cannot serve the ports {ports}: {error.strerror or error}", err=True)
        sys.exit(1)
