"""The helper that starts a worker's Horovod ranks: real processes on the loopback device.

Ranks are small shell scripts, and `fake_horovod/` stands for the rendezvous; the slow test at the end has the real one.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.local import ports
from allranks.pod_bundle import HELPERS
from support import tools

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
HELPER = HELPERS / "horovod_gloo.py"
TELL = 'env > "$OUT/rank-$HOROVOD_RANK.new"; mv "$OUT/rank-$HOROVOD_RANK.new" "$OUT/rank-$HOROVOD_RANK"; '
SOON = 300.0

Start = Callable[..., "subprocess.Popen[str]"]


def free_port() -> int:
    """A port outside the ephemeral range: a client that connects before the server listens could connect to itself."""
    return ports.choose([("", 0)])[("", 0)][1]


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path


def secret(folder: Path) -> dict[str, str]:
    """The variables of a pod with the secret of its job, which is created if it does not exist."""
    if not (folder / "secret").exists():
        (folder / "secret").write_text("only the pods of the job have it")
    return {"ALLRANKS_RENDEZVOUS_SECRET_FILE": str(folder / "secret"), "ALLRANKS_ATTEMPT": "0"}


def ask(port: int, method: str, path: str, body: str | None = None, source: str = "127.0.0.1", token: str = "") -> int:
    """The status of the answer to a request from that address of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON, source_address=(source, 0))
    with contextlib.closing(connection):
        connection.request(method, path, body, {"X-Allranks-Token": token} if token else {})
        return connection.getresponse().status


@pytest.fixture
def start(out) -> Iterator[Start]:
    """Starts workers of one job, each in its own session; asserts at the end that no process is left."""
    port, workers = free_port(), []

    def one(worker: int, of: int, *program: str, slots: int = 2, helper: tuple[str, ...] = (), **env: str) -> Any:
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(HERE / "fake_horovod"),
            "OUT": str(out),
            "HOROVOD_CROSS_RANK": str(worker),
            "HOROVOD_CROSS_SIZE": str(of),
            "HOROVOD_LOCAL_SIZE": str(slots),
            "HOROVOD_SIZE": str(of * slots),
            "HOROVOD_HOSTNAME": f"job-worker-{worker}-0",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "localhost",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_START_TIMEOUT": "100",
            **secret(out),
        }
        if worker == 0:
            variables["ALLRANKS_HOROVOD_HOSTS"] = f"job-worker-{{}}-0:{slots}"
        command = helper or (sys.executable, str(HELPER))
        begun = subprocess.Popen(
            [*command, *program],
            env=variables | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        workers.append(begun)
        return begun

    one.port = port
    yield one
    none_is_left(workers)
    for worker in workers:
        worker.stdout.close()


def none_is_left(workers: list[subprocess.Popen[Any]]) -> None:
    """Process groups of the helpers and of their ranks."""
    deadline = time.monotonic() + 20  # a shell's `sleep` may outlive the shell for a moment
    while (left := _alive({worker.pid for worker in workers})) and time.monotonic() < deadline:
        time.sleep(0.05)
    for worker in workers:
        if worker.pid in left:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    assert not left, "a helper, or a rank of its, was left behind"


def _alive(groups: set[int]) -> set[int]:
    """The process groups with a process that is not a zombie. From /proc: `ps` may not be installed."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, _, group, *_ = file.read_text().rpartition(")")[2].split()
            if int(group) in groups and state != "Z":
                found.add(int(group))
    return found


def shell(script: str) -> tuple[str, str, str]:
    return "sh", "-c", TELL + script


def loop(trap: str) -> tuple[str, str, str]:
    """A rank that runs until SIGTERM, and prints when its handler is installed."""
    return shell(f"trap '{trap}' TERM; touch \"$OUT/ready-$HOROVOD_RANK\"; while :; do sleep 0.05; done")


def test_a_worker_with_only_ipv6_addresses_ends_with_the_cure(start):
    worker = start(1, 2, "true", HOROVOD_GLOO_RENDEZVOUS_ADDR="::1")
    assert worker.wait(SOON) == 1
    assert worker.stdout.read() == (
        "allranks: ::1 has only the IPv6 address ::1, and Horovod's gloo needs IPv4: use controller: MPI, or pods with "
        "IPv4 addresses\n"
    )


MEET = 'while [ "$(ls "$OUT" | grep -c "^rank-.$")" -lt "$HOROVOD_SIZE" ]; do sleep 0.02; done'
"""Ends when all ranks have started, like a training that waits for its peers."""


def ranks(out: Path) -> dict[int, dict[str, str]]:
    """Rank -> its environment, for the ranks that have started."""
    found = {}
    for file in out.glob("rank-*"):
        if file.suffix != ".new":
            pairs = (line.partition("=") for line in file.read_text().splitlines())
            found[int(file.name.removeprefix("rank-"))] = {name: value for name, _, value in pairs}
    return found


def handles_sigterm(process: subprocess.Popen[bytes]) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def wait_for(what: Callable[[], Any], within: float = SOON) -> None:
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_the_ranks_of_all_workers_are_started_with_their_numbers(start, out):
    workers = [start(worker, 2, *shell(MEET)) for worker in range(2)]
    assert [worker.wait(SOON) for worker in workers] == [0, 0]
    own = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_HOSTNAME", "HOROVOD_SIZE")
    assert {rank: tuple(env[name] for name in own) for rank, env in ranks(out).items()} == {
        0: ("0", "0", "0", "job-worker-0-0", "4"),
        1: ("1", "1", "0", "job-worker-0-0", "4"),
        2: ("2", "0", "1", "job-worker-1-0", "4"),
        3: ("3", "1", "1", "job-worker-1-0", "4"),
    }
    for env in ranks(out).values():
        assert env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1", "a number: Horovod's client does not retry names"
        assert env["HOROVOD_GLOO_IFACE"] == "lo"


def test_a_host_name_that_does_not_resolve_is_said_instead_of_a_segmentation_fault():
    """A resolver of its own stands for the missing name: only root may change the name of a host."""
    code = (
        f"import sys, socket; sys.path.insert(0, {str(HELPERS)!r}); import horovod_gloo; "
        "socket.gethostname = lambda: 'no-such-host.invalid'; sys.exit(horovod_gloo.host_name_problem())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 1
    assert "the host name no-such-host.invalid does not resolve" in done.stderr
    assert "add it to /etc/hosts" in done.stderr


def test_ranks_wait_for_a_worker_that_comes_late(start, out):
    first = start(0, 2, *shell(MEET))
    time.sleep(0.5)
    assert (ranks(out), first.poll()) == ({}, None)
    second = start(1, 2, *shell(MEET))
    assert [worker.wait(SOON) for worker in (first, second)] == [0, 0]
    assert sorted(ranks(out)) == [0, 1, 2, 3]


def test_ranks_wait_for_a_first_worker_that_comes_late(start, out):
    second = start(1, 2, *shell(MEET))
    time.sleep(0.5)
    assert (ranks(out), second.poll()) == ({}, None)
    first = start(0, 2, *shell(MEET))
    assert [worker.wait(SOON) for worker in (first, second)] == [0, 0]


def test_a_program_that_is_done_at_once_does_not_leave_the_other_workers_waiting(start):
    """The rendezvous ends with the first worker; the others may not have read the start signal yet."""
    for _ in range(3):
        workers = [start(worker, 2, "true", slots=1, HOROVOD_START_TIMEOUT=str(SOON)) for worker in range(2)]
        assert [worker.wait(SOON) for worker in workers] == [0, 0]


# Action of rank 1, exit status of its worker.
ENDS = [
    ("exit 7", 7),
    ("exit 1", 1),
    ("kill -KILL $$", 137),
    ("kill -SEGV $$", 139),
    ("exit 138", 138),
]


@pytest.mark.parametrize(("end", "status"), ENDS, ids=[end for end, _ in ENDS])
def test_the_first_failed_rank_sets_the_exit_status_and_ends_the_others(start, out, end, status):
    begun = time.monotonic()
    wait = f'while [ ! -e "{out}/rank-0" ]; do sleep 0.02; done'
    worker = start(0, 1, *shell(f'if [ "$HOROVOD_RANK" = 1 ]; then {wait}; {end}; fi; exec sleep 60'))
    assert worker.wait(SOON) == status
    assert time.monotonic() - begun < SOON
    assert sorted(ranks(out)) == [0, 1]


def test_SIGTERM_is_forwarded_and_the_ranks_set_the_exit_status(start, out):
    worker = start(
        0, 1, *shell("trap 'exit 143' TERM; touch \"$OUT/ready-$HOROVOD_RANK\"; while :; do sleep 0.05; done")
    )
    wait_for(lambda: len(list(out.glob("ready-*"))) == 2)
    worker.terminate()
    assert worker.wait(SOON) == 143


def test_ranks_that_succeed_after_SIGTERM_succeed(start, out):
    program = 'trap \'touch "$OUT/saved-$HOROVOD_RANK"; exit 0\' TERM; touch "$OUT/ready-$HOROVOD_RANK"; '
    worker = start(0, 1, *shell(program + "while :; do sleep 0.05; done"))
    wait_for(lambda: len(list(out.glob("ready-*"))) == 2)
    worker.terminate()
    assert worker.wait(SOON) == 0
    assert sorted(file.name for file in out.glob("saved-*")) == ["saved-0", "saved-1"]


def test_many_SIGTERMs_have_the_effect_of_one(start, out):
    """Repeated signals must not make the helper miss the end of a rank."""
    worker = start(0, 1, *loop("exit 143"))
    wait_for(lambda: len(list(out.glob("ready-*"))) == 2)
    for _ in range(20):
        worker.terminate()
    assert worker.wait(SOON) == 143, worker.stdout.read()


def test_SIGTERM_while_it_waits_for_the_others_ends_it_at_once(start, out):
    worker = start(0, 2, *shell("exit 0"))
    wait_for(lambda: handles_sigterm(worker))
    worker.terminate()
    assert worker.wait(SOON) == 143
    assert ranks(out) == {}


@pytest.mark.nightly
def test_a_rank_that_does_not_end_when_its_peer_has_failed_is_killed(start, out):
    impatient = "import sys, horovod_gloo as helper; helper.GRACE_SECONDS = 0.3; sys.exit(helper.main(sys.argv[1:]))"
    path = f"{HELPERS}:{HERE / 'fake_horovod'}"
    wait = f'while [ ! -e "{out}/deaf" ]; do sleep 0.02; done'
    deaf = f"trap '' TERM; touch \"{out}/deaf\"; while :; do sleep 0.05; done"
    program = shell(f'if [ "$HOROVOD_RANK" = 1 ]; then {wait}; exit 5; fi; {deaf}')
    worker = start(0, 1, *program, helper=(sys.executable, "-c", impatient), PYTHONPATH=path)
    assert worker.wait(SOON) == 5


def test_workers_that_do_not_come_are_named(start):
    worker = start(0, 3, *shell("exit 0"), HOROVOD_START_TIMEOUT="0.4")
    assert worker.wait(SOON) == 1
    assert worker.stdout.read() == "allranks: workers [1, 2] did not join within 0 s (HOROVOD_START_TIMEOUT)\n"


def test_a_missing_rendezvous_is_named(start):
    worker = start(1, 2, *shell("exit 0"), HOROVOD_START_TIMEOUT="0.4", HOROVOD_GLOO_RENDEZVOUS_PORT="9")
    assert worker.wait(SOON) == 1
    assert "no rendezvous at localhost:9 within" in worker.stdout.read()


def test_an_image_without_Horovod_is_reported(start):
    worker = start(0, 1, *shell("exit 0"), PYTHONPATH="")
    assert worker.wait(SOON) == 1
    text = worker.stdout.read()
    assert text.startswith("allranks: the image's python3 has no Horovod (")
    assert "Traceback" not in text


def test_a_missing_program_is_reported_with_status_127(start):
    worker = start(0, 1, "no-such-program")
    assert worker.wait(SOON) == 127
    assert worker.stdout.read() == "allranks: cannot start no-such-program: No such file or directory\n"


def test_without_a_program_it_prints_its_usage(start):
    worker = start(0, 1)
    assert worker.wait(SOON) == 2
    assert worker.stdout.read() == "usage: horovod_gloo.py PROGRAM [ARG...]\n"


PROGRAM = """
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum).item()
print(f"rank {hvd.rank()} of {hvd.size()}, local {hvd.local_rank()} of {hvd.local_size()}, sum {total:g}", flush=True)
hvd.shutdown()
"""


def test_a_stranger_can_neither_read_nor_change_the_rendezvous(start, out):
    workers = [start(worker, 2, *loop("exit 3"), slots=1) for worker in (0, 1)]
    wait_for(lambda: (out / "ready-0").exists() and (out / "ready-1").exists())
    stranger = {"source": "127.0.0.2"}
    assert ask(start.port, "GET", "/allranks/go", **stranger) == 403
    assert ask(start.port, "GET", "/allranks/go", **stranger, token="guessed") == 403
    assert ask(start.port, "PUT", "/global/0", "evil", **stranger) == 403
    assert ask(start.port, "HEAD", "/", **stranger) == 403
    assert ask(start.port, "GET", "/global/0") == 404, "the address of a pod that has joined is admitted"
    assert ask(start.port, "PUT", "/allranks/go", "go") == 403, "helpers need the token in each request"
    for worker in workers:
        worker.terminate()
    assert [worker.wait(SOON) for worker in workers] == [3, 3]


def test_a_worker_without_the_secret_does_not_join(start, out):
    first = start(0, 2, *shell("exit 0"), slots=1, HOROVOD_START_TIMEOUT="3")
    second = start(1, 2, *shell("exit 0"), slots=1, HOROVOD_START_TIMEOUT="3", ALLRANKS_RENDEZVOUS_SECRET_FILE="")
    assert [first.wait(SOON), second.wait(SOON)] == [1, 1]
    assert not list(out.glob("rank-*"))


def test_without_a_secret_the_rendezvous_works_as_before(start, out):
    workers = [start(worker, 2, *shell("exit 0"), slots=1, ALLRANKS_RENDEZVOUS_SECRET_FILE="") for worker in (0, 1)]
    assert [worker.wait(SOON) for worker in workers] == [0, 0]


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Horovod_ranks_meet_and_add_up(start):
    python = str(tools.built("frameworks.sh", "pytorch", "horovod") / "bin" / "python")
    real = {"PYTHONPATH": "", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    workers = [start(worker, 2, python, "-c", PROGRAM, helper=(python, str(HELPER)), **real) for worker in range(2)]
    outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    said = sorted(line for output in outputs for line in output.splitlines() if line.startswith("rank "))
    assert said == [
        "rank 0 of 4, local 0 of 2, sum 6",
        "rank 1 of 4, local 1 of 2, sum 6",
        "rank 2 of 4, local 0 of 2, sum 6",
        "rank 3 of 4, local 1 of 2, sum 6",
    ]
