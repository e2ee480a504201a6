"""The ports for the ranks of an attempt: free, different, and outside the ephemeral range."""

from __future__ import annotations

import itertools
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
        numbers = itertools.chain([taken.getsockname()[1]], range(23_457, 24_457))
        monkeypatch.setattr(ports.random, "randrange", lambda *_: next(numbers))
        [(host, port)] = ports.choose([("host", 1)]).values()
        assert host == "127.0.0.1"
        assert 23_457 <= port < 24_457  # another process may use the first ones
