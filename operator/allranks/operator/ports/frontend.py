"""The process that parses HTTP of untrusted clients: metrics, probes and reports. It has no token and no rights.

It runs in a container of its own in the operator's pod, and asks the controller over a Unix socket (`socket_protocol`).
It imports neither a client of the API server nor pydantic, so that it stays small. `SocketClient` connects again with a
backoff; meanwhile, and when too many calls wait, clients get 503 at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import signal
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, TypeVar

from allranks.operator.ports import socket_protocol as protocol
from allranks.operator.ports.backend import NoAnswer, Page, token_hash
from allranks.operator.ports.http_servers import HttpServers, Ports, probe
from allranks.telemetry.messages import Answer, Denied

T = TypeVar("T")

logger = logging.getLogger("allranks.frontend")


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Seconds, numbers and bytes."""

    backoff_first: float = 0.05
    backoff_last: float = 1.0
    waiting: int = 4096
    """Calls about reports that wait for their answer. Senders of further ones get 503."""
    unsent_bytes: int = 4 * 1024 * 1024
    """Of requests that the controller has not read. Meanwhile reports get 503."""
    report_seconds: float = 15.0
    """A review of a token takes as long as the API server."""
    check_seconds: float = 4.0
    """Less than the timeout of the kubelet's probes."""
    metrics_seconds: float = 10.0
    polls: int = 6_000
    """Supervisors that wait for orders, beside the calls about reports. Further ones get 503."""
    poll_seconds: float = 35.0
    """More than the controller lets a supervisor wait."""
    count_seconds: float = 1.0
    """Interval of the counts."""
    accepted: int = 16_384
    accepted_seconds: float = 60.0
    """Tokens that were accepted, by their hash: `report` alone checks them again, which halves the calls."""


class SocketClient:
    """`run` connects, and never returns."""

    def __init__(self, path: str, limits: ClientLimits | None = None) -> None:
        self._path, self._limits = path, limits or ClientLimits()
        self._writer: asyncio.StreamWriter | None = None
        self._ids = itertools.count()
        self._calls: dict[int, asyncio.Future[protocol.Reply]] = {}
        self._counts: Counter[int] = Counter()
        self._polls = 0
        """Calls of supervisors among them."""
        self._accepted: OrderedDict[bytes, float] = OrderedDict()
        """Hash of the token -> until."""

    async def run(self) -> None:
        counting = asyncio.create_task(self._send_counts(), name="counts")
        try:
            await self._stay_connected()
        finally:
            counting.cancel()

    async def identify(self, token: str) -> None:
        key = token_hash(token)
        if self._accepted.get(key, float("-inf")) > time.monotonic():
            return
        answer = await self._call_about_report(protocol.Identify(next(self._ids), _ascii(token)), Answer | None)
        if answer is not None:
            raise Denied(answer.status, str(answer.body.get("error", "")), answer.retry_after)
        self._accepted.pop(key, None)
        self._accepted[key] = time.monotonic() + self._limits.accepted_seconds
        if len(self._accepted) > self._limits.accepted:
            self._accepted.popitem(last=False)

    async def report(self, token: str, body: bytes) -> Answer:
        return await self._send(protocol.Report, token, body)

    async def outcome(self, token: str, body: bytes) -> Answer:
        return await self._send(protocol.Outcome, token, body)

    async def process(self, token: str, body: bytes) -> Answer:
        if self._polls >= self._limits.polls:
            return Answer(503, {"error": "too many supervisors wait"}, 5.0)
        self._polls += 1
        try:
            return await self._send(protocol.Process, token, body, self._limits.poll_seconds)
        finally:
            self._polls -= 1

    async def code(self, token: str, body: bytes) -> Answer:
        return await self._send(protocol.Code, token, body)

    async def _send(
        self,
        kind: type[protocol.Report | protocol.Outcome | protocol.Process | protocol.Code],
        token: str,
        body: bytes,
        seconds: float | None = None,
    ) -> Answer:
        try:
            request = kind(next(self._ids), _ascii(token), body)
            answer: Answer = await self._call_about_report(request, Answer, seconds)
        except Denied as denied:
            answer = denied.answer
        if answer.status in _DENIED:
            self._accepted.pop(token_hash(token), None)
        return answer

    async def check(self, name: str) -> str:
        assert name in ("healthz", "readyz")
        try:
            request = protocol.Check(next(self._ids), name)  # type: ignore[arg-type]
            return await self._call(request, str, self._limits.check_seconds)
        except NoAnswer as error:
            return str(error)

    async def metrics(self) -> Page:
        return await self._call(protocol.Metrics(next(self._ids)), Page, self._limits.metrics_seconds)

    async def admits(self, authorization: str, peer: str) -> int:
        if not authorization.isascii():
            return 401
        request = protocol.Admits(next(self._ids), authorization, peer[:64])
        try:
            return await self._call(request, int, self._limits.metrics_seconds)
        except NoAnswer:
            return 503

    def count(self, status: int, count: int = 1) -> None:
        self._counts[status] += count

    async def _stay_connected(self) -> None:
        limits, backoff = self._limits, self._limits.backoff_first
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path)
            except OSError as error:
                logger.debug("cannot connect to the operator: %s", error)
            else:
                if await self._read(reader, writer):
                    backoff = limits.backoff_first
            await asyncio.sleep(random.uniform(0.5, 1.0) * backoff)
            backoff = min(limits.backoff_last, 2 * backoff)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read replies until the connection ends. Return whether the controller answered anything."""
        self._writer, answered = writer, False
        self._accepted.clear()  # a new controller has accepted none yet
        logger.info("connected to the operator")
        try:
            while True:
                reply = protocol.decode_reply(await protocol.read_frame(reader, protocol.REPLY_BYTES))
                answered = True
                call = self._calls.get(reply.id)
                if call is not None and not call.done():  # the caller may have given up
                    call.set_result(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            logger.warning("the operator closed the connection; connecting again")
        except protocol.ProtocolError as error:
            logger.error("the operator is of another version: %s", error)
        finally:
            self._writer = None
            writer.transport.abort()
            for call in self._calls.values():
                if not call.done():
                    call.set_exception(NoAnswer("the operator restarts"))
        return answered

    async def _call_about_report(self, request: protocol.Request, kind: Any, seconds: float | None = None) -> Any:
        """Raises Denied with 503 if there is no answer now."""
        reports = len(self._calls) - self._polls
        if reports >= self._limits.waiting or self._unsent() > self._limits.unsent_bytes:
            raise Denied(503, "too many reports wait for the operator", 5.0)
        try:
            return await self._call(request, kind, seconds or self._limits.report_seconds)
        except NoAnswer as error:
            raise Denied(503, str(error), 1.0) from error

    def _unsent(self) -> int:
        return self._writer.transport.get_write_buffer_size() if self._writer else 0

    async def _call(self, request: protocol.Request, kind: type[T], seconds: float) -> T:
        """Send a request and wait for its reply. Raises NoAnswer; ProtocolError if the controller has another
        version."""
        if self._writer is None or self._writer.is_closing():
            raise NoAnswer("the operator does not answer: it starts or restarts")
        call: asyncio.Future[protocol.Reply] = asyncio.get_running_loop().create_future()
        self._calls[request.id] = call
        self._writer.write(protocol.request_frame(request))
        try:
            async with asyncio.timeout(seconds):
                reply = await call
        except TimeoutError:
            raise NoAnswer(f"the operator did not answer for {seconds:g} s") from None
        finally:
            del self._calls[request.id]
        if reply.failed:
            raise NoAnswer("the operator failed to answer; see its log")
        return protocol.decode_result(reply, kind)

    async def _send_counts(self) -> None:
        while True:
            await asyncio.sleep(self._limits.count_seconds)
            if self._counts and self._writer is not None and not self._writer.is_closing():
                counts, self._counts = self._counts, Counter()
                bounded = {status: min(count, protocol.MAX_COUNT) for status, count in counts.items()}
                self._writer.write(protocol.request_frame(protocol.Count(next(self._ids), bounded)))


_DENIED = frozenset({401, 403, 503})


def _ascii(token: str) -> str:
    """Return the token. Other text than ASCII from a header may not be encodable. Raises Denied."""
    if not token.isascii():
        raise Denied(401, "invalid token")
    return token


class Frontend:
    """`run` once. /livez, on the port for probes, is about this process alone."""

    def __init__(self, ports: Ports, socket: str) -> None:
        self.client = SocketClient(socket)
        self.http = HttpServers(ports, self.client, {"/livez": probe(_alive)})

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or SIGTERM or SIGINT arrives. Raises OSError when a port is in use."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        client = asyncio.create_task(self.client.run(), name="socket")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await self.http.start()
            await asyncio.wait([client, stopping], return_when=asyncio.FIRST_COMPLETED)
            if client.done():
                client.result()  # raises: `run` never returns
        finally:
            await self.http.stop()
            for task in (client, stopping):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        logger.info("stopped")


async def _alive() -> str:
    return ""
