"""The ports for the ranks of an attempt: free, different, and outside the ephemeral range."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from allranks.local import ports


def test_ports_are_free_different_and_not_ephemeral() -> None:
    wanted = [(f"host-{number}", 29500) for number in range(200)]
    chosen = ports.choose(wanted)
    assert list(chosen) == wanted
    numbers = [port for _, port in chosen.values()]
    assert len(set(numbers)) == 200
    assert max(numbers) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with socket.create_server(chosen[wanted[0]]):
        pass


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        numbers = iter([taken.getsockname()[1], 23_457])
        monkeypatch.setattr(ports.random, "randrange", lambda *_: next(numbers))
        assert ports.choose([("host", 1)]) == {("host", 1): ("127.0.0.1", 23_457)}
