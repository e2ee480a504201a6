"""Where the API server is and who we are: a service account inside a pod, else a kubeconfig.

Service account tokens are rotated by the kubelet, so their file is read again; people and tests have static ones.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from allranks.errors import AllranksError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 60
"""A token is read from its file again after this."""


class CannotConnect(AllranksError):
    """There is no cluster to speak to, or no way to say who we are."""


@dataclass
class Connection:
    """`url` without a path; `ca_file` None trusts what the machine trusts."""

    url: str
    ca_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    client_certificate: tuple[str, str] | None = None
    """(certificate file, key file)"""
    ca_data: str | None = field(default=None, repr=False)
    verify: bool = True
    _read_at: float = field(default=float("-inf"), repr=False)

    def headers(self) -> dict[str, str]:
        """The authorization as of now."""
        if self.token_file and time.monotonic() - self._read_at > _TOKEN_SECONDS:
            self.token, self._read_at = self.token_file.read_text().strip(), time.monotonic()
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def forget_token(self) -> None:
        """It was refused: read it again next time."""
        self._read_at = float("-inf")

    def ssl_context(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https"):
            return False
        context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_data)
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.client_certificate:
            context.load_cert_chain(*self.client_certificate)
        return context


def connect(kubeconfig: str | None = None, context: str | None = None) -> Connection:
    """The pod's service account, unless a kubeconfig is named (flag or KUBECONFIG). Raises CannotConnect."""
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if not named and not context and (ACCOUNT / "token").exists():
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        host = f"[{host}]" if ":" in host else host
        return Connection(f"https://{host}:{port}", str(ACCOUNT / "ca.crt"), token_file=ACCOUNT / "token")
    path = Path(named).expanduser() if named else Path.home() / ".kube" / "config"
    return _from_kubeconfig(path, context)


def own_namespace() -> str:
    """The namespace that this pod is in, else `default`."""
    try:
        return (ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return "default"


def _from_kubeconfig(path: Path, wanted: str | None) -> Connection:
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise CannotConnect(
            f"not inside a cluster, and no kubeconfig: {path}: {error.strerror}. Set KUBECONFIG or give --kubeconfig"
        ) from error
    except yaml.YAMLError as error:
        raise CannotConnect(f"{path} is not a kubeconfig: {error}") from error
    if not isinstance(config, dict):
        raise CannotConnect(f"{path} is not a kubeconfig: it is no mapping")
    name = wanted or config.get("current-context")
    context = _named(config, "contexts", "context", name, path)
    cluster = _named(config, "clusters", "cluster", context.get("cluster"), path)
    user = _named(config, "users", "user", context.get("user"), path)
    if "exec" in user or "auth-provider" in user:
        raise CannotConnect(
            f"{path}: user {context.get('user')} logs in by a program, which the operator does not run: "
            "use a context with a token or a client certificate"
        )
    ca = cluster.get("certificate-authority-data")
    token_file = user.get("tokenFile")
    return Connection(
        str(cluster["server"]).rstrip("/"),
        _beside(path, cluster.get("certificate-authority")),
        user.get("token"),
        token_file=Path(_beside(path, token_file) or "") if token_file else None,
        client_certificate=_certificate(user, path),
        ca_data=base64.b64decode(ca).decode() if ca else None,
        verify=not cluster.get("insecure-skip-tls-verify", False),
    )


def _named(config: dict[str, Any], many: str, one: str, name: str | None, path: Path) -> dict[str, Any]:
    for item in config.get(many) or ():
        if item.get("name") == name:
            return item.get(one) or {}
    raise CannotConnect(f"{path}: there is no {one} {name!r}")


def _certificate(user: dict[str, Any], path: Path) -> tuple[str, str] | None:
    parts = []
    for kind in ("client-certificate", "client-key"):
        if data := user.get(f"{kind}-data"):
            # Python's ssl loads certificates from files only.
            with tempfile.NamedTemporaryFile(prefix="allranks-", suffix=".pem", delete=False) as file:
                file.write(base64.b64decode(data))
            parts.append(file.name)
        elif file_name := user.get(kind):
            parts.append(_beside(path, file_name) or "")
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _beside(path: Path, name: str | None) -> str | None:
    """Relative names in a kubeconfig are relative to it."""
    return str(path.parent / name) if name else None
