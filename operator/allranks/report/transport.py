"""Sends messages over one persistent HTTP connection, with a rotating token and backoff after errors."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 3.0
MOST_BYTES = 65536
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
LONGEST_RETRY_AFTER = 600.0


class AttemptOver(Exception):
    """This attempt of the job is over: stop reporting."""


class SendFailed(Exception):
    """The message did not arrive. Send the next one after a pause."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Rejected(Exception):
    """The server rejected the message as invalid."""


class Transport:
    """Posts to one URL. Its constructor raises ValueError for an invalid URL.

    `most_bytes` of an answer are read. With `keep_alive` the kernel notices within 15 s that the server is gone, also
    while an answer takes long.
    """

    def __init__(self, url: str, token_file: str, most_bytes: int = MOST_BYTES, keep_alive: bool = False) -> None:
        self._most_bytes, self._keep_alive = most_bytes, keep_alive
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"ALLRANKS_REPORT_URL={url} is not of the form http(s)://host:port/path")
        self._https, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._token_file = Path(token_file)
        self._token, self._token_stamp = "", (0, 0)
        self._connection: http.client.HTTPConnection | None = None
        self._failures = 0

    def post(self, message: dict[str, Any], timeout: float = TIMEOUT_SECONDS, again: bool = True) -> dict[str, Any]:
        """Return the answer. Raise AttemptOver, Rejected or SendFailed.

        `again`: send it once more if the server had closed the idle connection.
        """
        body = json.dumps(message, allow_nan=False).encode()
        try:
            reused = self._connection is not None
            try:
                answer, content = self._exchange(body, timeout)
            except (OSError, http.client.HTTPException):
                self.close()
                if not reused or not again:
                    raise
                answer, content = self._exchange(body, timeout)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise SendFailed(str(error) or type(error).__name__) from error
        if answer.status == 200:
            self._failures = 0
            return as_object(content)
        if answer.status == 409:
            raise AttemptOver
        if answer.status in (400, 413, 415):
            raise Rejected(f"{answer.status} {content[:200].decode('utf-8', 'replace')}")
        if answer.status in (401, 403):
            self._token = ""  # read the file again
        raise SendFailed(f"status {answer.status}", seconds_of(answer.getheader("Retry-After")))

    def pause(self, failed: SendFailed, interval: float) -> float:
        """Return the backoff in seconds: exponential with jitter, or Retry-After."""
        self._failures += 1
        if failed.retry_after is not None:
            return min(failed.retry_after, LONGEST_RETRY_AFTER) + random.uniform(0, interval)
        longest = min(FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10), LONGEST_PAUSE)
        return max(longest, interval) * random.uniform(0.7, 1.3)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def _exchange(self, body: bytes, timeout: float) -> tuple[http.client.HTTPResponse, bytes]:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=timeout)
            if self._keep_alive:
                self._connection.connect()
                keep_alive(self._connection.sock)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
        headers = {"Authorization": f"Bearer {self._read_token()}", "Content-Type": "application/json"}
        self._connection.request("POST", self._path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read(self._most_bytes)
        if answer.will_close or not answer.isclosed():  # not read to its end: the connection cannot be used again
            self.close()
        return answer, content

    def _read_token(self) -> str:
        """Read the file again when it changes: the kubelet replaces it before the token expires."""
        stat = self._token_file.stat()
        stamp = (stat.st_mtime_ns, stat.st_ino)
        if not self._token or stamp != self._token_stamp:
            with self._token_file.open(encoding="ascii") as file:
                self._token = file.read(MOST_BYTES).strip()
            self._token_stamp = stamp
        return self._token


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel ask the other side each 2 s whether it is there, after 5 s without a packet."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 5)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def as_object(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def seconds_of(header: str | None) -> float | None:
    try:
        after = float(header or "")
    except ValueError:
        return None
    return after if 0 <= after < float("inf") else None
