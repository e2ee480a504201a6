"""The driver of Elastic Horovod in the first worker: Horovod's own driver, with pods that register as hosts.

`horovodrun` uses ssh to start ranks in pods. Here the agent of each pod (`horovod_elastic.py`) asks every second over
HTTP, on the port of Horovod's rendezvous, which ranks it should run. Worker 0 is always Horovod's first host: rank 0
holds the state that other ranks receive, and a failure of that pod ends the attempt anyway.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

try:
    from horovod.runner.elastic.discovery import HostDiscovery, HostManager
    from horovod.runner.elastic.driver import ElasticDriver
    from horovod.runner.elastic.rendezvous import create_rendezvous_handler
    from horovod.runner.elastic.worker import HostUpdateResult
    from horovod.runner.http.http_server import RendezvousHTTPServer
except ImportError as error:
    sys.exit(f"allranks: the image's python3 has no Horovod ({error}): install it, or use another image")

from rendezvous_secret import guarded  # type: ignore[import-not-found]  # in the same directory

ELASTIC_TIMEOUT_SECONDS = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", "315360000"))
"""Longest time with fewer workers than the minimum. horovodrun uses the same variable. The default is ten years,
because pods may be unscheduled for a long time (and a thread cannot wait forever)."""
ADMITTED_SECONDS = 60.0
"""Time for which a pod may use the rendezvous after its last call. Another pod may get its address later."""
SILENT_SECONDS = 5.0
"""A pod that has not called for this long is gone."""
REMIND_SECONDS = 2.0
NOTIFY_SECONDS = 5.0
POLL_SECONDS = 0.1
KEY_SECONDS = 0.02
GONE = 1
"""The exit code of ranks without a reported one. Never 0: for Horovod a single 0 ends the training."""
SLOT = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


@dataclass
class Host:
    """One incarnation of a pod. Horovod never reuses a failed host, so a new pod has a new name."""

    index: int
    slots: int
    last_call: float = 0.0
    ranks: dict[int, dict[str, str]] = field(default_factory=dict)  # local rank -> its environment, once started
    ended: dict[int, int] = field(default_factory=dict)  # local rank -> exit code
    leaving: bool = False
    gone: bool = False
    notified: bool = False  # of the end of the training


class Hosts(HostDiscovery):  # type: ignore[misc]  # Horovod has no types
    """The pods that have called: Horovod's list of hosts, and the way to start ranks on them."""

    def __init__(self) -> None:
        super().__init__()
        self.over: int | None = None
        self._hosts: dict[str, Host] = {}
        self._changed = threading.Condition()

    def on_call(self, request: dict[str, Any], has_ranks: Any) -> dict[str, Any]:
        """Handle the call of a pod; return the answer."""
        name = request["host"]
        with self._changed:
            if name not in self._hosts:
                for older in self._hosts.values():
                    older.gone |= older.index == request["index"]
                self._hosts[name] = Host(request["index"], request["slots"])
            host = self._hosts[name]
            host.last_call = time.monotonic()
            host.ended.update({int(local): code for local, code in request["ended"].items()})
            host.leaving |= request["leaving"]
            answer = {
                "over": self.over,
                "gone": host.gone,
                "out": host.leaving and not has_ranks(name),
                "ranks": host.ranks,
            }
            host.gone |= request["bye"]
            self._changed.notify_all()
        return answer

    def on_answered(self, name: str, answer: dict[str, Any]) -> None:
        """Record that the answer was sent. This process may end when all pods know that the training is over."""
        with self._changed:
            self._hosts[name].notified |= answer["over"] is not None

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the slots of each host. Horovod calls this every second."""
        silent = time.monotonic() - SILENT_SECONDS
        with self._changed:
            for name, host in self._hosts.items():
                if host.index != 0 and not host.gone and host.last_call < silent:  # worker 0 is this process
                    print(f"allranks: {name} has been silent for {SILENT_SECONDS:.0f} s", file=sys.stderr)
                    host.gone = True
                    self._changed.notify_all()
            slots = {name: host.slots for name, host in self._hosts.items() if not (host.gone or host.leaving)}
            first = any(self._hosts[name].index == 0 for name in slots)
            return slots if first else {}

    def ordered(self, available: set[str], before: list[str]) -> list[str]:
        """Return the hosts sorted by worker index. `HostManager` would use the order of arrival."""
        return sorted(available, key=lambda name: (self._hosts[name].index, name))

    def start(self, slot: Any, events: Any) -> tuple[int, float]:
        """Run a rank, in a separate thread; return its exit code and the time. Horovod's `create_worker_fn`."""
        with self._changed:
            host = self._hosts[slot.hostname]
            host.ranks[slot.local_rank] = {f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in SLOT}
            self._changed.wait_for(lambda: host.gone or slot.local_rank in host.ended)
            code = host.ended.get(slot.local_rank, GONE)
            return code or (GONE if host.leaving else 0), time.time()

    def check(self, names: Iterable[str]) -> None:
        """Raise ConnectionAbortedError if one of the hosts is gone."""
        with self._changed:
            for name in names:
                if self._hosts[name].gone:
                    raise ConnectionAbortedError(f"{name} is gone")

    def end(self, code: int) -> None:
        """End the training; the first call sets the status. Return when the other pods have been notified."""
        with self._changed:
            if self.over is None:
                self.over = code
        deadline = time.monotonic() + NOTIFY_SECONDS
        while time.monotonic() < deadline:
            with self._changed:
                if all(host.notified or host.gone or host.index == 0 for host in self._hosts.values()):
                    return
            time.sleep(POLL_SECONDS)


class Driver(ElasticDriver):  # type: ignore[misc]
    """Horovod's driver with two fixes: see `_notify_workers_host_changes` and `remind`."""

    failure = "every rank has failed"

    def available_slots(self) -> int:
        return int(self._host_manager.current_hosts.count_available_slots())

    def wait(self, seconds: float) -> None:
        self._shutdown.wait(seconds)

    def succeeded(self) -> bool:
        return bool(self._worker_registry.count("SUCCESS"))

    def wait_for_available_slots(self, min_num_proc: int, min_hosts: int = 1) -> Any:
        try:
            return super().wait_for_available_slots(min_num_proc, min_hosts)
        except Exception:
            self.failure = (
                f"{self.available_slots()} of at least {min_num_proc} ranks have a worker, for more than "
                f"{ELASTIC_TIMEOUT_SECONDS:.0f} s (HOROVOD_ELASTIC_TIMEOUT)"
            )
            raise

    def _notify_workers_host_changes(self, current_hosts: Any, update_res: Any) -> None:
        # After a notice of a removal alone, ranks do not synchronize their state. A rank that joins at the same moment
        # does, and all ranks would hang.
        super()._notify_workers_host_changes(current_hosts, HostUpdateResult.mixed)

    def remind(self) -> None:
        """Repeat the notice: a rank drops one that arrives during a rendezvous. No effect if all ranks are up to
        date."""
        self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)


class Rendezvous:
    """Horovod's key-value store on a fixed port. It outlives the training, because pods must still learn of the end."""

    def __init__(self, port: int) -> None:
        self._port = port

    def start(self, handler: Any) -> None:
        RendezvousHTTPServer.request_queue_size = 1024  # all ranks connect at the same moment
        # Not an error of the driver: a rank ended during a request.
        RendezvousHTTPServer.handle_error = lambda *who: None
        self._server = RendezvousHTTPServer(("", self._port), handler, False)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def init(self, plan: list[Any]) -> None:
        self._server.init(plan)

    def stop(self) -> None:
        pass


def serve(port: int) -> Hosts:
    """Start the training in background threads; `Hosts.over` becomes its exit status."""
    slots = int(os.environ["HOROVOD_LOCAL_SIZE"])
    least, most = (int(os.environ[f"ALLRANKS_HOROVOD_{bound}"]) * slots for bound in ("MIN", "MAX"))
    _configure_logging()
    hosts, rendezvous = Hosts(), Rendezvous(port)
    HostManager.order_available_hosts = staticmethod(hosts.ordered)
    driver = Driver(rendezvous, hosts, least, most, timeout=ELASTIC_TIMEOUT_SECONDS)

    class Handler(create_rendezvous_handler(driver)):  # type: ignore[misc]
        def _get_value(self, scope: str, key: str) -> bytes | None:
            """Delay the answer until the key exists. Ranks ask for each other's address and abort after 30 s without
            it: one rank that imports slowly would end all. If the other rank is lost, they abort at once."""
            value: bytes | None = super()._get_value(scope, key)
            plan = driver.host_assignments
            while value is None and scope in self.server.scope_size and driver.host_assignments is plan:
                hosts.check(plan)
                time.sleep(KEY_SECONDS)
                value = super()._get_value(scope, key)
            return value

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = hosts.on_call(request, lambda name: driver.has_rank_assignment(name, 0))
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            hosts.on_answered(request["host"], answer)

    try:
        rendezvous.start(guarded(Handler, ADMITTED_SECONDS))
    except OSError as error:
        sys.exit(f"allranks: cannot listen on port {port}: {error.strerror}")
    threading.Thread(target=_train, args=(driver, hosts, least, slots), daemon=True).start()
    return hosts


def _configure_logging() -> None:
    """Hide Horovod's logs unless HOROVOD_LOG_LEVEL requests them: it logs recovered errors with tracebacks."""
    if os.environ.get("HOROVOD_LOG_LEVEL", "").lower() in ("trace", "debug", "info"):
        logging.basicConfig(level=logging.INFO)
    else:
        logging.getLogger().addHandler(logging.NullHandler())
    threading.excepthook = lambda failed: logging.error("%s", failed.exc_value)


def _train(driver: Driver, hosts: Hosts, least: int, slots: int) -> None:
    size = int(os.environ["ALLRANKS_HOROVOD_WORKERS"]) * slots
    deadline = time.monotonic() + float(os.environ.get("ALLRANKS_HOROVOD_WAIT_SECONDS", "30"))
    while driver.available_slots() < size and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    try:
        driver.start(least, hosts.start)
        while not driver.finished():
            driver.remind()
            driver.wait(REMIND_SECONDS)
    except Exception as failed:
        logging.error("%s", failed)
    if not driver.succeeded():
        print(f"allranks: Elastic Horovod has ended: {driver.failure}", file=sys.stderr)
    hosts.end(0 if driver.succeeded() else 1)
