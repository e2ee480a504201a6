"""A Kubernetes control plane for tests: etcd, API server and controller manager as three processes on loopback.

There is no node and no scheduler: tests simulate the kubelet (`kubelet.py`). All data is in one folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from . import processes, tools
from .api import Api, ApiError

HOST = "127.0.0.1"
START_SECONDS = 600.0
SECOND = "kube-apiserver-2"
MORE_CONTROLLERS = "kube-controller-manager-2"
CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "resourcequota-controller",
    "clusterrole-aggregation-controller",
)
"""Controllers that tests need. Not the pod garbage collector: without Node objects it would delete every pod."""


def build() -> Path:
    """The folder with the programs, built if necessary: of $KUBERNETES_VERSION, or of the usual version."""
    return tools.built("controlplane.sh", *filter(None, [os.environ.get("KUBERNETES_VERSION")]))


class DoesNotStart(Exception):
    """Contains the end of the log."""


class PortIsTaken(DoesNotStart):
    """The port is in use: others may be free."""


class ControlPlane:
    """The thread that calls `start` must live as long as the processes: they end with it."""

    has_nodes = False

    def __init__(
        self, programs: Path, folder: Path, audit_policy: str = "", api_server_options: Sequence[str] = ()
    ) -> None:
        self.programs, self.folder, self._audit_policy = programs, folder, audit_policy
        self._api_server_options = api_server_options
        self.audit_log = folder / "audit.log"
        self.admin_token = secrets.token_hex(16)
        self.ca_file = folder / "certificates" / "apiserver.crt"
        self.kubeconfig = folder / "kubeconfig"
        self.url = ""
        self.etcd_url = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._api: Api | None = None

    def start(self, definitions: Iterable[Path] = ()) -> None:
        """Returns when it is ready and serves the CustomResourceDefinitions of those files. Raises DoesNotStart."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_secrets()
        try:
            for _ in range(5):
                with contextlib.suppress(PortIsTaken):
                    self._start_servers()
                    break
                self.stop()
            else:
                raise DoesNotStart("five times in a row, a free port was in use when a server started")
            install(self.api, definitions)
            # After the CRDs: its garbage collector discovers kinds at its start, and then every 30 seconds.
            self._start_controller_manager()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the API server before etcd, because it waits for etcd otherwise."""
        if self._api:
            self._api.close()
        for name in (MORE_CONTROLLERS, "kube-controller-manager", SECOND, "kube-apiserver", "etcd"):
            self._end(name, signal.SIGKILL if name == "etcd" else signal.SIGTERM)

    def stop_api_server(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Sends SIGKILL, as if its machine failed."""
        self._end("kube-apiserver", how)

    def start_api_server(self) -> None:
        """Starts it at the same address with the same data."""
        self._run_api_server()
        self._wait_for_api_server()

    def start_second_api_server(self, etcd_url: str) -> str:
        """Starts another one, which reaches etcd at this address. Returns its URL; CA and tokens are the same."""
        for _ in range(5):
            [port] = free_ports(1)
            url = f"https://{HOST}:{port}"
            with contextlib.suppress(PortIsTaken):
                # The addresses of the Service `kubernetes` are left to the first one.
                self._run_api_server(SECOND, etcd_url, port, "--endpoint-reconciler-type=none")
                self._wait_for_api_server(url)
                return url
            self._end(SECOND, signal.SIGKILL)
        raise DoesNotStart("five times in a row, a free port was in use when a server started")

    def stop_second_api_server(self) -> None:
        self._end(SECOND, signal.SIGKILL)

    @contextlib.contextmanager
    def controllers(self, *names: str) -> Iterator[None]:
        """Runs these controllers of Kubernetes as well, in a process of their own."""
        self._run_controllers(MORE_CONTROLLERS, names)
        try:
            yield
        finally:
            self._end(MORE_CONTROLLERS, signal.SIGTERM)

    @property
    def api(self) -> Api:
        """A shared client with admin rights."""
        if self._api is None:
            self._api = Api(self.url, self.ca_file, self.admin_token)
        return self._api

    def kubectl(self, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as admin. Does not check the exit code."""
        command = [str(self.programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        # The default discovery cache is in the home directory.
        env = {**os.environ, "HOME": str(self.folder)}
        return subprocess.run(command, input=input, capture_output=True, text=True, timeout=300, check=False, env=env)

    def kubeconfig_of(self, user: str, token: str) -> Path:
        """A kubeconfig with this token."""
        path = self.folder / f"kubeconfig-{user}"
        self._write_kubeconfig(path, user, token)
        return path

    def log(self, name: str, lines: int = 30) -> str:
        """The end of a program's log."""
        return processes.end_of(self.folder / f"{name}.log", lines)

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def _write_secrets(self) -> None:
        (self.folder / "tokens").write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self.folder / "service-accounts.key").write_bytes(key)

    def _start_servers(self) -> None:
        client, peer, self._port = free_ports(3)
        self.url = f"https://{HOST}:{self._port}"
        self.etcd_url, peer_url = f"http://{HOST}:{client}", f"http://{HOST}:{peer}"
        # Start with an empty folder: etcd stores the addresses of its peers.
        self._data = self.folder / f"etcd-{client}"
        self._run(
            "etcd",
            f"--data-dir={self._data}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
        )
        self._run_api_server()
        self._write_kubeconfig(self.kubeconfig, "admin", self.admin_token)
        self._wait_for_api_server()

    def _run_api_server(self, name: str = "kube-apiserver", etcd_url: str = "", port: int = 0, *options: str) -> None:
        key = self.folder / "service-accounts.key"
        self._run(
            name,
            f"--etcd-servers={etcd_url or self.etcd_url}",
            f"--bind-address={HOST}",
            f"--secure-port={port or self._port}",
            # It creates a certificate authority and a certificate there, which it keeps over restarts.
            f"--cert-dir={self.ca_file.parent}",
            f"--token-auth-file={self.folder / 'tokens'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--profiling=false",
            *(self._audit() if name != SECOND else ()),
            *self._api_server_options,
            *options,
        )

    def _audit(self) -> list[str]:
        """Options for the audit log of the policy."""
        if not self._audit_policy:
            return []
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(self._audit_policy)
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]

    def _start_controller_manager(self) -> None:
        self._run_controllers("kube-controller-manager", CONTROLLERS)
        process = self._processes["kube-controller-manager"]
        deadline = time.monotonic() + START_SECONDS
        # It has no readiness port: its first visible action is the ServiceAccount of the default namespace.
        while not self.api.find("ServiceAccount", "default", "default"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise DoesNotStart(f"kube-controller-manager:\n{self.log('kube-controller-manager')}")
            time.sleep(0.05)

    def _run_controllers(self, process: str, names: Iterable[str]) -> None:
        self._run(
            process,
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(names)}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--concurrent-gc-syncs=8",
            "--min-resync-period=1h",
            # Quota usage that it misses while CRDs change is corrected at this interval; the default is 5 minutes.
            "--resource-quota-sync-period=5s",
            "--profiling=false",
        )

    def _write_kubeconfig(self, path: Path, user: str, token: str) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "current-context": "tests",
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)

    def _wait_for_api_server(self, url: str = "") -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    log = self.log(name)
                    kind = PortIsTaken if "address already in use" in log else DoesNotStart
                    raise kind(f"{name} ended with code {process.returncode}:\n{log}")
            if self.ca_file.exists():
                with contextlib.suppress(TimeoutError, ssl.SSLError):  # the certificate may be written just now
                    # It listens long before it responds: a blocking request would not notice that etcd has ended.
                    api = Api(url or self.url, self.ca_file, self.admin_token, timeout=15)
                    with contextlib.closing(api):
                        api.wait_until_ready(0.5)
                    if self._api:
                        self._api.close()  # it reconnects at the next request
                    return
            time.sleep(0.05)
        raise DoesNotStart(f"kube-apiserver is not ready after {START_SECONDS} s:\n{self.log('kube-apiserver')}")

    def _run(self, name: str, *arguments: str) -> None:
        program = self.programs / name.removesuffix("-2")
        # With little data, Go's garbage collector would run all the time: a sixth of the processor time of scenarios.
        environment = {"GOGC": os.environ.get("GOGC", "400")}
        log = self.folder / f"{name}.log"
        self._processes[name] = processes.start(program, *arguments, log=log, environment=environment)

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process:
            processes.end(process, how)


def install(api: Api, definitions: Iterable[Path]) -> None:
    """Installs CustomResourceDefinitions. Returns when they are served."""
    for file in definitions:
        wanted = yaml.safe_load(file.read_text())
        name = wanted["metadata"]["name"]
        deadline = time.monotonic() + START_SECONDS
        while not _applied(api, wanted):
            if time.monotonic() > deadline:
                raise DoesNotStart(f"the API server does not accept {name}")
            time.sleep(0.2)
        while not (_established(api.get("CustomResourceDefinition", None, name)) and _served(api, wanted["spec"])):
            if time.monotonic() > deadline:
                raise DoesNotStart(f"the API server does not serve {name}")
            time.sleep(0.05)


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Below the ephemeral range: no client connection can take a port while its server restarts."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                ports += [] if port in ports else [port]
    return ports


def _applied(api: Api, definition: dict[str, Any]) -> bool:
    """Returns False if the API server is too busy to answer."""
    # In a user's cluster it may exist: then it is updated.
    with contextlib.suppress(ApiError):
        api.create(definition)
    try:
        api.patch("CustomResourceDefinition", None, definition["metadata"]["name"], {"spec": definition["spec"]})
    except ApiError as answer:
        if answer.code in (404, 429, 500, 504):
            return False
        raise
    return True


def _served(api: Api, spec: dict[str, Any]) -> bool:
    """A busy API server answers 404 for a while after the condition Established."""
    version = next(each["name"] for each in spec["versions"] if each["served"])
    try:
        api.request("GET", f"/apis/{spec['group']}/{version}/{spec['names']['plural']}?limit=1")
    except ApiError as answer:
        if answer.code == 404:
            return False
        raise
    return True


def _established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
