"""The address of the API server and the credentials for it, from a pod's service account or from a kubeconfig.

Tokens and certificates are read here. The official client is imported only for a kubeconfig user that logs in with a
program (`exec`) or a provider: it runs the program and renews the token.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from allranks.extras import install_command
from allranks.kube.errors import LoginError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60
"""A token file is read again after this: the kubelet rotates service account tokens."""
LOGIN_SECONDS = 1.0
"""A rejected token is renewed at most this often: concurrent requests are rejected together."""


class NotConfigured(LoginError):
    """There is neither a kubeconfig nor a service account."""


class Credentials(Protocol):
    """Credentials that change while the process runs."""

    def headers(self) -> dict[str, str]:
        """Raises LoginError."""
        ...

    def forget(self) -> None:
        """The API server rejected them: obtain new ones for the next request."""
        ...


@dataclass
class Connection:
    """`url` has no path. Without `ca_file` and `ca_data` the machine's own authorities are trusted."""

    url: str
    ca_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    client_certificate: tuple[str, str] | None = None
    """(certificate file, key file)"""
    ca_data: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the URL's."""
    proxy: str | None = None
    credentials: Credentials | None = None
    """Instead of a token."""
    namespace: str = "default"
    context: str = ""
    """The kubeconfig's context, if there is one."""
    _read_at: float = field(default=float("-inf"), repr=False)

    def headers(self) -> dict[str, str]:
        """The current authorization. Blocks while a login program runs, once per lifetime of its token."""
        if self.credentials:
            return self.credentials.headers()
        if self.token_file and time.monotonic() - self._read_at > TOKEN_SECONDS:
            self.token, self._read_at = self.token_file.read_text().strip(), time.monotonic()
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def forget_token(self) -> None:
        """The API server rejected it: obtain a new one for the next request."""
        self._read_at = float("-inf")
        if self.credentials:
            self.credentials.forget()

    def ssl_context(self) -> ssl.SSLContext | bool:
        """Raises LoginError."""
        if not self.url.startswith("https"):
            return False
        try:
            context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_data)
            if self.client_certificate:
                context.load_cert_chain(*self.client_certificate)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise LoginError(f"the certificates for {self.url} cannot be read: {error}") from error
        # As kubectl: the authorities of many clusters have no key identifier, which Python 3.13 requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def connect(kubeconfig: str | None = None, context: str | None = None, *, prefer_pod: bool = True) -> Connection:
    """The connection of `--kubeconfig`, $KUBECONFIG, ~/.kube/config or the pod's service account. Raises LoginError.

    `prefer_pod`: where no kubeconfig is named, the service account comes before ~/.kube/config.
    """
    named = kubeconfig or os.environ.get("KUBECONFIG")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists()
    if prefer_pod and in_pod and not named and not context:
        return _service_account()
    named = named or str(Path.home() / ".kube" / "config")
    files = [Path(file).expanduser() for file in named.split(os.pathsep) if file]
    present = [file for file in files if file.exists()]
    if present:
        return _kubeconfig(present, context)
    if kubeconfig:
        raise LoginError(f"--kubeconfig {kubeconfig}: there is no such file")
    if in_pod and not prefer_pod:
        return _service_account()
    raise NotConfigured(
        f"no cluster is configured: there is no {named}, and this is not a pod: "
        "give --kubeconfig FILE, or set KUBECONFIG"
    )


def own_namespace() -> str:
    """The namespace of this pod, else `default`."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


def _service_account() -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    return Connection(
        f"https://{host}:{port}",
        str(SERVICE_ACCOUNT / "ca.crt"),
        token_file=SERVICE_ACCOUNT / "token",
        namespace=own_namespace(),
    )


def _kubeconfig(files: Sequence[Path], wanted: str | None) -> Connection:
    chain = os.pathsep.join(map(str, files))
    current, contexts, clusters, users = _merged(files)
    name = wanted or current
    if name not in contexts:
        raise LoginError(f"there is no context {name} in {chain}: there are {', '.join(sorted(contexts))}")
    context = contexts[name]
    cluster, user = clusters.get(context.get("cluster", ""), {}), users.get(context.get("user", ""), {})
    if "server" not in cluster:
        raise LoginError(f"{chain}: context {name}: cluster {context.get('cluster')} has no server")
    credentials: LoginProgram | None = None
    if not _LOGIN.isdisjoint(user) and not (user.get("token") or user.get("tokenFile")):
        credentials = LoginProgram(chain, name)
    try:
        ca = cluster.get("certificate-authority-data")
        return Connection(
            str(cluster["server"]).rstrip("/"),
            None if ca else cluster.get("certificate-authority"),
            user.get("token"),
            token_file=Path(user["tokenFile"]) if user.get("tokenFile") else None,
            client_certificate=credentials.certificate if credentials else _certificate(user),
            ca_data=base64.b64decode(ca).decode() if ca else None,
            verify=not cluster.get("insecure-skip-tls-verify", False),
            server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url"),
            credentials=credentials,
            namespace=context.get("namespace") or "default",
            context=name,
        )
    except (OSError, ValueError, TypeError) as error:
        raise LoginError(f"{chain} is not a kubeconfig that can be used: {error}") from error


_LOGIN = {"exec", "auth-provider", "username"}
"""Keys of a kubeconfig user whose credentials the official client obtains."""
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_Entries = dict[str, dict[str, Any]]


def _merged(files: Sequence[Path]) -> tuple[str, _Entries, _Entries, _Entries]:
    """(current context, contexts, clusters, users), as kubectl merges files: the first that sets a name wins."""
    current = ""
    entries: dict[str, _Entries] = {"context": {}, "cluster": {}, "user": {}}
    for file in files:
        try:
            config = yaml.safe_load(file.read_text()) or {}
            current = current or config.get("current-context") or ""
            for kind, found in entries.items():
                for item in config.get(f"{kind}s") or ():
                    entry = dict(item.get(kind) or {})
                    # Relative paths are relative to their file.
                    entry |= {key: str(file.parent / entry[key]) for key in _PATHS if entry.get(key)}
                    found.setdefault(item["name"], entry)
        except yaml.YAMLError as error:
            raise LoginError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise LoginError(f"{file} is not a kubeconfig: {error}") from error
    if not entries["context"]:
        raise LoginError(f"{os.pathsep.join(map(str, files))} is not a kubeconfig: it has no contexts")
    return current, entries["context"], entries["cluster"], entries["user"]


def _certificate(user: Mapping[str, Any]) -> tuple[str, str] | None:
    """(certificate file, key file). Embedded ones are written to files: Python's ssl loads nothing else."""
    files = []
    for key in ("client-certificate", "client-key"):
        files.append(user.get(key))
        if data := user.get(f"{key}-data"):
            with tempfile.NamedTemporaryFile(prefix="allranks-", suffix=".pem", delete=False) as file:
                file.write(base64.b64decode(data))
            atexit.register(Path(file.name).unlink, missing_ok=True)
            files[-1] = file.name
    return _pair(*files)


class LoginProgram:
    """Credentials of a kubeconfig user that logs in with a program or a provider, from the official client."""

    def __init__(self, kubeconfig: str, context: str) -> None:
        """Raises LoginError."""
        self._kubeconfig, self._context = kubeconfig, context
        self._configuration: Any = self._login()
        self.certificate = _pair(self._configuration.cert_file, self._configuration.key_file)

    def headers(self) -> dict[str, str]:
        if self._configuration is None:
            self._configuration = self._login()
        settings = self._configuration.auth_settings().values()  # renews a token that expires
        return {s["key"]: s["value"] for s in settings if s.get("in") == "header" and s.get("value")}

    def forget(self) -> None:
        if time.monotonic() - self._login_at > LOGIN_SECONDS:
            self._configuration = None

    def _login(self) -> Any:
        title = f"context {self._context} of {self._kubeconfig}"
        try:
            from kubernetes import config as untyped
            from kubernetes.client import Configuration
        except ImportError as error:
            advice = f"use a context with a token or a client certificate, or {install_command('login')}"
            raise LoginError(
                f"{title} logs in with a program, which needs the official Kubernetes client ({error}): {advice}"
            ) from error
        config: Any = untyped
        configuration = Configuration()
        try:
            with _logged() as complaints:
                config.load_kube_config(self._kubeconfig, self._context, configuration)
        except (config.ConfigException, OSError, TypeError, KeyError, ValueError) as error:
            raise LoginError(f"logging in as {title} failed: {error}") from error
        if complaints and not (configuration.api_key or configuration.cert_file):
            raise LoginError(f"logging in as {title} failed: {'; '.join(complaints)}")
        self._login_at = time.monotonic()
        return configuration


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Collects log records: the official client only logs that a login program failed, and returns no credentials."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    before, logging.root.handlers = logging.root.handlers, [handler]
    try:
        yield texts
    finally:
        logging.root.handlers = before


def _pair(certificate: str | None, key: str | None) -> tuple[str, str] | None:
    return (certificate, key) if certificate and key else None
