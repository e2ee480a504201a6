from __future__ import annotations


class HostDiscovery:
    def find_available_hosts_and_slots(self) -> dict[str, int]:
        raise NotImplementedError


class HostManager:
    @staticmethod
    def order_available_hosts(available: set[str], before: list[str]) -> list[str]:
        raise AssertionError("the helper has an order of its own")
