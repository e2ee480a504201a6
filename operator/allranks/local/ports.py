"""Free ports for the ranks of one attempt."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from allranks.local.errors import LocalRunError

_LOWEST = 10_000
_EPHEMERAL = 32_768
"""Default lower end of the ephemeral port range on Linux."""
_TRIES = 1000


def choose(listeners: Iterable[tuple[str, int]]) -> Mapping[tuple[str, int], tuple[str, int]]:
    """Return (pod hostname, port) -> (127.0.0.1, free port), all different. Raise LocalRunError if no port is free.

    A rank listens on its port only after seconds (it imports torch first). By then a port from bind(0) may belong to an
    outgoing connection, of which gloo opens many. So the ports are below the ephemeral range.
    """
    with contextlib.ExitStack() as held:
        return {key: ("127.0.0.1", _hold_free_port(held)) for key in listeners}


def _hold_free_port(held: contextlib.ExitStack) -> int:
    try:
        for _ in range(_TRIES):
            port = random.randrange(_LOWEST, max(_LOWEST + 1, _first_ephemeral()))
            with contextlib.suppress(OSError), contextlib.ExitStack() as attempt:
                _bind(attempt, port)
                held.push(attempt.pop_all())
                return port
        fallback = held.enter_context(socket.socket())
        fallback.bind(("127.0.0.1", 0))
        return int(fallback.getsockname()[1])
    except OSError as error:
        raise LocalRunError.from_os(error, "no free port was found") from error


def _bind(stack: contextlib.ExitStack, port: int) -> None:
    """Bind the port on all addresses: a listener on 0.0.0.0 blocks 127.0.0.1, and torch listens on ::."""
    stack.enter_context(socket.socket(socket.AF_INET)).bind(("", port))
    try:
        six = stack.enter_context(socket.socket(socket.AF_INET6))
        six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        six.bind(("::", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise  # any other error means that this machine has no IPv6


def _first_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL
