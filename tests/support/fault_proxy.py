"""A proxy between operator and API server: forwards requests, records writes, and injects the faults of a policy.

HTTP to the operator, TLS to the API server. All proxies share one event loop in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from .fault_policy import CREATE, LIST, READ, STATUS, WATCH, WRITE, Fault, Policy

T = TypeVar("T")
ObjectKey = tuple[str, str]
"""(name of the kind in paths, name)"""

Late = tuple[web.BaseRequest, Any, bytes, ObjectKey]
"""A write: request, decoded body, raw body, object."""

Death = Literal["exactly", "together", "late"]
"""exactly: after the Nth write; concurrent requests are lost. together: concurrent requests are carried out too. late:
the Nth write and concurrent ones reach the API server long after the next operator has started."""

OUTAGE_SECONDS = 2.5
_PASSED_ON = ("Authorization", "Content-Type", "Accept", "User-Agent")
_WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))
_LIST_OR_ITEM = re.compile(r"/namespaces/(?P<namespace>[^/]+)/(?P<kind>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>\w+))?$")


class Threads:
    """One event loop in a thread, for all proxies."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(600)

    def close(self) -> None:
        self.do(asyncio.sleep(0.25))  # connections end in the next iterations of the loop
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(600)
        self.loop.close()


@dataclass(frozen=True)
class Write:
    """A write request and the code of its response."""

    verb: str
    path: str
    body: Any
    code: int


@dataclass
class Record:
    """The operator's writes and their outcome, without Events, on which nothing depends."""

    writes: list[Write] = field(default_factory=list)
    """All writes that reached the API server."""
    creates: Counter[ObjectKey] = field(default_factory=Counter)
    deletes: Counter[ObjectKey] = field(default_factory=Counter)
    """Deletes that started a deletion. A delete of a terminating object changes nothing."""
    to_come: dict[ObjectKey, float] = field(default_factory=dict)
    """Creates that got a 409 for a conflict of a quota, and when: the operator retries them."""

    @property
    def successes(self) -> int:
        return sum(1 for write in self.writes if write.code < 300)


class Proxy:
    """Its methods are called from the test's thread. `url` is its address for the operator."""

    def __init__(self, threads: Threads, url: str, ca_file: str, token: str, policy: Policy | None = None) -> None:
        self._threads, self._upstream, self._ca_file, self._token = threads, url, ca_file, token
        self._policy = policy
        self.record = Record()
        self.dead = threading.Event()
        """The operator must be killed now: its requests are ignored."""
        self.late: list[Late] = []
        """Writes of a killed operator that have not reached the API server yet."""
        self._kill_after: int | None = None
        self._going: set[str] = set()
        """UIDs of the objects that the operator has deleted."""
        self._how = ""
        self._away_until = 0.0
        self._one_by_one: asyncio.Lock | None = None
        self._on_death: Callable[[], None] = lambda: None
        self._present: set[asyncio.Task[Any]] = set()
        self._free = asyncio.Event()
        """Cleared while writes are held."""
        self._free.set()
        threads.do(self._start())

    def kill_after(self, writes: int, how: Death, on_death: Callable[[], None] = lambda: None) -> None:
        """Kills the operator after this many successful writes."""
        self._kill_after, self._how, self._on_death = writes, how, on_death
        self._one_by_one = None if how == "together" else asyncio.Lock()

    def deliver(self, statuses: bool) -> bool:
        """Delivers late writes in order, status writes only with `statuses`. Whether there were any."""
        ready = [late for late in self.late if statuses or late[0].method != "PATCH"]
        self.late = [late for late in self.late if late not in ready]
        for late in ready:
            self._threads.do(self._carry_out(*late))
        return bool(ready)

    def revive(self) -> None:
        """Accepts requests again. The killed operator must be gone."""
        self._kill_after, self._one_by_one = None, None
        self._threads.do(self._forget())
        self.dead.clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the operator's writes during the block."""
        self._threads.do(self._hold())
        try:
            yield
        finally:
            self._threads.do(self._release())

    def close(self) -> None:
        self._threads.do(self._stop())

    async def _hold(self) -> None:
        self._free.clear()

    async def _release(self) -> None:
        self._free.set()

    async def _start(self) -> None:
        tls = ssl.create_default_context(cafile=self._ca_file)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _forget(self) -> None:
        present = list(self._present)
        for task in present:
            task.cancel()
        await asyncio.gather(*present, return_exceptions=True)

    async def _stop(self) -> None:
        await self._forget()
        await self._runner.cleanup()
        await self._session.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handles the request in a task, because aiohttp does not cancel a handler whose client has disconnected."""
        work = asyncio.create_task(self._handle(request))
        self._present.add(work)
        work.add_done_callback(self._present.discard)
        try:
            return await work
        except (_Reset, asyncio.CancelledError, aiohttp.ClientError, OSError):
            _reset(request)
            return web.Response()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._while_alive()
        if time.monotonic() < self._away_until:
            return _failure(503)
        if "watch" in request.query:
            return await self._watch(request)
        if request.method in _WRITES and _kind(request) != "events":
            return await self._write(request)
        return await self._read(request)

    async def _while_alive(self) -> None:
        """Requests of a killed operator never continue."""
        if self.dead.is_set():
            await asyncio.Event().wait()

    # Reads and Events

    async def _read(self, request: web.BaseRequest) -> web.StreamResponse:
        query = dict(request.query)
        is_list = "limit" in query and query["limit"] != "1"
        fault = self._draw(request, LIST if is_list and "continue" not in query else READ, query.pop("continue", ""))
        query = dict(request.query)
        if fault and fault.kind == "pages":
            query["limit"] = "1"
        if fault and fault.kind == "expired":
            return await self._expired(request, query)
        await _before(fault)
        if answer := _instead(fault):
            return answer
        code, headers, body = await self._ask(request, query, await request.read())
        await self._while_alive()
        return web.Response(status=code, headers=headers, body=body)

    async def _expired(self, request: web.BaseRequest, query: dict[str, str]) -> web.StreamResponse:
        """The first page, with an expired continue token."""
        code, headers, body = await self._ask(request, {**query, "limit": "1"}, b"")
        listed = json.loads(body)
        if code != 200 or not listed["metadata"].get("continue"):
            return web.Response(status=code, headers=headers, body=body)
        listed["metadata"]["continue"] = "expired"
        return web.json_response(listed)

    # Writes

    async def _write(self, request: web.BaseRequest) -> web.StreamResponse:
        sent = await request.read()
        body = json.loads(sent) if sent else None
        kinds = {"POST": CREATE, "PATCH": STATUS}.get(request.method, WRITE)
        name = body["metadata"].get("name", "") if request.method == "POST" else ""
        key = (_kind(request), name)
        fault = self._draw(request, kinds, name)
        if fault and fault.kind == "outage":
            self._away_until = time.monotonic() + OUTAGE_SECONDS
            return _failure(503)
        await _before(fault)
        # The operator cannot read a Secret to learn that it exists, so it creates it again, and its pods wait.
        again = key not in self.record.creates or key[0] == "secrets"
        if fault and fault.kind == "409" and request.method == "POST" and again:
            self.record.to_come[key] = time.monotonic()
        if answer := _instead(fault):
            return answer
        await self._free.wait()
        async with self._one_by_one or contextlib.nullcontext():
            if self._how == "late" and self._kill_after is not None:
                if self._kill_after <= 1 and not self.dead.is_set():
                    self._die()
                if self.dead.is_set():
                    self.late.append((request, body, sent, key))
                    raise _Reset
            await self._while_alive()
            # Not cancelled when the operator disconnects: the API server would not notice in time either.
            code, headers, answered = await asyncio.shield(self._carry_out(request, body, sent, key))
        await self._while_alive()
        if answer := await _after(fault):
            return answer
        return web.Response(status=code, headers=headers, body=answered)

    async def _carry_out(
        self, request: web.BaseRequest, body: Any, sent: bytes, key: ObjectKey
    ) -> tuple[int, dict[str, str], bytes]:
        begins = await self._uid_to_delete(request, body) if request.method == "DELETE" else ""
        code, headers, answered = await self._ask(request, dict(request.query), sent)
        record = self.record
        record.writes.append(Write(request.method, request.path, body, code))
        if request.method == "POST":
            record.to_come.pop(key, None)
            if code == 201:
                record.creates[key] += 1
        # A delete that is sent twice because the first response was late starts one deletion.
        if begins and code < 300 and begins not in self._going:
            self._going.add(begins)
            record.deletes[(_kind(request), request.path.rsplit("/", 1)[-1])] += 1
        if code < 300 and self._kill_after is not None and not self.dead.is_set():
            self._kill_after -= 1
            if self._kill_after <= 0:
                self._die()
        return code, headers, answered

    def _die(self) -> None:
        self.dead.set()
        self._on_death()

    async def _uid_to_delete(self, request: web.BaseRequest, body: Any) -> str:
        """UID of the object to delete; empty if the request changes nothing."""
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self._session.get(self._upstream + request.path, headers=headers) as response:
            if response.status != 200:
                return ""
            metadata = (await response.json())["metadata"]
        uid: str = metadata["uid"]
        wanted = ((body or {}).get("preconditions") or {}).get("uid", uid)
        return uid if wanted == uid and "deletionTimestamp" not in metadata else ""

    # Watches

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        fault = self._draw(request, WATCH)
        await _before(fault)
        if answer := _instead(fault):
            return answer
        headers = _headers(request)
        async with self._session.get(self._url(request, dict(request.query)), headers=headers) as upstream:
            answer = web.StreamResponse(status=upstream.status)
            answer.content_type = upstream.content_type
            if upstream.status != 200:
                return web.Response(status=upstream.status, body=await upstream.read())
            await answer.prepare(request)
            number = 0
            async with contextlib.aclosing(_lines(upstream.content)) as lines:
                async for line in self._inject(lines, fault):
                    number += 1
                    await self._while_alive()
                    await answer.write(line)
            await answer.write_eof()
        return answer

    async def _inject(self, lines: AsyncIterator[bytes], fault: Fault | None) -> AsyncIterator[bytes]:
        kind = fault.kind if fault else ""
        healthy = fault.lines if fault else 0
        if kind in ("cut", "error 410", "error 500", "silent") and healthy == 0:
            async for line in _broken(kind):
                yield line
            return
        number, before = 0, b""
        async for line in lines:
            number += 1
            if kind == "late" and fault and number > healthy:
                await asyncio.sleep(fault.seconds)
            yield line
            if kind == "again" and before:
                yield before
                yield line
            before = line
            if number == healthy and kind in ("cut", "error 410", "error 500", "silent"):
                async for line in _broken(kind):
                    yield line
                return

    # Forwarding

    async def _ask(
        self, request: web.BaseRequest, query: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if query.get("continue") == "expired":
            return 410, {"Content-Type": "application/json"}, _status(410)
        how: dict[str, Any] = {"data": body} if body else {}
        url = self._url(request, query)
        async with self._session.request(request.method, url, headers=_headers(request), **how) as response:
            kept = ("Content-Type", "Content-Encoding", "Retry-After")
            headers = {name: response.headers[name] for name in kept if name in response.headers}
            return response.status, headers, await response.read()

    def _url(self, request: web.BaseRequest, query: dict[str, str]) -> str:
        return f"{self._upstream}{request.path}" + (f"?{urlencode(query)}" if query else "")

    def _draw(self, request: web.BaseRequest, kinds: tuple[str, ...], more: str = "") -> Fault | None:
        if self._policy is None:
            return None
        verb = "WATCH" if "watch" in request.query else request.method
        found = _LIST_OR_ITEM.search(request.path)
        # Namespaces and UIDs differ in every run.
        namespace = found["namespace"] if found else ""
        path = request.path.replace(namespace, "ns") if namespace else request.path
        path = re.sub(r"/events/.*", "/events/x", re.sub(r"-ssh-\w+", "-ssh", path))
        return self._policy.draw(f"{verb} {path} {re.sub('-ssh-.*', '-ssh', more)}".strip(), kinds)


class _Reset(Exception):
    """The connection breaks."""


async def _before(fault: Fault | None) -> None:
    """Faults before a request is forwarded."""
    if fault is None:
        return
    if fault.kind == "hang":
        await asyncio.Event().wait()
    if fault.kind == "reset":
        raise _Reset
    if fault.kind == "slow":
        await asyncio.sleep(fault.seconds)


def _instead(fault: Fault | None) -> web.Response | None:
    """A response that is not from the API server."""
    if fault is None or not fault.kind.isdigit():
        return None
    headers = {"Retry-After": f"{fault.seconds:.0f}"} if fault.kind == "429" else {}
    return _failure(int(fault.kind), headers)


async def _after(fault: Fault | None) -> web.Response | None:
    """Faults of a response."""
    if fault is None or not fault.kind.endswith(" after"):
        return None
    what = fault.kind.removesuffix(" after")
    if what == "hang":
        await asyncio.Event().wait()
    if what == "reset":
        raise _Reset
    if what == "slow":
        await asyncio.sleep(fault.seconds)
        return None
    return _failure(int(what), reason="AlreadyExists" if what == "409" else "")


def _failure(code: int, headers: dict[str, str] | None = None, reason: str = "") -> web.Response:
    return web.Response(status=code, headers=headers, body=_status(code, reason), content_type="application/json")


def _status(code: int, reason: str = "") -> bytes:
    reason = reason or _REASONS[code]
    about = {"code": code, "reason": reason, "message": f"the tests answer {code}", "status": "Failure"}
    return json.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, **about}).encode()


_REASONS = {
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


async def _broken(kind: str) -> AsyncIterator[bytes]:
    """The end of a faulty watch."""
    if kind == "silent":
        await asyncio.Event().wait()
    if kind == "cut":
        # In the middle of a line.
        yield b'{"type":"MODIF'
        raise _Reset
    code = int(kind.removeprefix("error "))
    yield json.dumps({"type": "ERROR", "object": json.loads(_status(code))}).encode() + b"\n"


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _headers(request: web.BaseRequest) -> dict[str, str]:
    return {name: request.headers[name] for name in _PASSED_ON if name in request.headers}


def _kind(request: web.BaseRequest) -> str:
    found = _LIST_OR_ITEM.search(request.path)
    return found["kind"] if found else ""


def _reset(request: web.BaseRequest) -> None:
    """Sends RST instead of closing the connection."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
