"""The address of the API server and the credentials for it, from a pod's service account or from a kubeconfig.

Token files are read here; `login` has the other ways in which the user of a kubeconfig logs in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from allranks.kube import kubeconfig as kubeconfigs
from allranks.kube.errors import LoginError
from allranks.kube.login import NO_PEM, ClientCertificate, ExecLogin, Password, ProviderLogin, check_readable

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60
"""Files with tokens and certificates are read again after this: the kubelet rotates service account tokens, and the
authority of a cluster may change."""
logger = logging.getLogger(__name__)

_Versions = tuple[tuple[int, int, int], ...]


class NotConfigured(LoginError):
    """There is neither a kubeconfig nor a service account."""


class Credentials(Protocol):
    """Credentials that change while the process runs."""

    def headers(self) -> dict[str, str]:
        """Raises LoginError."""
        ...

    def forget(self) -> None:
        """Obtain new credentials for the next request: the API server rejected these."""
        ...


@dataclass
class Connection:
    """`url` has no path. Without `ca_file` and `ca_data` the machine's own authorities are trusted."""

    url: str
    ca_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    client_certificate: ClientCertificate | None = field(default=None, repr=False)
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
    kubeconfig: str = ""
    """The file or files of the context."""
    _read_at: float = field(default=float("-inf"), repr=False)
    _tls: ssl.SSLContext | None = field(default=None, init=False, repr=False, compare=False)
    _looked_at: float = field(default=float("-inf"), init=False, repr=False, compare=False)
    _loaded: _Versions = field(default=(), init=False, repr=False, compare=False)
    """The versions of the files with certificates that are in use."""

    def headers(self) -> dict[str, str]:
        """Return the current authorization. Blocks while a login program runs, once per lifetime of its token.

        Raises LoginError.
        """
        self._renew_files()
        if self.credentials:
            headers = self.credentials.headers()
            self._renew_certificate()
            return headers
        if self.token_file and time.monotonic() - self._read_at > TOKEN_SECONDS:
            try:
                self.token, self._read_at = self.token_file.read_text().strip(), time.monotonic()
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise LoginError(
                    f"the token file {self.token_file} cannot be read: {reason}: log in again, or correct its path"
                ) from error
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _renew_files(self) -> None:
        """Use changed files of authorities and of the client certificate for new connections. An authority that was
        trusted once stays trusted until the process ends, and hides another one of the same name without key
        identifiers."""
        if self._tls is None or time.monotonic() - self._looked_at < TOKEN_SECONDS:
            return
        self._looked_at = time.monotonic()
        try:
            if (present := self._versions()) != self._loaded:
                if self.ca_file:
                    self._tls.load_verify_locations(self.ca_file)
                if self.client_certificate:
                    self.client_certificate.load(self._tls)
                self._loaded = present
        except (OSError, ValueError, LoginError) as error:  # ssl.SSLError is an OSError
            # A certificate and its key are two files: at the next look both are there.
            logger.warning("changed certificates for %s cannot be read yet: %s", self.url, error)

    def _versions(self) -> _Versions:
        """Raises OSError."""
        paths = [self.ca_file, *(self.client_certificate or ())]
        stats = [Path(path).stat() for path in paths if isinstance(path, str)]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _renew_certificate(self) -> None:
        """Use the certificate that the login program printed last for new connections."""
        renewed = self.credentials.certificate if isinstance(self.credentials, ExecLogin) else None
        if renewed and renewed != self.client_certificate:
            self.client_certificate = renewed
            if self._tls:
                renewed.load(self._tls)

    def forget_token(self) -> None:
        """Obtain a new token for the next request: the API server rejected this one."""
        self._read_at = self._looked_at = float("-inf")
        if self.credentials:
            self.credentials.forget()

    def ssl_context(self) -> ssl.SSLContext | bool:
        """Return the context of all transports: changed certificates reach each of them. Raises LoginError."""
        if not self.url.startswith("https"):
            return False
        if self._tls:
            return self._tls
        try:
            context = self._trusting()
            if self.client_certificate:
                self.client_certificate.load(context)
        except LoginError as error:
            where = f" ({self.kubeconfig}, context {self.context})" if self.kubeconfig else ""
            raise LoginError(f"the certificates for {self.url} cannot be read{where}: {error}") from error
        # As kubectl: the authorities of many clusters have no key identifier, which Python 3.13 requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._tls, self._looked_at = context, time.monotonic()
        with contextlib.suppress(OSError):
            self._loaded = self._versions()
        return context

    def _trusting(self) -> ssl.SSLContext:
        if self.ca_file:
            check_readable("certificate-authority", self.ca_file)
        try:
            return ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_data)
        except (OSError, ValueError) as error:
            authority = f"certificate-authority {self.ca_file}" if self.ca_file else "certificate-authority-data"
            raise LoginError(f"{authority} {NO_PEM}") from error


def connect(kubeconfig: str | None = None, context: str | None = None, *, prefer_pod: bool = True) -> Connection:
    """Return the connection of `--kubeconfig`, $KUBECONFIG, ~/.kube/config or the pod's service account. Raises
    LoginError.

    With `prefer_pod`, the service account comes before ~/.kube/config where no kubeconfig is named.
    """
    named = kubeconfig or os.environ.get("KUBECONFIG")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists()
    if prefer_pod and in_pod and not named and not context:
        return _service_account()
    present = kubeconfig_files(kubeconfig)
    if present:
        return _from_context(kubeconfigs.read(present, context))
    if kubeconfig:
        raise LoginError(f"kubeconfig {kubeconfig}: there is no such file")
    if in_pod and not prefer_pod:
        return _service_account()
    named = named or _default_kubeconfig()
    raise NotConfigured(
        f"no cluster is configured: there is no {named}, and this is not a pod: name a kubeconfig, or set KUBECONFIG"
    )


def kubeconfig_files(kubeconfig: str | None) -> list[Path]:
    """Return the existing files of `--kubeconfig`, $KUBECONFIG or ~/.kube/config."""
    named = kubeconfig or os.environ.get("KUBECONFIG") or _default_kubeconfig()
    files = [Path(file).expanduser() for file in named.split(os.pathsep) if file]
    return [file for file in files if file.exists()]


def _default_kubeconfig() -> str:
    return str(Path.home() / ".kube" / "config")


def own_namespace() -> str:
    """Return the namespace of this pod; elsewhere `default`."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


def service_url() -> str:
    """Return the URL of the API server of this pod's cluster; elsewhere empty."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}:{port}" if host else ""


def _service_account() -> Connection:
    return Connection(
        service_url(),
        str(SERVICE_ACCOUNT / "ca.crt"),
        token_file=SERVICE_ACCOUNT / "token",
        namespace=own_namespace(),
    )


def _from_context(context: kubeconfigs.Context) -> Connection:
    cluster, user = context.cluster, context.user
    credentials = _credentials(context)
    ca = context.data(cluster, "certificate-authority")
    try:
        authority = ca.decode("ascii") if ca else None
    except UnicodeDecodeError as error:
        raise LoginError(f"{context.title}: certificate-authority-data {NO_PEM}") from error
    certificate = credentials.certificate if isinstance(credentials, ExecLogin | ProviderLogin) else None
    return Connection(
        context.server,
        None if ca else cluster.get("certificate-authority"),
        user.get("token"),
        token_file=Path(user["tokenFile"]) if user.get("tokenFile") else None,
        client_certificate=certificate or _certificate(context),
        ca_data=authority,
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        credentials=credentials,
        namespace=context.namespace,
        context=context.name,
        kubeconfig=context.files,
    )


def _credentials(context: kubeconfigs.Context) -> Credentials | None:
    """Return what the user logs in with; None for a token or a client certificate. Raises LoginError."""
    user = context.user
    if user.get("token") or user.get("tokenFile"):
        return None
    if user.get("exec"):
        return ExecLogin(context)
    if user.get("auth-provider"):
        return ProviderLogin(context)
    if user.get("username"):
        return Password(user["username"], user.get("password") or "")
    return None


def _certificate(context: kubeconfigs.Context) -> ClientCertificate | None:
    """Return the client certificate of the kubeconfig. Embedded data takes precedence over files. Raises LoginError."""
    user = context.user
    certificate = context.data(user, "client-certificate") or user.get("client-certificate")
    key = context.data(user, "client-key") or user.get("client-key")
    if bool(certificate) != bool(key):
        present, missing = ("client-certificate", "client-key") if certificate else ("client-key", "client-certificate")
        raise LoginError(f"{context.title}: user {context.user_name} has a {present} and no {missing}: add it")
    return ClientCertificate(certificate, key) if certificate and key else None
