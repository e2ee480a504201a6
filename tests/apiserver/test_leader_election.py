"""Leader election of two replicas as real processes: a former leader that was paused does not act."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allranks.api.job import KIND
from allranks.operator.timing import Clock
from support.controlplane import ControlPlane, free_ports
from support.kubelet import Hand
from support.live import eventually, job, phase


@dataclass
class Replica:
    process: subprocess.Popen[bytes]
    port: int

    def metrics(self) -> dict[str, float]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        return {name: float(value) for name, value in re.findall(r"^(allranks\S+) (\S+)$", text, re.MULTILINE)}

    @property
    def leads(self) -> bool:
        return self.metrics().get("allranks_leader") == 1

    def writes(self) -> float:
        """Writes except those of the Lease, which is the only object that is changed by PUT."""
        return self._requests("POST|PATCH|DELETE")

    def reads(self) -> float:
        return self._requests("GET")

    def _requests(self, verbs: str) -> float:
        found = eventually(self.metrics)  # empty while it does not answer
        return sum(value for name, value in found.items() if re.match(rf".*requests_total\{{.*verb=\"({verbs})", name))


@contextlib.contextmanager
def replica(control_plane: ControlPlane, namespace: str, folder: Path, name: str) -> Iterator[Replica]:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "allranks", "operator", f"--kubeconfig={control_plane.kubeconfig}", "--no-pools"]
    command += [f"--namespaces={namespace}", "--leader-election", f"--lease-namespace={namespace}", f"--port={port}"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, "--address=127.0.0.1"], stdout=log, stderr=subprocess.STDOUT)
    try:
        yield Replica(process, port)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_paused_leader_does_nothing_when_it_resumes_after_a_takeover(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api, hand = control_plane.api, Hand(control_plane.api, namespace, Clock().now, lambda _: Clock().now())

    def started(name: str) -> bool:
        return api.find("Pod", namespace, name) is not None

    with replica(control_plane, namespace, tmp_path, "first") as first:
        eventually(lambda: first.leads)
        with replica(control_plane, namespace, tmp_path, "second") as second:
            api.create(job(), namespace)
            eventually(lambda: started("demo-worker-0-0"))
            for pod in ("demo-master-0-0", "demo-worker-0-0"):
                hand.place(pod, "node")
                hand.start(pod)
            eventually(lambda: phase(control_plane, namespace) == "Running")
            eventually(lambda: "allranks_leader" in second.metrics())
            assert not second.leads
            assert second.writes() == 0

            def writes_at_rest() -> float:
                reads, found = first.reads(), first.writes()
                # Every replica reads the Lease every 2 s, which shows that a page of metrics is a new one.
                eventually(lambda: first.reads() >= reads + 2)
                return found if first.writes() == found else 0

            before = eventually(writes_at_rest)

            transitions = api.get("Lease", namespace, "allranks-operator")["spec"]["leaseTransitions"]
            first.process.send_signal(signal.SIGSTOP)
            hand.end(
                "demo-worker-0-0", 137, "Error", "", "trainer", 0
            )  # the first one receives this event when it resumes
            eventually(lambda: second.leads)
            lease = api.get("Lease", namespace, "allranks-operator")["spec"]
            assert (lease["leaseDurationSeconds"], lease["leaseTransitions"]) == (10, transitions + 1)
            eventually(lambda: started("demo-worker-0-1"))
            eventually(lambda: api.get(KIND, namespace, "demo")["status"]["restarts"]["counted"] == 1)

            first.process.send_signal(signal.SIGCONT)
            eventually(lambda: first.metrics().get("allranks_leader") == 0)
            acted = second.writes()
            api.patch(KIND, namespace, "demo", {"spec": {"suspend": True}})
            eventually(lambda: phase(control_plane, namespace) == "Suspended")
            eventually(lambda: second.writes() > acted)
            assert eventually(writes_at_rest) == before, "it acted without the lease"
            status = api.get(KIND, namespace, "demo")["status"]
            assert (status["attempt"], status["restarts"]["counted"]) == (1, 1)

            # A leader that is terminated releases the Lease immediately.
            second.process.terminate()
            eventually(lambda: first.leads)
            assert second.process.wait(300) == 0
            api.patch(KIND, namespace, "demo", {"spec": {"suspend": False}})
            eventually(lambda: started("demo-worker-0-2"))
