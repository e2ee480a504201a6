"""Credentials of the user of a kubeconfig: with a client certificate, a login program, a password or an auth-provider.

A private key that is embedded in a kubeconfig is never stored on a disk. A login program (`exec`) runs as with kubectl:
it prints an ExecCredential, a token, a client certificate, or both, and runs again when the credential expires, and
when the API server rejects it. The official client is imported only for an `auth-provider`, the older way to log in,
which kubectl supports for OIDC.
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from allranks.control_sequences import clean
from allranks.extras import install_command
from allranks.kube.errors import LoginError
from allranks.kube.kubeconfig import Context

NO_PEM = "is not a certificate in PEM format: copy it again from the cluster"


class ClientCertificate(NamedTuple):
    """Certificate and key: paths of files, or their content in PEM."""

    certificate: str | bytes
    key: str | bytes

    def __repr__(self) -> str:
        return "ClientCertificate(...)"

    def load(self, context: ssl.SSLContext) -> None:
        """Add the certificate to a TLS context. Raises LoginError."""
        for name, pem in (("client-certificate", self.certificate), ("client-key", self.key)):
            if isinstance(pem, str):
                check_readable(name, pem)
        with _file(self.certificate) as certificate, _file(self.key) as key:
            try:
                context.load_cert_chain(certificate, key)
            except (OSError, ValueError) as error:
                if "MISMATCH" in str(error):
                    text = "client-key does not belong to client-certificate: get both again from the cluster"
                    raise LoginError(text) from error
                text = "client-certificate or client-key is not in PEM format: copy both again from the cluster"
                raise LoginError(text) from error


def check_readable(name: str, path: str) -> None:
    """Check that a file can be read. Raises LoginError, which names the field and the file."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LoginError(f"{name} {path}: {reason}: make it readable, or correct its path") from error


@contextlib.contextmanager
def _file(pem: str | bytes) -> Iterator[str]:
    """Yield the path of a file with this content while it is loaded: Python's ssl loads certificates from files
    only."""
    if isinstance(pem, str):
        yield pem
    elif hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        # The kernel frees the memory when the process ends, however it ends.
        with os.fdopen(os.memfd_create("allranks-certificate"), "wb") as file:
            file.write(pem)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.TemporaryDirectory(prefix="allranks-") as folder:  # only this user may enter it
            path = Path(folder) / "pem"
            path.write_bytes(pem)
            yield str(path)


GROUP = "client.authentication.k8s.io"
VERSIONS = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
RUN_SECONDS = 60.0
"""Time limit of a program that cannot ask the user."""
RENEW_SECONDS = 10.0
"""A credential is renewed this long before it expires."""
REJECTED_SECONDS = 1.0
"""A rejected credential is renewed at most this often: concurrent requests are rejected together."""


class ExecLogin:
    """Runs the login program of a context's user."""

    def __init__(self, context: Context) -> None:
        """Run the program. Raises LoginError."""
        self._context = context
        self._program: Mapping[str, Any] = context.user["exec"]
        self._token = ""
        self._expires: datetime | None = None
        self._valid = False
        self._ran_at = float("-inf")
        self.certificate: ClientCertificate | None = None
        self._login()

    def headers(self) -> dict[str, str]:
        """Run the program if there is no valid credential. Raises LoginError."""
        expiring = self._expires is not None and datetime.now(UTC) >= self._expires - timedelta(seconds=RENEW_SECONDS)
        if not self._valid or (expiring and time.monotonic() - self._ran_at > REJECTED_SECONDS):
            self._login()
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def forget(self) -> None:
        if time.monotonic() - self._ran_at > REJECTED_SECONDS:
            self._valid = False

    def _login(self) -> None:
        try:
            credential = self._credential(self._run())
        except LoginError as error:
            raise LoginError(f"logging in as {self._context.title} failed: {error}") from error
        self._token = credential.get("token") or ""
        pair = [credential.get(key) for key in ("clientCertificateData", "clientKeyData")]
        if all(pair):
            self.certificate = ClientCertificate(*(str(pem).encode() for pem in pair))
        self._expires = _time(credential.get("expirationTimestamp"))
        self._valid, self._ran_at = True, time.monotonic()

    def _run(self) -> str:
        """Return the output of the program. Raises LoginError."""
        version, command = self._program.get("apiVersion"), self._program.get("command")
        if version not in VERSIONS:
            advice = f"create the kubeconfig again with the cloud's tool, for {VERSIONS[0]}"
            raise LoginError(f"exec.apiVersion {version} is not supported: {advice}")
        if not command:
            raise LoginError("exec.command is missing: it names the login program")
        program = shutil.which(command)
        if program is None:
            place = "does not exist or is not executable" if os.sep in command else "is not on PATH"
            hint = " ".join(str(self._program.get("installHint") or "").split())
            advice = hint or "install it, or choose another context"
            raise LoginError(f"the login program {command} {place}: {advice}")
        interactive = self._interactive()
        # A program may print a code that the user enters in a browser.
        errors = None if sys.stderr is not None and sys.stderr.isatty() else subprocess.PIPE
        try:
            done = subprocess.run(
                [program, *map(str, self._program.get("args") or ())],
                env=self._environment(interactive),
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=None if interactive else RUN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LoginError(f"{command} did not end within {RUN_SECONDS:.0f} s: run it by hand") from error
        except OSError as error:
            raise LoginError(f"{command} cannot be started: {(error.strerror or str(error)).lower()}") from error
        if done.returncode:
            output = _reason(done.stderr or b"") or "its output is above"
            raise LoginError(f"{command} ended with exit code {done.returncode}: {output}")
        return done.stdout.decode(errors="replace")

    def _interactive(self) -> bool:
        """Return whether the program may read the terminal. Raises LoginError if it must, and there is none."""
        mode = self._program.get("interactiveMode") or "IfAvailable"
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not terminal:
            raise LoginError(f"{self._program['command']} needs a terminal (interactiveMode Always), and stdin is none")
        return terminal and mode != "Never"

    def _environment(self, interactive: bool) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self._program.get("provideClusterInfo"):
            spec["cluster"] = _cluster_info(self._context)
        info = {"apiVersion": self._program["apiVersion"], "kind": "ExecCredential", "spec": spec}
        variables = {str(item["name"]): str(item["value"]) for item in self._program.get("env") or ()}
        return {**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}

    def _credential(self, output: str) -> Mapping[str, Any]:
        """Return the status of the ExecCredential. Raises LoginError."""
        command = self._program["command"]
        try:
            printed = json.loads(output)
            status = printed["status"]
            version = printed["apiVersion"]
        except (ValueError, KeyError, TypeError) as error:
            raise LoginError(f"{command} printed no ExecCredential with a status: run it by hand") from error
        if version != self._program["apiVersion"]:
            raise LoginError(f"{command} printed {version}, and exec.apiVersion is {self._program['apiVersion']}")
        complete = isinstance(status, dict) and (
            status.get("token") or (status.get("clientCertificateData") and status.get("clientKeyData"))
        )
        if not complete:
            raise LoginError(f"{command} printed neither a token nor a client certificate with its key")
        credential: Mapping[str, Any] = status
        return credential


def _cluster_info(context: Context) -> dict[str, Any]:
    cluster = context.cluster
    ca = cluster.get("certificate-authority-data")
    if not ca and cluster.get("certificate-authority"):
        try:
            ca = base64.b64encode(Path(cluster["certificate-authority"]).read_bytes()).decode()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise LoginError(f"certificate-authority {cluster['certificate-authority']}: {reason}") from error
    extensions = {item.get("name"): item.get("extension") for item in cluster.get("extensions") or ()}
    info = {
        "server": cluster.get("server"),
        "tls-server-name": cluster.get("tls-server-name"),
        "insecure-skip-tls-verify": cluster.get("insecure-skip-tls-verify"),
        "certificate-authority-data": ca,
        "proxy-url": cluster.get("proxy-url"),
        "config": extensions.get(f"{GROUP}/exec"),
    }
    return {key: value for key, value in info.items() if value}


def _time(text: Any) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _reason(output: bytes) -> str:
    """Return the first error of an output with the lines that follow, in one line; without an error, the last lines."""
    lines = [line for line in (clean(line, colour=False).strip() for line in output.splitlines()) if line]
    first = next((number for number, line in enumerate(lines) if "error" in line.lower()), None)
    return " / ".join(lines[-3:] if first is None else lines[first : first + 5])


class Password:
    """HTTP basic authentication, which proxies in front of an API server may use."""

    def __init__(self, name: str, password: str) -> None:
        self._header = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()

    def headers(self) -> dict[str, str]:
        return {"Authorization": self._header}

    def forget(self) -> None: ...


_REMOVED = {
    "gcp": "gcloud container clusters get-credentials CLUSTER",
    "azure": "az aks get-credentials --name CLUSTER",
}
"""Providers that kubectl no longer supports -> the command that writes a kubeconfig with a login program."""


class ProviderLogin:
    """Credentials of a kubeconfig user with an `auth-provider`, from the official client."""

    def __init__(self, context: Context) -> None:
        """Raises LoginError."""
        self._context = context
        self._configuration: Any = self._login()
        files = self._configuration.cert_file, self._configuration.key_file
        self.certificate = ClientCertificate(*files) if all(files) else None

    def headers(self) -> dict[str, str]:
        if self._configuration is None:
            self._configuration = self._login()
        settings = self._configuration.auth_settings().values()  # renews a token that expires
        return {s["key"]: s["value"] for s in settings if s.get("in") == "header" and s.get("value")}

    def forget(self) -> None:
        if time.monotonic() - self._login_at > REJECTED_SECONDS:
            self._configuration = None

    def _login(self) -> Any:
        title = self._context.title
        provider = self._context.user["auth-provider"].get("name") or "without a name"
        if provider in _REMOVED:
            raise LoginError(
                f"{title} logs in with the auth-provider {provider}, which Kubernetes 1.26 "
                f"replaced by a login program: create the kubeconfig again with {_REMOVED[provider]}"
            )
        try:
            from kubernetes import config as untyped
            from kubernetes.client import Configuration
        except ImportError as error:
            raise LoginError(
                f"{title} logs in with the auth-provider {provider}, which needs the official Kubernetes client "
                f"({error}): {install_command('login')}, or use a context with a login program (exec), a token or a "
                "client certificate"
            ) from error
        config: Any = untyped
        configuration = Configuration()
        try:
            with _logged() as complaints:
                config.load_kube_config(self._context.files, self._context.name, configuration)
        except Exception as error:  # the client raises what its libraries raise
            raise LoginError(f"logging in as {title} failed: {' '.join(str(error).split())}") from error
        if complaints and not (configuration.api_key or configuration.cert_file):
            raise LoginError(f"logging in as {title} failed: {'; '.join(complaints)}")
        self._login_at = time.monotonic()
        return configuration


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect log records: the official client only logs that a login program failed, and returns no credentials."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    before, logging.root.handlers = logging.root.handlers, [handler]
    try:
        yield texts
    finally:
        logging.root.handlers = before
