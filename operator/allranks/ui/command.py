"""`allranks ui`: serves pages and REST on this machine, and opens the browser."""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.archived import archive_option
from allranks.cli.commands.runs import root_option
from allranks.cli.options import FAILED, cluster_options, print_error
from allranks.errors import AllranksError
from allranks.extras import install_command
from allranks.kube.cluster import Where

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

HOST = "127.0.0.1"
PORT = 8765
CLOSE_SECONDS = 3
"""How long open connections may take to end after Ctrl-C."""


@click.command(
    epilog="""\b
Examples:
  allranks ui
  allranks ui -n team
  allranks ui -A --no-browser --port 9000
  allranks ui --archive s3://team/history
"""
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"The port, on {HOST} only; 0 for any free port. [default: {PORT}, or a free one if it is in use]",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@click.option("--path", default="/", metavar="PATH", help="The page to open, for example /runs/penguins.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of all namespaces.")
@archive_option
@root_option
@cluster_options
def ui(
    where: Where,
    port: int | None,
    no_browser: bool,
    path: str,
    all_namespaces: bool,
    archive: str | None,
    root: Path,
) -> None:
    """Show jobs of the cluster, and runs of this machine, in the browser.

    The server uses your kubeconfig and runs until Ctrl-C. It listens on this machine only, and the address has a random
    token: share neither. Without a cluster it shows only the runs of `allranks run`. With an archive, the
    history has the jobs that are deleted, with their logs.
    """
    if all_namespaces and where.namespace:
        raise click.UsageError("specify either -n or -A, not both.")
    try:
        import uvicorn  # noqa: F401

        from allranks.ui.app import application
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"allranks ui needs the Python package {error.name}, which is not installed: {install_command('ui')}"
        ) from error
    token = secrets.token_urlsafe(24)
    try:
        app = application(where, all_namespaces=all_namespaces, runs=root, token=token, archive=archive or None)
        listener = listen(port)
    except AllranksError as error:
        print_error(error)
        sys.exit(FAILED)
    address = f"http://{HOST}:{listener.getsockname()[1]}/{path.lstrip('/')}{'&' if '?' in path else '?'}token={token}"
    _serve(app, listener, address, browser=not no_browser)


def listen(port: int | None) -> socket.socket:
    """A socket on this machine only. Raises AllranksError if the port is in use."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for tried in (PORT, 0) if port is None else (port,):
        try:
            listener.bind((HOST, tried))
        except OSError as error:
            if tried == PORT and port is None:
                continue
            listener.close()
            raise AllranksError(
                f"--port {tried}: cannot listen on {HOST}:{tried}: {(error.strerror or str(error)).lower()}"
            ) from error
        listener.listen()
        return listener
    raise AssertionError("port 0 is always free")


def server_config(app: FastAPI, **options: Any) -> uvicorn.Config:
    """The same loop and protocols wherever the server runs, whatever else is installed."""
    import uvicorn

    return uvicorn.Config(app, loop="asyncio", http="h11", ws="none", server_header=False, **options)


def _serve(app: FastAPI, listener: socket.socket, address: str, *, browser: bool) -> None:
    """Serves until Ctrl-C. The address is printed when the server answers."""

    def started() -> None:
        click.echo(f"allranks ui: {address}")
        click.echo("Ctrl-C ends it.", err=True)
        sys.stdout.flush()
        if browser:
            # A browser in the terminal would block the server.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    run_server(app, listener, started)


def run_server(app: FastAPI, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serves until a signal. `started` is called when the server answers."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.close_streams()
            await super().shutdown(sockets)

    config = server_config(app, log_level="warning", timeout_graceful_shutdown=CLOSE_SECONDS)
    with listener:
        Server(config).run(sockets=[listener])
