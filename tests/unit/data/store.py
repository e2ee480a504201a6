"""A bucket of Google or a container of Azure, on a server behind a proxy that injects faults."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from allranks.data.object_source import filesystem
from support.cutting_proxy import Way, cutting_proxy
from support.store_servers import ACCOUNT, azure_environment, azure_server, gcs_environment, gcs_server

_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Server:
    scheme: str
    environment: dict[str, str]
    """Through the proxy."""
    way: Way
    """The proxy."""

    @property
    def endpoint(self) -> str:
        """The address of the proxy, as the client needs it."""
        return self.way.url if self.scheme == "gs" else f"{self.way.url}/{ACCOUNT}"


@dataclass(frozen=True)
class Store:
    """An empty bucket."""

    server: Server
    bucket: str

    @property
    def uri(self) -> str:
        return f"{self.server.scheme}://{self.bucket}"

    @property
    def way(self) -> Way:
        return self.server.way

    @property
    def fs(self) -> Any:
        return filesystem(self.uri)

    def create(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # adlfs says that there is no such container
            self.fs.mkdir(self.bucket)

    def put(self, **objects: bytes) -> None:
        for key, content in objects.items():
            self.fs.pipe_file(f"{self.bucket}/{key.replace('__', '/')}", content)

    def keys(self) -> dict[str, bytes]:
        fs, start = self.fs, f"{self.bucket}/"
        return {path.removeprefix(start): fs.cat_file(path) for path in fs.find(self.bucket)}


@contextlib.contextmanager
def server(scheme: str) -> Iterator[Server]:
    with ExitStack() as stack:
        url = stack.enter_context(gcs_server() if scheme == "gs" else azure_server())
        way = stack.enter_context(cutting_proxy(url))
        found = Server(scheme, {}, way)
        environment = gcs_environment if scheme == "gs" else azure_environment
        yield Server(scheme, environment(found.endpoint), way)


@contextlib.contextmanager
def empty(server: Server) -> Iterator[Store]:
    """The variables of `server` must be set."""
    assert server.environment.items() <= os.environ.items()
    made = Store(server, f"data-{next(_NUMBERS)}")
    made.create()
    yield made
    way = server.way
    way.cut_after, way.cuts, way.answer, way.received = None, 0, None, 0
    way.logins.clear()
