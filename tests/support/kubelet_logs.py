"""The log endpoint of a kubelet, for `pods/log` of a real API server.

    kubelet = LogKubelet(api, folder)       # a Node whose address is this server's
    kubelet.write("team", "job-worker-0-0", "epoch 1")
    kubelet.end("team", "job-worker-0-0")

Lines are kept with their time; `follow`, `timestamps`, `tailLines`, `sinceTime`, `sinceSeconds` and `previous` are
served as a kubelet serves them. A pod that has never written answers that it is waiting to start. There are no
containers: requests for a command, a terminal or a port are recorded in `streams` and refused.
"""

from __future__ import annotations

import contextlib
import secrets
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from .api import Api, ApiError

HOST = "127.0.0.1"


class Log:
    """One container's."""

    def __init__(self) -> None:
        self.lines: list[tuple[datetime, bytes]] = []
        self.ended = False
        self.cuts = 0
        self.previous: list[tuple[datetime, bytes]] = []


class LogKubelet:
    """Serves until `stop`."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.node = f"node-{secrets.token_hex(4)}"
        self.requests: list[dict[str, str]] = []
        self.streams: list[str] = []
        """Paths and queries of requests for commands, terminals and ports."""
        self.followers = 0
        """Number of requests so far that follow a log."""
        self._api = api
        self._logs: dict[tuple[str, str, str], Log] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._server = _Server((HOST, 0), _Handler)
        self._server.kubelet = self
        self._server.tls = _tls(folder)
        threading.Thread(target=self._server.serve_forever, name="kubelet logs", daemon=True).start()
        self._tell_node()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        with contextlib.suppress(ApiError):
            self._api.delete("Node", None, self.node)

    def write(
        self, namespace: str, pod: str, *lines: str, container: str = "trainer", at: datetime | None = None
    ) -> None:
        """Adds log lines with the present time, or with a given one."""
        with self._changed:
            log = self._logs.setdefault((namespace, pod, container), Log())
            log.lines += [(at or datetime.now(UTC), line.encode()) for line in lines]
            self._changed.notify_all()

    def end(self, namespace: str, pod: str, container: str = "trainer") -> None:
        """Ends the log, also for followers."""
        with self._changed:
            self._logs.setdefault((namespace, pod, container), Log()).ended = True
            self._changed.notify_all()

    def again(self, namespace: str, pod: str, container: str = "trainer") -> None:
        """The container was restarted in place."""
        with self._changed:
            log = self._logs[namespace, pod, container]
            log.previous, log.lines, log.ended = log.lines, [], False
            log.cuts += 1
            self._changed.notify_all()

    def cut(self, namespace: str, pod: str, container: str = "trainer") -> None:
        """Breaks every connection that follows this log."""
        with self._changed:
            self._logs[namespace, pod, container].cuts += 1
            self._changed.notify_all()

    def wait_for_followers(self, count: int, seconds: float = 300) -> None:
        """Blocks until `followers` reaches `count`. Raises AssertionError after `seconds`."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.followers >= count, seconds), self.followers

    def refuse_stream(self, handler: _Handler) -> None:
        with self._changed:
            self.streams.append(handler.path)
        handler.refuse(403, "this kubelet runs no containers")

    def _tell_node(self) -> None:
        self._api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}})
        status = {
            "addresses": [{"type": "InternalIP", "address": HOST}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        self._api.patch("Node", None, self.node, {"status": status}, "status")

    # Responses

    def answer(self, handler: _Handler) -> None:
        parts = urlsplit(handler.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        _, kind, namespace, pod, container = parts.path.split("/")
        assert kind == "containerLogs"
        with self._changed:
            self.requests.append({"pod": pod, **query})
            log = self._logs.get((namespace, pod, container))
        if log is None or (query.get("previous") == "true" and not log.previous):
            what = "previous terminated container" if log else "container"
            text = f'{what} "{container}" in pod "{pod}" is waiting to start: ContainerCreating'
            handler.refuse(400, text)
            return
        handler.begin()
        follow = query.get("follow") == "true"
        lines = log.previous if query.get("previous") == "true" else log.lines
        place, cuts = self._first(lines, query), log.cuts
        if follow:
            with self._changed:
                self.followers += 1
                self._changed.notify_all()
        while True:
            with self._changed:
                new, ended = lines[place:], log.ended or self._stopped
                broken = log.cuts != cuts
                if not new and follow and not ended and not broken:
                    self._changed.wait(5)
                    continue
            if new:
                stamped = query.get("timestamps") == "true"
                handler.send(b"".join((_stamp(at) + b" " if stamped else b"") + text + b"\n" for at, text in new))
                place += len(new)
            elif broken:
                handler.break_off()
                return
            else:
                handler.finish_chunks()
                return

    @staticmethod
    def _first(lines: list[tuple[datetime, bytes]], query: dict[str, str]) -> int:
        since = datetime.min.replace(tzinfo=UTC)
        if "sinceSeconds" in query:
            since = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
        if "sinceTime" in query:
            since = datetime.fromisoformat(query["sinceTime"])
        first = next((place for place, (at, _) in enumerate(lines) if at >= since), len(lines))
        if "tailLines" in query:
            first = max(first, len(lines) - int(query["tailLines"]))
        return first


class _Server(ThreadingHTTPServer):
    kubelet: LogKubelet
    tls: ssl.SSLContext
    daemon_threads = True
    request_queue_size = 128

    def finish_request(self, request, client_address) -> None:
        # In the thread of the request, so that a slow TLS handshake does not block others.
        with contextlib.suppress(OSError), self.tls.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, request, client_address) -> None:
        """A follower may disconnect at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if self.path.startswith("/containerLogs/"):
            self.server.kubelet.answer(self)
        else:
            self.server.kubelet.refuse_stream(self)

    def do_POST(self) -> None:
        self.server.kubelet.refuse_stream(self)

    def refuse(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(text.encode())

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Content-Type", "text/plain")
        self.end_headers()

    def send(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def finish_chunks(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def break_off(self) -> None:
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def _stamp(at: datetime) -> bytes:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()


def _tls(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubelet of tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "kubelet.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
