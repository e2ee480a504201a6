"""One file of a web server, read with ranges; and the requests that the hub's source makes as well."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from allranks.data.errors import ChangedError
from allranks.data.source import CHUNK, UNKNOWN, Listing, RemoteFile, checked
from allranks.version import __version__

TIMEOUT_SECONDS = 60.0
"""Without a byte for this long, the connection counts as lost."""


class HttpSource:
    """`https://HOST/FILE`: a directory with this one file."""

    branches = False

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._name = unquote(urlsplit(uri).path).rsplit("/", 1)[-1] or "index.html"

    def resolve(self, revision: str | None) -> Listing:
        tag, size = self._ask()
        file = RemoteFile(self._name, size, tag)
        # Without a validator nothing shows whether the file changed: each run fetches it again.
        return Listing(tag or f"{UNKNOWN}{time.time_ns()}", checked(self.uri, [file]))

    def _ask(self) -> tuple[str, int | None]:
        """Return (tag, size). Send a GET for one byte, because servers answer HEAD less often than GET."""
        try:
            answer = open_url(self.uri, {"Range": "bytes=0-0"})
        except urllib.error.HTTPError as error:
            if error.code != 416:  # an empty file
                raise
            answer = open_url(self.uri, {})
        with answer:
            size = _size(answer.headers)
            return _tag(answer.headers), int(size) if size.isdecimal() else None

    def read(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[bytes]:
        return read_range(self.uri, {}, file, start)


def open_url(url: str, headers: Mapping[str, str]) -> Any:
    """Return the response. `headers` may hold credentials: they are not sent to another host that the server redirects
    to."""
    request = urllib.request.Request(url, headers={"User-Agent": f"allranks/{__version__}"})
    request.add_header("Accept-Encoding", "identity")
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    try:
        return urllib.request.build_opener(_SameHost(headers)).open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        raise


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Repeats the headers for redirects within the same origin."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def redirect_request(self, req: urllib.request.Request, *rest: Any) -> urllib.request.Request | None:
        new = super().redirect_request(req, *rest)
        if new is not None:
            old_url, new_url = urlsplit(req.full_url), urlsplit(new.full_url)
            same = (old_url.scheme, old_url.netloc) == (new_url.scheme, new_url.netloc)
            for name, value in self._headers.items():
                if same or name.lower() in ("range", "if-range"):
                    new.add_unredirected_header(name, value)
        return new


def read_range(url: str, headers: Mapping[str, str], file: RemoteFile, start: int) -> Iterator[bytes]:
    """Yield the bytes from `start`. Raise ChangedError if the file is another one than `file`."""
    ranged = {"Range": f"bytes={start}-"} if start else {}
    if start and file.tag.startswith("etag:"):
        ranged["If-Range"] = file.tag.removeprefix("etag:")
    with open_url(url, {**headers, **ranged}) as answer:
        if file.tag and not file.sha256 and (tag := _tag(answer.headers)) and tag != file.tag:
            raise ChangedError(f"{url}: the file was changed while it was fetched: run again")
        position = start if answer.status == 206 else 0
        if answer.status == 206:
            first = (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
            if first != str(start):
                raise ConnectionError(f"the server sent bytes from {first or 'nowhere'} instead of {start}")
        while data := answer.read(CHUNK):
            skip = max(0, start - position)  # the server sends the whole file, because it has no ranges
            position += len(data)
            if skip < len(data):
                yield data[skip:]
        if file.size is not None and position < file.size:
            raise ConnectionError(f"the connection was closed after {position} of {file.size} bytes")


def _tag(headers: http.client.HTTPMessage) -> str:
    """Return a strong ETag, or the time and the size; empty if the server sends neither."""
    etag = headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return f"etag:{etag}"
    modified = headers.get("Last-Modified")
    return f"modified:{modified} {_size(headers)}".strip() if modified else ""


def _size(headers: http.client.HTTPMessage) -> str:
    """Return the size of the whole file in bytes, as text; empty if unknown."""
    return (headers.get("Content-Range") or "").rpartition("/")[2] or headers.get("Content-Length") or ""
