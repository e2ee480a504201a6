"""The helper that starts a pod's Ray node, with a stand-in for the program `ray` and for Ray's client of the GCS. Ray
itself is in tests/frameworks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.hints import RootCause
from allranks.pod_bundle import HELPERS
from support.builders import table

SECONDS = 300
FAKE_RAY = f"""#!{sys.executable}
import json, os, pathlib, signal, socket, sys, time

folder = pathlib.Path(os.environ["FAKE_RAY"])
if sys.argv[1:] == ["--version"]:
    print((folder / "version").read_text())
    sys.exit(0)
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if (folder / "refuses").exists():
    print("RuntimeError: this Ray does not start")
    sys.exit(3)
if "--head" in sys.argv:
    [port] = [word.partition("=")[2] for word in sys.argv if word.startswith("--port=")]
    gcs = socket.create_server(("127.0.0.2", int(port)))
signal.signal(signal.SIGTERM, lambda *ignored: (folder / "drains").touch())
print("Ray runtime started.", flush=True)
(folder / "started").touch()
while not (folder / "ends").exists():
    time.sleep(0.02)
print("a process of Ray died")
sys.exit(4)
"""
FAKE_CLIENT = """
import json, os, pathlib

class GcsClient:
    def __init__(self, address):
        assert address == os.environ["RAY_ADDRESS"]

    def get_all_node_info(self, timeout):
        states = (pathlib.Path(os.environ["FAKE_RAY"]) / "nodes").read_text().split()
        return dict(enumerate(type("Node", (), {"state": int(state)}) for state in states))

    def get_all_job_info(self, timeout):
        jobs = json.loads((pathlib.Path(os.environ["FAKE_RAY"]) / "drivers").read_text())
        config = lambda namespace: type("Config", (), {"ray_namespace": namespace})
        return {i: type("Job", (), {"is_dead": dead, "config": config(name)}) for i, (name, dead) in enumerate(jobs)}

    def get_cluster_resource_state(self):
        return (pathlib.Path(os.environ["FAKE_RAY"]) / "idle").read_text()
"""
"""The states of the nodes are in a file: 0 is alive. `drivers` has (namespace, whether it has ended), `idle` the state
and the idle milliseconds of each node."""
FAKE_STATE = """
import json

DEAD = 2

class GetClusterResourceStateReply:
    def ParseFromString(self, text):
        nodes = [type("Node", (), {"status": state, "idle_duration_ms": idle}) for state, idle in json.loads(text)]
        self.cluster_resource_state = type("State", (), {"node_states": nodes})
"""


@dataclass
class Pod:
    """Runs the helper, and ends it with the test."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(HELPERS / "ray_node.py"), *arguments]
        process = subprocess.Popen(
            command,
            env=self.env | env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def lead(self, program: str, **env: str) -> subprocess.Popen[str]:
        return self.start("head", "--", sys.executable, "-c", program, **env)

    def set(self, name: str, text: str = "") -> None:
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.folder / name)

    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ray").write_text(FAKE_RAY)
    (tmp_path / "bin" / "ray").chmod(0o755)
    (tmp_path / "site" / "ray").mkdir(parents=True)
    (tmp_path / "site" / "ray" / "__init__.py").write_text("")
    (tmp_path / "site" / "ray" / "_raylet.py").write_text(FAKE_CLIENT)
    generated = tmp_path / "site" / "ray" / "core" / "generated"
    generated.mkdir(parents=True)
    (generated / "autoscaler_pb2.py").write_text(FAKE_STATE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site"), "ALLRANKS_RAY_NODE": "2"}
    env |= {"RAY_ADDRESS": f"127.0.0.1:{port}", "FAKE_RAY": str(tmp_path), "ALLRANKS_RAY_CLIENT_PORT": "20001"}
    pod = Pod(tmp_path, env)
    yield pod
    left = []
    for process in pod.running:
        left += list(Path("/tmp").glob(f"allranks-ray-{process.pid}-*")) if process.poll() is not None else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # closes its pipes
            process.wait(timeout=SECONDS)
        for folder in Path("/tmp").glob(f"allranks-ray-{process.pid}-*"):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    assert left == [], "a node that ended by itself removes its directory"


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=SECONDS)
    return process.returncode, out, error


def test_the_head_runs_the_program_in_its_cluster_and_ends_with_its_exit_code(pod: Pod) -> None:
    found = end(pod.lead("import os, sys; print(os.environ['RAY_ADDRESS']); sys.exit(7)", ALLRANKS_RAY_CPUS="0"))
    address = pod.env["RAY_ADDRESS"].replace("127.0.0.1", "127.0.0.2")
    assert found == (7, f"{address}\n", "")
    [call] = pod.calls()
    assert call[:2] == ["start", "--head"]
    assert {"--block", "--num-cpus=0", "--node-ip-address=127.0.0.2", "--ray-client-server-port=20001"} <= set(call)


CLUSTER = {
    "ALLRANKS_RAY_IDLE_SECONDS": "40",
    "ALLRANKS_RAY_DASHBOARD_PORT": "20002",
    "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:20002",
}
DRIVEN = [("a-user", False), ("_ray_internal_dashboard", False)]


@table(
    ("a driver that has not ended", DRIVEN, [(3, 99_000)]),
    ("an actor without a driver", [("a-user", True)], [(3, 99_000), (1, 0)]),
    ("a node that was used 39 s ago", [], [(3, 39_999), (3, 99_000)]),
    ("a cluster whose nodes have not reported yet", [], []),
)
def test_a_head_without_a_program_stays_while_something_uses_its_cluster(case, pod: Pod) -> None:
    drivers, nodes = case
    pod.set("drivers", json.dumps(drivers))
    pod.set("idle", json.dumps(nodes))
    head = pod.start("head", **CLUSTER)
    line = head.stderr.readline()
    address = pod.env["RAY_ADDRESS"].replace("127.0.0.1", "127.0.0.2")
    assert line.startswith("allranks: the Ray cluster ends when nothing has used it for 40 s. Its drivers need RAY_")
    assert f"RAY_ADDRESS={address} RAY_API_SERVER_ADDRESS=http://127.0.0.2:20002" in line
    [call] = pod.calls()
    assert {"--dashboard-host=127.0.0.2", "--dashboard-port=20002"} <= set(call)
    with pytest.raises(subprocess.TimeoutExpired):  # it has asked Ray at least once by then
        head.wait(timeout=4)
    pod.set("drivers", json.dumps([("a-user", True), ("_ray_internal_dashboard", False)]))
    pod.set("idle", json.dumps([(3, 40_000), (2, 0)]))
    assert end(head) == (0, "", "allranks: nothing has used the Ray cluster for 40 s: it ends\n")


def test_a_cluster_that_cannot_be_asked_whether_it_is_used_fails(pod: Pod) -> None:
    (pod.folder / "site" / "ray" / "core" / "generated" / "autoscaler_pb2.py").unlink()
    code, _, error = end(pod.start("head", **CLUSTER))
    assert code == 1
    assert "autoscaler_pb2" in error
    assert error.endswith("allranks: this Ray does not say whether it is used, so it cannot end by itself\n")


def test_a_head_without_a_program_ends_with_its_pod(pod: Pod) -> None:
    pod.set("drivers", "[]")
    pod.set("idle", "[]")
    head = pod.start("head", **CLUSTER)
    head.stderr.readline()
    head.send_signal(signal.SIGTERM)
    assert end(head)[0] == 128 + signal.SIGTERM


def test_a_program_that_a_signal_ends_is_reported_with_the_signal(pod: Pod) -> None:
    code, _, error = end(pod.lead("import os; os.kill(os.getpid(), 9)"))
    assert (code, error) == (137, "allranks: the program was ended by signal 9 (SIGKILL)\n")


def test_the_program_gets_the_signals_of_the_pod(pod: Pod) -> None:
    program = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print('on', flush=True); time.sleep(99)"
    )
    head = pod.lead(program)
    assert head.stdout
    assert head.stdout.readline() == "on\n"
    head.terminate()
    assert end(head)[0] == 5


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 60, in <module>
    raise result.error
ray.train.v2.api.exceptions.WorkerGroupError: Training failed due to worker errors:
"""
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.3.7]:21023"
KILLED = "A worker health check failed.\nThe actor died unexpectedly before finishing this task.\n\tpid: 831"
OTHERS = '\x1b[36m(RayTrainWorker pid=6270, ip=127.0.0.3)\x1b[0m   File "train.py", line 10, in train\n\n' * 40


def cause(pod: Pod, printed: str) -> tuple[RootCause | None, str]:
    """(the root cause according to the 2,048 bytes that a kubelet keeps, all that was printed) of a program that fails
    with this output."""
    program = pod.folder / "program.py"
    program.write_text(f"import sys\nsys.stderr.write({printed!r})\nsys.exit(3)\n")
    code, _, error = end(pod.start("head", "--", sys.executable, str(program)))
    assert code == 3
    assert error.startswith(printed)
    return FRAMEWORKS["ray"].log.root_cause(error[-2048:]), error[len(printed) :]


@table(
    ("its own exception", {0: PEER, 2: "ValueError: no rows"}, 2),
    ("the killed rank", {0: PEER, 1: KILLED, 2: PEER}, 1),
    ("the first of several", {1: "ValueError: no rows", 3: "KeyError: 'row'"}, 1),
    ("a lost peer, because no rank failed otherwise", {0: PEER, 1: PEER + "0"}, 0),
    ("a rank before many others", {0: "ValueError: no rows"} | dict.fromkeys(range(1, 9), PEER * 10), 0),
)
def test_the_head_reports_last_which_rank_of_ray_train_failed_first(case: tuple[dict[int, str], int], pod: Pod) -> None:
    failures, rank = case
    snippets = [f"[Rank {number},9 Error Snippet]:\nTraceback:\n  x\n{text}" for number, text in failures.items()]
    earlier = f"{TRACEBACK}[Rank 5 Error Snippet]:\na failure that the program survived\n"
    found, _ = cause(pod, earlier + TRACEBACK + "\n".join(snippets) + "\n" + OTHERS)
    assert found
    assert (found.rank, found.exit_code) == (rank, 3)
    assert found.message == f"Traceback:\n  x\n{failures[rank]}"


def test_the_head_repeats_the_end_of_the_program_if_ray_printed_other_processes_after_it(pod: Pod) -> None:
    own = "Traceback (most recent call last):\nValueError: no data"
    found, report = cause(pod, f"{own}\n{OTHERS}(raylet) a process died\n(autoscaler +4s) one more node\n")
    assert found
    assert (found.rank, found.message) == (None, own)
    assert report == f"allranks: the last lines of the program itself:\n{own}\n"


def test_the_head_adds_nothing_to_a_program_that_printed_its_end_last(pod: Pod) -> None:
    own = f"{OTHERS}epoch 3\nTraceback (most recent call last):\nValueError: (no data pid)"
    assert cause(pod, own) == (None, "")


def test_the_head_waits_for_its_workers(pod: Pod) -> None:
    pod.set("nodes", "0 1")
    head = pod.lead("print('runs')", ALLRANKS_RAY_WORKERS="2")
    until(pod.calls)
    pod.set("nodes", "0 1 0")  # one of the nodes is dead
    assert head.poll() is None
    pod.set("nodes", "0 1 0 0")
    assert end(head) == (0, "runs\n", "")


def test_an_elastic_head_waits_for_enough_workers(pod: Pod) -> None:
    pod.set("nodes", "0 0")
    elastic = {"ALLRANKS_RAY_WORKERS": "3", "ALLRANKS_RAY_MIN_WORKERS": "1", "ALLRANKS_RAY_WAIT_SECONDS": "0"}
    assert end(pod.lead("print('runs')", **elastic)) == (0, "runs\n", "")


def test_a_ray_that_cannot_be_asked_for_its_nodes_delays_nothing(pod: Pod) -> None:
    (pod.folder / "site" / "ray" / "_raylet.py").write_text("")
    code, out, error = end(pod.lead("print('runs')", ALLRANKS_RAY_WORKERS="2"))
    assert (code, out) == (0, "runs\n")
    assert error.endswith("allranks: this Ray does not say which workers have joined: the program starts at once\n")


def test_without_ray_the_program_ends_and_the_job_restarts(pod: Pod) -> None:
    head = pod.lead("import time; print('on', flush=True); time.sleep(99)")
    assert head.stdout
    assert head.stdout.readline() == "on\n"
    pod.set("ends")
    code, _, error = end(head)
    assert code == 138
    assert "a process of Ray died\nallranks: Ray ended, and the program cannot continue without it\n" in error


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_ray_that_does_not_start_is_tried_again_and_then_shown(pod: Pod, role: str) -> None:
    pod.set("refuses")
    if role == "head":
        code, out, error = end(pod.lead("print('runs')"))
    else:
        with head_of(pod):
            code, out, error = end(pod.start("worker"))
    assert (code, out) == (3, "")
    assert error == "RuntimeError: this Ray does not start\nallranks: Ray could not be started\n"
    assert len(pod.calls()) == 10


def head_of(pod: Pod) -> socket.socket:
    return socket.create_server(("127.0.0.2", int(pod.env["RAY_ADDRESS"].rpartition(":")[2])))


def test_a_worker_waits_for_the_head_and_ends_with_its_pod(pod: Pod) -> None:
    worker = pod.start("worker", ALLRANKS_RAY_GPUS="2", ALLRANKS_RAY_MEMORY=str(1 << 30))
    with head_of(pod):
        until(pod.calls)
    worker.terminate()  # without a head there is nothing to drain
    assert end(worker) == (143, "", "")
    [call] = pod.calls()
    assert call[1].startswith("--address=127.0.0.2:")
    assert {"--num-gpus=2", "--node-ip-address=127.0.0.4"} <= set(call)
    amounts = dict(word[2:].split("=") for word in call if "memory" in word)
    assert int(amounts["memory"]) + int(amounts["object-store-memory"]) == 1 << 30
    assert 0 < int(amounts["object-store-memory"]) <= 0.3 * (1 << 30)


def test_a_worker_that_is_deleted_lets_ray_drain_the_node(pod: Pod) -> None:
    with head_of(pod):
        worker = pod.start("worker")
        until((pod.folder / "started").exists)
        worker.terminate()
        until((pod.folder / "drains").exists)
        assert worker.poll() is None
        pod.set("ends")
        assert end(worker) == (143, "", "")


def test_a_worker_whose_ray_ends_fails(pod: Pod) -> None:
    with head_of(pod):
        worker = pod.start("worker")
        until(pod.calls)
        pod.set("ends")
        code, _, error = end(worker)
    assert code == 4
    assert error.endswith("a process of Ray died\nallranks: Ray ended on this node\n")


RAYLET = """
import os, signal, subprocess, sys, time
import ray_node

node = ray_node.Node()
stays = "import subprocess, sys; subprocess.Popen([sys.argv[1], '600']).wait(); sys.stdin.read()"
node._ray = subprocess.Popen([sys.executable, "-c", stays, sys.argv[1]], stdin=subprocess.PIPE)
while (raylet := ray_node._child(node._ray.pid, "raylet")) is None:
    time.sleep(0.02)
node._raylet = raylet
print(node._ray_ended())
os.kill(raylet, signal.SIGKILL)
while not node._ray_ended():
    time.sleep(0.02)
print(node._ray.poll())
node._stop_ray()
"""


def test_a_raylet_that_ends_while_ray_start_stays_is_the_end_of_ray(pod: Pod, tmp_path: Path) -> None:
    """A raylet that loses an agent ends with 0, which `ray start --block` ignores."""
    (tmp_path / "raylet").symlink_to(shutil.which("sleep") or "/bin/sleep")
    env = pod.env | {"PYTHONPATH": str(HELPERS)}
    program = [sys.executable, "-c", RAYLET, str(tmp_path / "raylet")]
    printed = subprocess.run(program, env=env, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    assert printed.split() == ["False", "None"]


def test_a_worker_without_a_head_waits_for_its_deletion(pod: Pod) -> None:
    """The head's end is the failure, and a lost node is noticed later than the worker's."""
    with head_of(pod):
        worker = pod.start("worker")
        until(pod.calls)
    pod.set("ends")
    assert worker.stderr
    assert worker.stderr.readline().startswith("allranks: no answer from the head at 127.0.0.2:")
    assert worker.poll() is None
    worker.terminate()
    assert end(worker)[0] == 143


def test_programs_that_do_not_exist_are_errors_of_a_shell(pod: Pod) -> None:
    code, _, error = end(pod.start("head", "--", "no-such-program"))
    assert (code, error) == (127, "allranks: cannot start no-such-program: No such file or directory\n")
    (pod.folder / "bin" / "ray").unlink()
    code, _, error = end(pod.lead("print('runs')"))
    assert (code, error) == (127, "allranks: cannot start ray: not in the image: install ray[default]\n")
    assert end(pod.start("head", "--"))[0] == 2


DASHBOARDS = [
    ("a Ray with tokens serves its dashboard to the cluster", "ray, version 2.52.0", "token", "0.0.0.0"),
    ("a newer one as well", "ray, version 3.0.0.dev0", "token", "0.0.0.0"),
    ("an older Ray serves it in its pod only", "ray, version 2.51.1", "token", "127.0.0.1"),
    ("a Ray that does not say its version as well", "no version", "token", "127.0.0.1"),
    ("a job that disables tokens opens it", "ray, version 2.9.3", "disabled", "0.0.0.0"),
]


@table(*DASHBOARDS)
def test_the_dashboard_is_open_only_where_a_token_protects_it(pod: Pod, case: tuple[str, str, str]) -> None:
    version, mode, host = case
    pod.set("version", version)
    port = pod.env["RAY_ADDRESS"].rpartition(":")[2]
    in_pod = {"RAY_ADDRESS": f"localhost:{port}", "RAY_AUTH_MODE": mode, "ALLRANKS_RAY_DASHBOARD_PORT": "20002"}
    process = pod.lead("print('done')", **in_pod)
    output, error = process.communicate(timeout=SECONDS)
    assert output == "done\n", error
    [call] = pod.calls()
    assert {f"--dashboard-host={host}", "--dashboard-port=20002"} <= set(call)
    assert ("Ray before 2.52 has no tokens, so its dashboard is only at 127.0.0.1" in error) == (host != "0.0.0.0")


# Recorded: Ray 2.60, shortened.
PROCESS = "\x1b[36m(Trainer pid=16405, ip=127.0.0.3)\x1b[0m "
DEAD_WORKER = (
    "\x1b[33m(raylet)\x1b[0m A worker died or was killed while executing a task by an unexpected system error. Worker "
    "ID: 42c5 Worker IP address: 127.0.0.4 Worker port: 32885 Worker PID: 30726 Worker exit type: SYSTEM_ERROR Worker "
    "exit detail: RPC error: Socket closed"
)
CRASH = (
    "*** SIGSEGV received at time=1796101492 on cpu 0 ***",
    "Fatal Python error: Segmentation fault",
    "",
    "Stack (most recent call first):",
    '  File "/app/train.py", line 9 in train',
    "Extension modules: msgpack._cmsgpack, google._upb._message",
)
RAISED_BY_RAY = 'Traceback (most recent call last):\n  File "/app/train.py", line 13, in <module>\n'
ACTOR_DIED = (
    f"{RAISED_BY_RAY}ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: Trainer\n\tactor_id: 6ae1\n\tpid: 16405\n\tname: trainer-1\n\tip: 127.0.0.3\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the OOM killer\n"
)
ACTOR_LINE = (
    "ActorDiedError: actor trainer-1 of class Trainer, pid 16405 at 127.0.0.3, is dead because its worker process has "
    "died: Worker unexpectedly exits with a connection error code 2. End of file"
)
TASK_DIED = (
    f"{RAISED_BY_RAY}ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.\n"
)
RANK_DIED = (
    f"{RAISED_BY_RAY}ray.train.WorkerGroupError: Training failed due to worker errors:\n[Rank 1 Error Snippet]:\n"
    "A worker health check failed.\nWorker info: Worker(\n  actor=Actor(RayTrainWorker, 6ae1),\n)\n"
    + ACTOR_DIED.partition("ActorDiedError: ")[2]
)


def test_the_report_of_a_rank_of_ray_train_that_died_names_its_process(pod: Pod) -> None:
    output = f"{PROCESS}{CRASH[1]}\n{RANK_DIED}"
    _, _, error = end(pod.lead(f"import os; os.write(2, {output.encode()!r}); os._exit(1)"))
    _, _, report = error.partition("allranks: rank 1 failed first, at ")
    assert report.splitlines()[1:] == [ACTOR_LINE, "Its last lines:", CRASH[1]]


@table(
    ("a signal", ACTOR_DIED, [ACTOR_LINE]),
    (
        "a fault, whose lines come later",
        ACTOR_DIED + "".join(f"{PROCESS}{line}\n" for line in CRASH),
        [ACTOR_LINE, "Its last lines:", CRASH[1], *CRASH[3:5]],
    ),
    (
        "an exit that the process explains",
        f"{PROCESS}no data in shard 3\n{ACTOR_DIED}",
        [ACTOR_LINE, "Its last lines:", "no data in shard 3"],
    ),
    (
        "a task",
        f"{DEAD_WORKER}\n{TASK_DIED}",
        ["WorkerCrashedError: the worker died, pid 30726 at 127.0.0.4: RPC error: Socket closed"],
    ),
    ("a program that survived it", f"{ACTOR_DIED}{RAISED_BY_RAY}ValueError: no data\n", []),
)
def test_the_end_of_the_log_says_which_process_of_ray_died_and_its_last_lines(case, pod: Pod) -> None:
    output, lines = case
    code, _, error = end(pod.lead(f"import os; os.write(2, {output.encode()!r}); os._exit(1)"))
    assert code == 1
    _, _, report = error.partition("allranks: the last lines of the program itself:\n")
    assert report.splitlines() == lines
