"""Pods as processes: this machine does what a kubelet and a PID namespace do on a cluster."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from allranks.core.facts.model import Pod
from allranks.core.facts.naming import INDEX_LABEL, JOB_LABEL, ROLE_LABEL
from allranks.core.facts.processes import PodProcess, ProcessExit
from allranks.local import Backoff, LocalRunError, process, shim
from allranks.local.environment import machine_environment
from allranks.local.pod import LocalPod
from allranks.local.prepare import Machine, PodPlan, prepare
from allranks.local.process import LogFile
from allranks.local.volumes import Volumes

MARK = "TEST_OF_PROCESSES"

STUBBORN = """
import os, signal, sys, time
# Ignores SIGTERM, and has an orphaned grandchild in its own session.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    print("grandchild", os.getpid(), flush=True)
    time.sleep(1000)
os.wait()
print("ready", flush=True)
{then}
"""


class World:
    """The pods of one test: started like those of a run, identified by a mark in their environment."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.mark = uuid.uuid4().hex
        self.files = 1024
        self.backoff = Backoff(first=0.01, longest=0.02)
        self.node = "here"
        self.start_lock = asyncio.Lock()
        self.statuses: list[Pod] = []
        self.printed = b""
        self.errors: list[Exception] = []
        self.environ: dict[str, str] = dict(os.environ)
        self.mapped: dict[str, Path] = {}
        self.shown_gpus: dict[str, str] = {}
        self._wake = asyncio.Event()

    def manifest(self, *command: str, **pod: Any) -> dict[str, Any]:
        trainer = {"name": "trainer", "command": list(command), **pod.pop("container", {})}
        trainer["env"] = [*trainer.get("env", ()), {"name": MARK, "value": self.mark}]
        metadata = {"name": "job-worker-0-0", "uid": "u-1", "namespace": "lab", "labels": pod.pop("labels", {})}
        spec = {"restartPolicy": "Never", "containers": [trainer, *pod.pop("beside", ())], **pod}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def prepare(self, manifest: dict[str, Any]) -> tuple[PodPlan | None, list[str]]:
        self.volumes = Volumes(self.tmp_path / "run", self.mapped, {})
        return prepare(manifest, Machine(machine_environment(self.environ), self.volumes, self.tmp_path))

    def pod(self, manifest: dict[str, Any]) -> LocalPod:
        plan, problems = self.prepare(manifest)
        assert plan is not None, problems
        for volume, _ in plan.directories:
            self.volumes.make(manifest["metadata"]["name"], volume)
        self.volumes.make_folders(plan.folders)
        self._wake = asyncio.Event()
        self.start_lock = asyncio.Lock()
        self.one = LocalPod(plan, self.tmp_path, None, self)
        self.one.start()
        return self.one

    async def until(self, condition: Callable[[], Any], seconds: float = 300) -> None:
        """Waits for a condition on the pod."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._wake.clear()
                await self._wake.wait()

    async def over(self, manifest: dict[str, Any]) -> Pod:
        """Runs a pod to its end."""
        pod = self.pod(manifest)
        await self.until(lambda: not pod.alive)
        return pod.status

    def run(self, *command: str, **pod: Any) -> Pod:
        return asyncio.run(self.over(self.manifest(*command, **pod)))

    def python(self, program: str, **pod: Any) -> Pod:
        return self.run(sys.executable, "-c", program, **pod)

    @property
    def log(self) -> str:
        return (self.tmp_path / "job-worker-0-0.log").read_text()

    # Implements `PodHost`.

    def changed(self) -> None:
        self.statuses.append(self.one.status)
        asyncio.get_running_loop().call_soon(self._wake.set)

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        self.printed += data
        self._wake.set()

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
        self._wake.set()

    def shim_killed(self) -> None:
        self._wake.set()

    async def acquire_gpus(self, pod: str, count: int) -> Mapping[str, str]:
        return self.shown_gpus

    def release_gpus(self, pod: str) -> None: ...


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    here = World(tmp_path)
    yield here
    assert left(here.mark) == [], "a process outlived its pod"
    assert here.errors == []


def left(mark: str) -> list[str]:
    """Command lines of processes with the mark."""
    marked = [process for process in Path("/proc").glob("[0-9]*") if _carries(process, mark)]
    return [(process / "cmdline").read_bytes().replace(b"\0", b" ").decode() for process in marked if process.exists()]


def _carries(process: Path, mark: str) -> bool:
    try:
        return mark.encode() in (process / "environ").read_bytes()
    except OSError:
        return False


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Exit codes and messages.


@pytest.mark.parametrize(
    ("program", "phase", "code", "reason"),
    [
        ("exit 0", "Succeeded", 0, "Completed"),
        ("exit 3", "Failed", 3, "Error"),
        ("kill -9 $$", "Failed", 137, "Error"),
        ("kill -TERM $$", "Failed", 143, "Error"),
        ("exit 138", "Failed", 138, "Error"),
    ],
)
def test_exit_codes_are_those_a_kubelet_reports(world: World, program: str, phase: str, code: int, reason: str) -> None:
    status = world.run("sh", "-c", program)
    assert status.exit is not None
    assert (status.phase, status.exit.code, status.exit.reason) == (phase, code, reason)


@pytest.mark.parametrize(
    ("program", "kills", "reason"),
    [
        ("kill -9 $$", (0, 1), "OOMKilled"),
        ("kill -9 $$", (1, 1), "Error"),
        ("echo 'Signal 9 (SIGKILL) received by PID 7'; exit 1", (0, 1), "OOMKilled"),
        ("exit 1", (0, 1), "Error"),
        ("true", (0, 1), "Completed"),
    ],
    ids=["killed for memory", "killed by a signal", "a rank of a launcher", "failed beside an OOM kill", "succeeded"],
)
def test_a_process_killed_for_memory_is_reported_as_oomkilled(
    world: World, monkeypatch: pytest.MonkeyPatch, program: str, kills: tuple[int, int], reason: str
) -> None:
    counts = iter([kills[0], *[kills[1]] * 9])
    monkeypatch.setattr("allranks.local.process.count_oom_kills", lambda: next(counts))
    status = world.run("sh", "-c", program)
    assert status.exit is not None
    assert status.exit.reason == reason


def test_a_program_that_a_supervisor_reports_has_the_last_lines_of_its_log_and_its_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = [0]
    monkeypatch.setattr("allranks.local.process.count_oom_kills", lambda: kills[0])
    ended = PodProcess(0, "Ended", True, last_exit=ProcessExit(137, datetime.now(UTC), 9, "of the supervisor"))

    async def ends() -> list[ProcessExit | None]:
        labels = {JOB_LABEL: "job", ROLE_LABEL: "worker", INDEX_LABEL: "0"}
        pod = world.pod(world.manifest("sh", "-c", "echo first; read never; sleep 100", labels=labels))
        await world.until(lambda: b"first" in world.printed)
        kills[0] = 1
        first = pod.explained(ended).last_exit
        pod.begin_attempt(1, 0)
        again = replace(ended, last_exit=replace(ended.last_exit, finished_at=datetime.now(UTC)))
        second = pod.explained(again).last_exit
        pod.kill()
        await world.until(lambda: not pod.alive)
        return [first, second]

    first, second = asyncio.run(ends())
    assert first
    assert second
    assert (first.message, first.reason) == ("first", "OOMKilled")
    assert (second.message, second.reason) == ("of the supervisor", "Error")
    assert [file.name for file in sorted(world.tmp_path.glob("*.log"))] == ["job-worker-0-0.log", "job-worker-0-1.log"]


@pytest.mark.parametrize(
    ("own", "file"),
    [("4:memory:/a/b\n0::/\n", "memory/a/b/memory.oom_control"), ("0::/user/x\n", "user/x/memory.events")],
    ids=["cgroups v1", "cgroups v2"],
)
def test_oom_kills_are_read_from_the_cgroup(tmp_path: Path, own: str, file: str) -> None:
    (tmp_path / "own").write_text(own)
    assert process.count_oom_kills(tmp_path / "own", tmp_path) == 0
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("under_oom 0\noom_kill 3\n")
    assert process.count_oom_kills(tmp_path / "own", tmp_path) == 3


def test_a_command_that_does_not_exist_is_a_start_error_that_names_it(world: World) -> None:
    status = world.run("no-such-program", "--flag")
    assert status.exit is not None
    assert (status.phase, status.exit.code, status.exit.reason) == ("Failed", 128, "StartError")
    assert status.exit.message == 'exec: "no-such-program": executable file not found in $PATH'
    assert "Running" not in [status.phase for status in world.statuses]


def test_a_file_that_is_not_executable_is_a_start_error(world: World) -> None:
    script = world.tmp_path / "train.py"
    script.write_text("print('hi')")
    status = world.run(str(script))
    assert status.exit is not None
    assert status.exit.reason == "StartError"
    assert status.exit.message == f'exec: "{script}": permission denied'


def test_a_command_is_searched_in_the_containers_own_path(world: World) -> None:
    program = world.tmp_path / "mine"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    status = world.run("mine", container={"env": [{"name": "PATH", "value": str(world.tmp_path)}]})
    assert (status.phase, world.log) == ("Succeeded", "found\n")


def test_the_message_of_a_failure_is_the_end_of_the_log_and_success_has_none(world: World) -> None:
    failed = world.run("sh", "-c", "seq 1 200; exit 1").exit
    assert failed is not None
    assert failed.message.splitlines() == [str(number) for number in range(121, 201)]
    done = world.run("sh", "-c", "seq 1 200").exit
    assert done is not None
    assert done.message == ""


def test_the_message_is_bounded_and_shows_the_last_state_of_a_progress_bar(world: World) -> None:
    status = world.python("print('x' * 100_000); print('\\r'.join(f'{n}%' for n in range(99))); exit(1)")
    assert status.exit is not None
    assert len(status.exit.message) == 8192
    assert status.exit.message.endswith("xxx\n98%")


def test_the_log_contains_every_byte_of_binary_output(world: World) -> None:
    status = world.python(
        "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4000); print('error', file=sys.stderr)"
    )
    assert status.phase == "Succeeded"
    raw = (world.tmp_path / "job-worker-0-0.log").read_bytes()
    assert len(raw) == 256 * 4000 + len("error\n")
    assert raw == world.printed


def test_the_time_of_the_end_is_when_the_first_process_ended_not_when_it_was_noticed(world: World) -> None:
    """The runner is busy until the process has ended."""

    class Busy(World):
        noticed = 0.0

        def output(self, pod: Pod, container: str, data: bytes) -> None:
            if not data:
                return
            stat = Path("/proc", data.split()[0].decode(), "stat")
            while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
            time.sleep(2)
            self.noticed = time.time()

    busy = Busy(world.tmp_path)
    status = busy.python("import os, time; print(os.getpid(), time.time(), flush=True)")
    assert status.exit is not None
    assert status.started_at is not None
    assert float(busy.log.split()[1]) <= status.exit.finished_at.timestamp() <= busy.noticed
    assert status.started_at < status.exit.finished_at


def test_standard_input_is_empty(world: World) -> None:
    assert world.run("sh", "-c", "cat; readlink /proc/self/fd/0").phase == "Succeeded"
    assert world.log == "/dev/null\n"


def test_a_request_larger_than_a_sockets_buffer_arrives_whole(world: World) -> None:
    big = [{"name": f"BIG_{number}", "value": "x" * 30_000} for number in range(40)]
    assert world.python("import os; print(len(os.environ['BIG_39']))", container={"env": big}).phase == "Succeeded"
    assert world.log == "30000\n"


# A pod is like a PID namespace.


def test_processes_left_behind_are_killed_when_the_first_process_ends(world: World) -> None:
    status = world.python(STUBBORN.format(then="sys.exit(5)"))
    assert status.exit is not None
    assert status.exit.code == 5
    assert left(world.mark) == []


def test_leftovers_are_killed_when_the_first_process_is_killed(world: World) -> None:
    status = world.python(STUBBORN.format(then="os.kill(os.getpid(), 9)"))
    assert status.exit is not None
    assert status.exit.code == 137
    assert left(world.mark) == []


def test_a_tree_that_forks_without_end_is_killed_too(world: World) -> None:
    # It ends by itself after two minutes, for a test that is killed and cannot end it.
    program = """
import os, time
end = time.monotonic() + 120
def grow():
    os.setsid()
    while time.monotonic() < end:
        if os.fork() == 0:
            os.setsid()
        else:
            time.sleep(0.01)
            os._exit(0)
for _ in range(5):
    if os.fork() == 0:
        grow()
time.sleep(0.2)
"""
    assert world.python(program).phase == "Succeeded"


def test_a_program_that_kills_its_own_group_or_session_ends_like_any_other(world: World) -> None:
    status = world.run("sh", "-c", "kill -TERM 0; sleep 10")
    assert status.exit is not None
    assert status.exit.code == 143


def test_deletion_is_sigterm_to_the_first_process_alone(world: World) -> None:
    program = "trap 'echo saved; exit 0' TERM; sleep 1000 & echo ready; wait"

    async def scenario() -> Pod:
        pod = world.pod(world.manifest("sh", "-c", program))
        await world.until(lambda: b"ready" in world.printed)
        pod.delete()
        assert pod.status.deleted_at is not None
        await asyncio.wait_for(pod.gone.wait(), 300)
        return pod.status

    status = asyncio.run(scenario())
    assert status.exit is not None
    assert (status.phase, status.exit.code, world.log) == ("Succeeded", 0, "ready\nsaved\n")


def test_the_whole_process_tree_is_killed_after_the_grace_period(world: World) -> None:
    async def scenario() -> tuple[Pod, float]:
        manifest = world.manifest(
            sys.executable, "-c", STUBBORN.format(then="time.sleep(1000)"), terminationGracePeriodSeconds=0.3
        )
        pod = world.pod(manifest)
        await world.until(lambda: b"ready" in world.printed)
        began = time.monotonic()
        pod.delete()
        await asyncio.wait_for(pod.gone.wait(), 300)
        return pod.status, time.monotonic() - began

    status, took = asyncio.run(scenario())
    assert status.exit is not None
    assert status.exit.code == 137
    assert took >= 0.3


def test_a_second_deletion_can_only_shorten_the_grace_period(world: World) -> None:
    async def scenario() -> None:
        pod = world.pod(world.manifest(sys.executable, "-c", STUBBORN.format(then="time.sleep(1000)")))
        await world.until(lambda: b"ready" in world.printed)
        pod.delete()
        pod.delete(0)
        pod.delete(30)
        await asyncio.wait_for(pod.gone.wait(), 300)

    asyncio.run(scenario())


def test_a_deletion_does_not_lengthen_the_grace_period_of_the_pod(world: World) -> None:
    async def scenario() -> None:
        program = STUBBORN.format(then="time.sleep(1000)")
        pod = world.pod(world.manifest(sys.executable, "-c", program, terminationGracePeriodSeconds=1))
        await world.until(lambda: b"ready" in world.printed)
        pod.delete(1000)
        await asyncio.wait_for(pod.gone.wait(), 300)

    asyncio.run(scenario())


def test_a_pod_deleted_before_its_start_never_runs(world: World) -> None:
    async def scenario() -> None:
        pod = world.pod(world.manifest("sh", "-c", "echo ran"))
        pod.delete()
        await asyncio.wait_for(pod.gone.wait(), 300)

    asyncio.run(scenario())
    assert world.printed == b""


def test_a_killed_shim_takes_its_first_process_along(world: World) -> None:
    async def scenario() -> Pod:
        pod = world.pod(world.manifest("sh", "-c", "sleep 1000 & echo ready; wait"))
        await world.until(lambda: b"ready" in world.printed)
        os.kill(pod.shims()[0], signal.SIGKILL)
        await world.until(lambda: not pod.alive)
        return pod.status

    status = asyncio.run(scenario())
    assert status.exit is not None
    assert (status.phase, status.exit.code) == ("Failed", 137)
    eventually(lambda: left(world.mark) == ["sleep 1000 "])  # an orphan here; a run adopts and kills it
    orphan = next(pid for pid in Path("/proc").glob("[0-9]*") if _carries(pid, world.mark))
    os.kill(int(orphan.name), signal.SIGKILL)
    eventually(lambda: not left(world.mark))


def test_a_signal_to_the_shim_is_forwarded_to_the_program(world: World) -> None:
    async def scenario() -> Pod:
        pod = world.pod(
            world.manifest("sh", "-c", "trap 'echo received; exit 7' USR1; echo ready; while :; do sleep 0.05; done")
        )
        await world.until(lambda: b"ready" in world.printed)
        os.kill(pod.shims()[0], signal.SIGUSR1)
        await world.until(lambda: not pod.alive)
        return pod.status

    status = asyncio.run(scenario())
    assert status.exit is not None
    assert status.exit.code == 7


def test_programs_get_default_signals_and_the_original_limit_of_open_files(world: World) -> None:
    world.files = 321
    program = """
import resource, signal
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
ignored = int(next(l for l in open('/proc/self/status') if l.startswith('SigIgn')).split()[1], 16)
blocked = int(next(l for l in open('/proc/self/status') if l.startswith('SigBlk')).split()[1], 16)
ours = (1 << 31) - 1 & ~(1 << 12 | 1 << 24)  # Python itself ignores SIGPIPE and SIGXFSZ; signals 32 and 33 are libc's
print(ignored & ours, blocked)
"""
    assert world.python(program).phase == "Succeeded"
    assert world.log == "321\n0 0\n"
    world.run("sh", "-c", "grep SigIgn /proc/self/status")
    assert int(world.log.split()[1], 16) & (1 << 31) - 1 == 0


@pytest.fixture
def no_subreaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim that runs as on a system without subreapers and /proc, such as macOS."""
    program = f"""
import os, runpy, sys
sys.platform = "darwin"
real = os.path.isdir
os.path.isdir = lambda path: path != "/proc/self" and real(path)
runpy.run_path({shim.__file__!r}, run_name="__main__")
"""
    monkeypatch.setattr("allranks.local.process.SHIM", [sys.executable, "-c", program])


@pytest.mark.usefixtures("no_subreaper")
def test_without_a_subreaper_the_group_of_the_first_process_is_killed_with_its_end(world: World) -> None:
    status = world.run("sh", "-c", "(trap '' TERM; sleep 1000) & exit 3")
    assert status.exit is not None
    assert status.exit.code == 3
    eventually(lambda: not left(world.mark))


@pytest.mark.usefixtures("no_subreaper")
@pytest.mark.parametrize("grace", [0, 10])
def test_without_a_subreaper_deletion_kills_descendants_of_the_first_process(world: World, grace: float) -> None:
    program = """
import subprocess, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("ready", flush=True)
time.sleep(1000)
"""

    async def scenario() -> None:
        pod = world.pod(world.manifest(sys.executable, "-c", program))
        await world.until(lambda: b"ready" in world.printed)
        pod.delete(grace)
        await asyncio.wait_for(pod.gone.wait(), 300)

    asyncio.run(scenario())
    eventually(lambda: not left(world.mark))


# Restarts in place, init containers, containers beside the trainer.


def test_on_failure_restarts_in_place_until_it_succeeds(world: World) -> None:
    program = "echo run >> runs; [ $(wc -l < runs) -ge 3 ] && exit 0; echo broke; exit 4"
    status = world.run("sh", "-c", program, restartPolicy="OnFailure")
    assert status.phase == "Succeeded"
    assert world.log == "broke\nbroke\n"
    waiting = [status for status in world.statuses if status.waiting_reason == "CrashLoopBackOff"]
    assert [status.phase for status in waiting] == ["Running"]  # the first restart does not wait
    assert waiting[0].exit is None  # it has not ended
    assert waiting[0].last_exit is not None
    assert (waiting[0].last_exit.code, waiting[0].container_restarts) == (4, 2)


def test_deletion_ends_the_wait_for_a_restart(world: World) -> None:
    world.backoff = Backoff(first=1000, longest=1000)

    async def scenario() -> None:
        pod = world.pod(world.manifest("false", restartPolicy="Always"))
        await world.until(lambda: pod.status.waiting_reason == "CrashLoopBackOff")
        pod.delete()
        await asyncio.wait_for(pod.gone.wait(), 300)

    asyncio.run(scenario())


def test_the_backoff_is_a_kubelets() -> None:
    assert [Backoff().delay(number) for number in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert Backoff().delay(10_000) == 300


def test_init_containers_run_one_after_the_other_before_the_rest(world: World) -> None:
    init = [
        {"name": "one", "command": ["sh", "-c", "echo one >> order"]},
        {"name": "two", "command": ["sh", "-c", "echo two >> order"]},
    ]
    status = world.run("sh", "-c", "cat order", initContainers=init)
    assert (status.phase, world.log) == ("Succeeded", "one\ntwo\n")


def test_a_failed_init_container_fails_the_pod_with_a_message(world: World) -> None:
    init = [{"name": "fetch", "command": ["sh", "-c", "echo no route; exit 6"]}]
    status = world.run("echo", "never", initContainers=init)
    assert status.exit is not None
    assert (status.phase, status.exit.code) == ("Failed", 6)
    assert status.exit.message == "init container fetch failed\nno route"
    assert not (world.tmp_path / "job-worker-0-0.log").exists()


def test_an_init_container_is_restarted_according_to_the_policy(world: World) -> None:
    init = [{"name": "fetch", "command": ["sh", "-c", "echo x >> tries; [ $(wc -l < tries) -ge 3 ]"]}]
    assert world.run("cat", "tries", initContainers=init, restartPolicy="OnFailure").phase == "Succeeded"
    assert world.log == "x\nx\nx\n"


def test_the_program_allranks_is_this_installation(world: World) -> None:
    init = [{"name": "helper", "command": ["allranks", "--version"]}]
    world.environ["PATH"] = "/usr/bin:/bin"
    assert world.run("true", initContainers=init).phase == "Succeeded"
    assert "allranks" in (world.tmp_path / "job-worker-0-0.helper.log").read_text()


def test_the_pod_is_over_when_all_main_containers_are(world: World) -> None:
    beside = [{"name": "exporter", "command": ["sh", "-c", "while [ ! -e done ]; do sleep 0.01; done; echo served"]}]
    status = world.run("sh", "-c", "touch done", beside=beside)
    assert status.phase == "Succeeded"
    assert (world.tmp_path / "job-worker-0-0.exporter.log").read_text() == "served\n"


def test_a_failed_container_beside_the_trainer_fails_the_pod(world: World) -> None:
    status = world.run("true", beside=[{"name": "exporter", "command": ["false"]}])
    assert status.exit is not None
    assert (status.phase, status.exit.code) == ("Failed", 0)


def test_a_sidecar_runs_beside_the_main_containers_and_ends_after_them(world: World) -> None:
    sidecar = {
        "name": "proxy",
        "restartPolicy": "Always",
        "command": ["sh", "-c", "trap 'echo bye; exit' TERM; touch up; while :; do sleep 0.01; done"],
    }
    status = world.run("sh", "-c", "while [ ! -e up ]; do sleep 0.01; done", initContainers=[sidecar])
    assert status.phase == "Succeeded"
    assert (world.tmp_path / "job-worker-0-0.proxy.log").read_text() == "bye\n"


def test_phases_go_from_pending_to_running_to_the_end(world: World) -> None:
    world.run("true")
    assert list(dict.fromkeys(status.phase for status in world.statuses)) == ["Pending", "Running", "Succeeded"]


def test_a_full_disk_costs_lines_of_the_log_and_not_the_program(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalPod, "log_path", lambda self, container: Path("/dev/full"))
    assert world.run("sh", "-c", "for i in 1 2 3; do echo hello; sleep 0.05; done").phase == "Succeeded"
    note = "allranks: the log /dev/full cannot be written (no space left on device): it misses output until it can"
    assert world.printed.count(b"hello") == 3
    assert world.printed.decode().count(note) == 1


def test_a_log_continues_when_there_is_room_again_and_says_how_much_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogFile(tmp_path / "log")
    write, full = os.write, [False, True, True, False]

    def refused(fd: int, data: bytes) -> int:
        if full.pop(0):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refused)
        problems = [log.write(line) for line in (b"one\n", b"two\n", b"three\n", b"four\n")]
    log.close()
    assert [bool(problem) for problem in problems] == [False, True, False, False]
    missing = "\nallranks: 10 bytes of output are missing here: the disk refused them\n"
    assert (tmp_path / "log").read_text() == f"one\n{missing}four\n"


def test_too_many_open_files_end_the_run_with_a_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("allranks.local.process.subprocess.Popen", no_more)
    world.run("echo", "hello")
    assert [str(error) for error in world.errors] == [
        "echo cannot be started: too many open files: raise the limit (ulimit -n) or run fewer replicas"
    ]
    assert isinstance(world.errors.pop(), LocalRunError)


def test_an_internal_error_is_reported_and_leaves_no_process(world: World) -> None:
    def fault(pod: Pod, container: str, data: bytes) -> None: ...

    async def scenario() -> None:
        pod = world.pod(world.manifest("sleep", "1000", initContainers=[{"name": "x", "command": ["true"]}]))
        pod._update_status = fault  # type: ignore[assignment]
        await world.until(lambda: not pod.alive)

    asyncio.run(scenario())
    assert [type(error) for error in world.errors] == [TypeError]
    world.errors.clear()
