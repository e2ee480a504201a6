"""`allranks ui-server`: pages and REST for all users of a cluster. The chart starts it (`ui.enabled`)."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import click

from allranks.cli.archived import archive_option

CLUSTER_AUTHORITY = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


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
    help="The API server. [default: that of the cluster of this pod]",
)
@click.option(
    "--certificate-authority",
    envvar="ALLRANKS_UI_CERTIFICATE_AUTHORITY",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file with the authority of the API server's certificate. [default: that of this pod, else the machine's]",
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
    from allranks.ui.command import run_server

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


def everywhere(port: int) -> socket.socket:
    """A listening socket on all addresses, IPv4 and IPv6. Raises OSError."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
