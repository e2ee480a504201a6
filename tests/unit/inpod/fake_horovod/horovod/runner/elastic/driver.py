"""A fake driver: it starts a rank in each slot of each host at once. The ranks do not communicate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from horovod.runner.elastic.discovery import HostDiscovery, HostManager

POLL_SECONDS = 0.02


@dataclass
class SlotInfo:
    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


class Registry:
    def __init__(self) -> None:
        self.states: list[str] = []

    def count(self, state: str) -> int:
        return self.states.count(state)


class Manager:
    """Horovod's host manager and its hosts."""

    def __init__(self, discovery: HostDiscovery) -> None:
        self.discovery, self.banned = discovery, set[str]()

    @property
    def current_hosts(self) -> Manager:
        return self

    def slots(self) -> dict[str, int]:
        found = self.discovery.find_available_hosts_and_slots()
        return {name: slots for name, slots in found.items() if name not in self.banned}

    def count_available_slots(self) -> int:
        return sum(self.slots().values())


class ElasticDriver:
    def __init__(self, rendezvous: Any, discovery: HostDiscovery, least: int, most: int, timeout: float) -> None:
        self._host_manager = Manager(discovery)
        self._worker_registry = Registry()
        self._shutdown = threading.Event()
        self._rendezvous, self._timeout = rendezvous, timeout
        self.host_assignments: dict[str, int] = {}
        self._running = 0
        self._lock = threading.Lock()

    def start(self, least: int, start: Callable[..., tuple[int, float]]) -> None:
        self.wait_for_available_slots(least)
        threading.Thread(target=self._watch, args=(start,), daemon=True).start()

    def wait_for_available_slots(self, least: int, min_hosts: int = 1) -> None:
        deadline = time.monotonic() + self._timeout
        while self._host_manager.count_available_slots() < least:
            if time.monotonic() > deadline:
                raise RuntimeError("Horovod's own words")
            time.sleep(POLL_SECONDS)

    def _watch(self, start: Callable[..., tuple[int, float]]) -> None:
        while not self.finished():
            slots = self._host_manager.slots()
            names = HostManager.order_available_hosts(set(slots), list(self.host_assignments))
            new = [name for name in names if name not in self.host_assignments]
            self.host_assignments = {name: slots[name] for name in names}
            places = [(name, local) for name in names for local in range(slots[name])]
            for rank, (name, local) in enumerate(places):
                if name in new:
                    slot = SlotInfo(name, rank, local, names.index(name), len(places), slots[name], len(names))
                    with self._lock:
                        self._running += 1
                    threading.Thread(target=self._run, args=(slot, start), daemon=True).start()
            with self._lock:
                if self._running == 0:
                    self._shutdown.set()
            time.sleep(POLL_SECONDS)

    def _run(self, slot: SlotInfo, start: Callable[..., tuple[int, float]]) -> None:
        code, _ = start(slot, [])
        with self._lock:
            self._running -= 1
            if code == 0:
                self._worker_registry.states.append("SUCCESS")
            else:
                self._host_manager.banned.add(slot.hostname)

    def finished(self) -> bool:
        return self._shutdown.is_set()

    def has_rank_assignment(self, host: str, slot: int) -> bool:
        return host in self.host_assignments

    def _notify_workers_host_changes(self, current_hosts: Any, result: Any) -> None:
        pass
