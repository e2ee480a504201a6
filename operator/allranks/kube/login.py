"""One API server, from the user's kubeconfig or from inside a pod.

The official client finds the server and the credentials (contexts, exec plugins, tokens that expire). The requests are
our own: its classes drop fields that they do not know, cannot ask for the columns that `kubectl get` prints, and would
take a thread for each of the logs that are followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.errors import ClusterError
from allranks.kube.errors import Asked, refusal
from allranks.version import __version__

if TYPE_CHECKING:
    import aiohttp

Manifest = dict[str, Any]
Query = Mapping[str, str | int | None]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}"
"""The answer as `kubectl get` prints it, by the CRD's own columns."""

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
TRIES = 4
_NAMESPACE_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster and namespace, as the user said: None is what the kubeconfig says."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


@dataclass
class Cluster:
    """A session with an API server. Paths are those of the API, answers are plain manifests."""

    namespace: str
    """Of the command: the user's, or the context's."""
    context: str
    wanted_namespace: str | None = None
    """Only if the user named one."""
    interrupted: str = ""
    """What Ctrl-C leaves behind, for people."""
    _configuration: Any = None
    _session: aiohttp.ClientSession | None = None
    _server_name: str | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, where: Where) -> AsyncIterator[Cluster]:
        """Raises ClusterError where no cluster is configured. Whether it answers shows at the first request."""
        try:
            import aiohttp
            import kubernetes.config  # noqa: F401
            import msgspec  # noqa: F401  (pods are read with it)
        except ImportError as error:
            needed = "the commands for clusters need further Python packages"
            raise ClusterError(f"{needed} ({error}): pip install 'allranks[cli]'") from error
        configuration, namespace, context = _configured(where)
        connector = aiohttp.TCPConnector(limit=0, ssl=_tls(configuration), socket_factory=_socket)
        async with aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=1 << 18) as session:
            yield cls(
                namespace=where.namespace or namespace,
                context=context,
                wanted_namespace=where.namespace,
                _configuration=configuration,
                _session=session,
                _server_name=getattr(configuration, "tls_server_name", None),
            )

    @property
    def server(self) -> str:
        return str(self._configuration.host)

    async def get(self, path: str, query: Query | None = None, accept: str = JSON) -> Manifest:
        return await self.request("GET", path, query, accept=accept)

    async def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Manifest:
        """Raises ClusterError. Tries again where that is safe: the server was busy, or a reading was cut off."""
        for attempt in range(1, TRIES + 1):
            try:
                async with self._open(method, path, query, body, content_type, accept, ANSWER_SECONDS) as response:
                    answer: Manifest = json.loads(await response.read())
                    return answer
            except _Busy as busy:
                if attempt == TRIES:
                    raise busy.error from None
                await asyncio.sleep(busy.seconds or 0.5 * 2**attempt)
            except ClusterError as error:
                if error.reason != "Cut" or method != "GET" or attempt == TRIES:
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def stream(self, path: str, query: Query, silence: float | None) -> AsyncIterator[aiohttp.StreamReader]:
        """An answer that goes on. Raises ClusterError when it is cut off, or silent for `silence` seconds."""
        async with self._open("GET", path, query, None, JSON, "*/*", None, silence) as response:
            yield response.content

    async def watch(self, path: str, query: Query, accept: str) -> AsyncIterator[Manifest]:
        """The events of one watch, until the server ends it. Raises ClusterError."""
        query = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_SECONDS}
        async with self._open("GET", path, query, None, JSON, accept, None, WATCH_SECONDS + 30) as response:
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Mapping[str, Any] | None,
        content_type: str,
        accept: str,
        total: float | None,
        silence: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        assert self._session is not None
        asked = Asked(method, path, self.server, self.context)
        headers = {"Accept": accept, "User-Agent": f"allranks/{__version__}"}
        # Asked for anew each time: the official client renews a token that runs out.
        for setting in self._configuration.auth_settings().values():
            if setting.get("in") == "header" and setting.get("value"):
                headers[setting["key"]] = setting["value"]
        if body is not None:
            headers["Content-Type"] = content_type
        options: dict[str, Any] = {"server_hostname": self._server_name} if self._server_name else {}
        if self._configuration.proxy:
            options["proxy"] = self._configuration.proxy
        try:
            async with self._session.request(
                method,
                self.server + path,
                params={key: str(value) for key, value in (query or {}).items() if value is not None},
                data=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_SECONDS, sock_read=silence),
                allow_redirects=False,
                **options,
            ) as response:
                _warn(response.headers.getall("Warning", ()))
                if response.status >= 300:
                    error = refusal(asked, response.status, await response.read())
                    if response.status in (429, 503):
                        raise _Busy(error, _number(response.headers.get("Retry-After")))
                    raise error
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            advice = "check certificate-authority in the kubeconfig"
            raise ClusterError(
                f"the certificate of {asked.place} is not to be trusted: {error.certificate_error}: {advice}"
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise ClusterError(
                f"no API server answers at {asked.place}: {_cause(error)}: is the cluster up, and is it the right one? "
                "kubectl config get-contexts lists yours",
                reason="Unreachable",
            ) from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            what = "does not answer" if isinstance(error, TimeoutError) else f"broke the connection off ({error})"
            raise ClusterError(f"{asked.place} {what}: try again", reason="Cut") from error


WATCH_SECONDS = 240


class _Busy(ClusterError):
    """The server is too busy: it says when to come again."""

    def __init__(self, error: ClusterError, seconds: float) -> None:
        super().__init__(str(error), error.status, error.reason)
        self.error, self.seconds = error, seconds


def _configured(where: Where) -> tuple[Any, str, str]:
    """(the official client's configuration, namespace, context)"""
    from kubernetes import config as untyped
    from kubernetes.client import Configuration

    config: Any = untyped
    configuration = Configuration()
    configuration.proxy = None  # the environment's proxy and its exceptions are aiohttp's to read
    files = where.kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    present = [file for file in files.split(os.pathsep) if file and Path(file).expanduser().exists()]
    if where.kubeconfig and not present:
        raise ClusterError(f"--kubeconfig {where.kubeconfig}: there is no such file")
    if not present:
        if not (os.environ.get("KUBERNETES_SERVICE_HOST") and _NAMESPACE_OF_POD.exists()):
            raise ClusterError(
                f"no cluster is configured: there is no {files}, and this is no pod: give --kubeconfig FILE, or set "
                "KUBECONFIG. Without a cluster, `allranks run` runs the job on this machine"
            )
        config.load_incluster_config(client_configuration=configuration)
        return configuration, _NAMESPACE_OF_POD.read_text().strip() or "default", ""
    chain = os.pathsep.join(str(Path(file).expanduser()) for file in present)
    try:
        contexts, current = config.list_kube_config_contexts(config_file=chain)
        chosen = next((c for c in contexts if c["name"] == where.context), None) if where.context else current
        if chosen is None:
            known = ", ".join(sorted(c["name"] for c in contexts))
            raise ClusterError(f"there is no context {where.context} in {chain}: there are {known}")
        with _logged() as complaints:
            config.load_kube_config(config_file=chain, context=where.context, client_configuration=configuration)
    except (config.ConfigException, OSError, TypeError, KeyError, ValueError) as error:
        raise ClusterError(f"{chain} is no kubeconfig that can be used: {error}") from error
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            raise ClusterError(f"{chain} is not YAML: {' '.join(str(error).split())}") from error
        raise
    if complaints and not (configuration.api_key or configuration.cert_file):
        raise ClusterError(f"logging in as context {chosen['name']} of {chain} says failed: {'; '.join(complaints)}")
    context = chosen.get("context") or {}
    return configuration, context.get("namespace") or "default", chosen["name"]


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """The official client only logs that a login program failed, and goes on without credentials."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    before, logging.root.handlers = logging.root.handlers, [handler]
    try:
        yield texts
    finally:
        logging.root.handlers = before


def _tls(configuration: Any) -> ssl.SSLContext:
    """Raises ClusterError for certificates that cannot be read."""
    try:
        context = ssl.create_default_context(
            cafile=configuration.ssl_ca_cert or None, cadata=getattr(configuration, "ca_cert_data", None)
        )
        # As kubectl: authorities of many clusters lack an extension that Python 3.13 asks for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ClusterError(f"the kubeconfig's certificates cannot be read: {error}") from error
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _socket(address: Any) -> socket.socket:
    """A connection that went away while this machine slept is found out within a minute."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS lacks the first
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _warn(headers: Any) -> None:
    """What the API server has to say beside its answer: a deprecation, pod security."""
    for header in headers:
        _, _, text = header.partition('"')
        click.echo(f"{click.style('warning:', fg='yellow')} {text.rstrip().rstrip(chr(34))}", err=True)


def _cause(error: BaseException) -> str:
    inner = getattr(error, "os_error", None)
    number = getattr(inner, "errno", None)
    # asyncio puts the address, which has been told, in place of the system's text.
    text = os.strerror(number) if number and number > 0 else getattr(inner, "strerror", None)
    return str(text or inner or error).lower()


def _number(text: str | None) -> float:
    return min(float(text), 30.0) if text and text.isdigit() else 0.0
