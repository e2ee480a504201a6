"""Servers of data for tests: an HTTP server with ranges that misbehaves on request, and an S3 server."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Behaviour:
    """What the server does. Tests change it between requests."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Path -> content."""
    answers: dict[str, Callable[[str], tuple[int, dict[str, str], bytes]]] = field(default_factory=dict)
    """Path without query -> a function of the whole path: (status, headers, body)."""
    ranges: bool = True
    etags: bool = True
    cut_after: int | None = None
    """Each response ends after this many bytes of content, and the connection is closed."""
    cuts: int = 0
    """How many responses are cut; further ones are whole."""
    failures: list[int] = field(default_factory=list)
    """Statuses of the next responses."""
    gate: threading.Event | None = None
    """Content is sent when it is set."""
    puts: threading.Event | None = None
    """Uploads are answered when it is set."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range header) of all requests."""
    authorization: list[str | None] = field(default_factory=list)


@contextlib.contextmanager
def http_server(behaviour: Behaviour, address: str = "127.0.0.1") -> Iterator[str]:
    """Yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            if behaviour.puts:
                behaviour.puts.wait(30)
            self.do_POST()

        def do_DELETE(self) -> None:
            self.answer(204, {}, b"")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.do_GET()

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            behaviour.requests.append((self.path, wanted))
            behaviour.authorization.append(self.headers.get("Authorization"))
            if behaviour.failures:
                return self.answer(behaviour.failures.pop(0), {}, b"failure")
            if special := behaviour.answers.get(self.path.partition("?")[0]):
                return self.answer(*special(self.path))
            content = behaviour.files.get(self.path)
            if content is None:
                return self.answer(404, {}, b"not here")
            headers = {"ETag": f'"{hashlib.md5(content).hexdigest()}"'} if behaviour.etags else {}
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
            if not (found and behaviour.ranges):
                return self.answer(200, headers, content)
            if int(found[1]) >= len(content):
                return self.answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
            first, last = int(found[1]), int(found[2]) if found[2] else len(content) - 1
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self.answer(206, headers, content[first : last + 1])

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if behaviour.gate and len(body) > 1:
                behaviour.gate.wait(30)
            cut = behaviour.cut_after
            with contextlib.suppress(OSError):
                if cut is not None and behaviour.cuts > 0 and len(body) > cut:
                    behaviour.cuts -= 1
                    self.wfile.write(body[:cut])
                    self.close_connection = True
                    return
                self.wfile.write(body)

    server = ThreadingHTTPServer((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        for event in (behaviour.gate, behaviour.puts):
            if event:
                event.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def s3_server(address: str = "127.0.0.1") -> Iterator[str]:
    """Yields the URL of a server that speaks the protocol of S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(address, 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextlib.contextmanager
def empty_bucket(url: str, name: str, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Any]:
    """A client of the S3 server with an empty bucket, which is deleted at the end. Clients of the test find the
    server, and no configuration in their home."""
    import boto3

    for variable, value in {**s3_environment(url), "HOME": str(home)}.items():
        monkeypatch.setenv(variable, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    yield client
    for item in client.list_objects_v2(Bucket=name).get("Contents", ()):
        client.delete_object(Bucket=name, Key=item["Key"])
    client.delete_bucket(Bucket=name)
    client.close()


def s3_environment(url: str) -> dict[str, str]:
    """The variables that clients need for it."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
