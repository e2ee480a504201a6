"""`allranks ui`, with a browser on this machine, and `allranks ui-server`, which the chart starts in a cluster
(`ui.enabled`)."""

from __future__ import annotations

import html
import os
import secrets
import socket
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from allranks.cli.archived import archive_option
from allranks.cli.options import FAILED, cluster_options, print_error, root_option
from allranks.errors import AllranksError
from allranks.extras import install_command
from allranks.kube.cluster import Where
from allranks.ui.server import HOST, PORT, everywhere, listen

if TYPE_CHECKING:
    from fastapi import FastAPI

CLUSTER_AUTHORITY = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


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

    The server uses your kubeconfig and runs until Ctrl-C. It listens on 127.0.0.1 only, and the address has a random
    name and a random token: share neither. Without a cluster it shows only the runs of `allranks run`. With an archive,
    the history has the jobs that are deleted, with their logs.
    """
    if all_namespaces and where.namespace:
        raise click.UsageError("specify either -n or -A, not both.")
    try:
        import uvicorn  # noqa: F401

        from allranks.ui.app import application
        from allranks.ui.sessions import private_host
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
    host = f"{private_host(token)}:{listener.getsockname()[1]}"
    address = f"http://{host}/{path.lstrip('/')}{'&' if '?' in path else '?'}token={token}"
    _serve(app, listener, address, browser=not no_browser)


def _serve(app: FastAPI, listener: socket.socket, address: str, *, browser: bool) -> None:
    """Serve until Ctrl-C. Print the address when the server answers."""
    from allranks.ui.http_server import run_server

    with tempfile.TemporaryDirectory(prefix="allranks-ui-") as folder:
        page = Path(folder) / "open.html"

        def started() -> None:
            click.echo(f"allranks ui: {address}")
            click.echo("Ctrl-C ends it.", err=True)
            sys.stdout.flush()
            if browser and _reads_private_files():
                write_page(page, address)
                # A browser in the terminal would block the server.
                threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
            elif browser:
                click.echo("A browser from a snap cannot read the page to open: open the address yourself.", err=True)

        app.state.opened = lambda: page.unlink(missing_ok=True)
        run_server(app, listener, started)


SNAPS = Path("/snap/bin")


def _reads_private_files() -> bool:
    """Return whether the browser may read files in the directory for temporary files. One from a snap has its own."""
    try:
        names = {Path(webbrowser.get().name).name}
    except webbrowser.Error:
        return True  # webbrowser.open does nothing
    if names & {"xdg-open", "x-www-browser", "www-browser", "gnome-open"}:
        names = {"firefox", "chromium"}
    return not any((SNAPS / name).exists() for name in names)


def write_page(page: Path, address: str) -> None:
    """Write a page that loads the address, readable only for this user.

    Everybody on the machine can read the arguments of the browser's process, so they name this file, not the token.
    """
    target = html.escape(address)
    text = f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={target}">'
    with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f'{text}<title>allranks</title><a href="{target}">allranks</a>\n')


@click.command(
    "ui-server",
    epilog="""\b
Example, beside `kubectl proxy --port 8001 --reject-methods=NONE`:
  allranks ui-server --api-server http://127.0.0.1:8001
""",
)
@click.option(
    "--port",
    envvar="ALLRANKS_UI_PORT",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port, on all addresses; 0 selects a free port.",
)
@click.option(
    "--api-server",
    envvar="ALLRANKS_UI_API_SERVER",
    metavar="URL",
    help="The API server. [default: the API server of this pod's cluster]",
)
@click.option(
    "--certificate-authority",
    envvar="ALLRANKS_UI_CERTIFICATE_AUTHORITY",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the authority of the API server's certificate. [default: the pod's file, else the machine's]",
)
@click.option(
    "--namespaces",
    envvar="ALLRANKS_UI_NAMESPACES",
    default="",
    metavar="NAMES",
    help="Namespaces to suggest to users who may not list the jobs of all, separated by commas.",
)
@archive_option
def ui_server(
    port: int, api_server: str | None, certificate_authority: Path | None, namespaces: str, archive: str | None
) -> None:
    """Serve pages and REST for all users of a cluster, each with the rights of the user's own token.

    The server has no rights. A token comes with each request (Authorization: Bearer), for example from an OIDC proxy in
    front of the server, or from its sign-in page. The archive is read with the credentials of the server, and each user
    sees what the user may read of jobs, Events and logs in their namespaces.
    """
    from allranks.archive.store import ArchiveError
    from allranks.kube.auth import Connection, service_url
    from allranks.ui.app import in_cluster
    from allranks.ui.http_server import run_server

    url = (api_server or service_url()).rstrip("/")
    if not url:
        raise click.UsageError("this is not a pod of a cluster: name the API server with --api-server URL")
    authority = certificate_authority or (CLUSTER_AUTHORITY if CLUSTER_AUTHORITY.exists() else None)
    api = Connection(url, str(authority) if authority else None)
    try:
        app = in_cluster(api, [name for name in namespaces.split(",") if name], archive or None)
        listener = everywhere(port)
    except ArchiveError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"Error: cannot serve port {port}: {error.strerror or error}", err=True)
        sys.exit(1)
    bound = listener.getsockname()[1]
    run_server(app, listener, lambda: click.echo(f"allranks ui-server: port {bound}, for {url}", err=True))
