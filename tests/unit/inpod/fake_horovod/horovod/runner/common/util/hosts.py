from __future__ import annotations

from dataclasses import dataclass


@dataclass
class HostInfo:
    hostname: str
    slots: int


def parse_hosts(hosts: str) -> list[HostInfo]:
    return [HostInfo(name, int(slots)) for name, slots in (host.split(":") for host in hosts.split(","))]


def get_host_assignments(hosts: list[HostInfo], np: int) -> list[HostInfo]:
    assert np == sum(host.slots for host in hosts)
    return hosts
