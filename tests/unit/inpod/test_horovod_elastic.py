"""The helper that runs a worker's ranks of Elastic Horovod: real processes on the loopback device.

Ranks are small shell scripts, and `fake_horovod/` stands for the driver; the slow tests at the end have the real one.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.pod_bundle import HELPERS
from unit.inpod.test_horovod_gloo import SOON, Start, ask, free_port, handles_sigterm, none_is_left, secret, wait_for

HERE = Path(__file__).parent
HELPER = HELPERS / "horovod_elastic.py"
TELL = 'me="$ALLRANKS_INDEX-$HOROVOD_LOCAL_RANK"; env > "$OUT/new-$me"; mv "$OUT/new-$me" "$OUT/rank-$me"; '
UNTIL = 'while [ ! -e "$OUT/%s" ]; do sleep 0.05; done; '


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path


@pytest.fixture
def start(out) -> Iterator[Start]:
    """Starts workers of one job, each in its own session; asserts at the end that no process is left."""
    port, workers = free_port(), []

    def one(
        index: int, of: int, *program: str, slots: int = 1, patch: str = "", python: str = sys.executable, **env: str
    ) -> Any:
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{HERE / 'fake_horovod'}:{HELPERS}",
            "OUT": str(out),
            "ALLRANKS_INDEX": str(index),
            "ALLRANKS_HOROVOD_MIN": "1",
            "ALLRANKS_HOROVOD_MAX": "4",
            "ALLRANKS_HOROVOD_WORKERS": str(of),
            "HOROVOD_LOCAL_SIZE": str(slots),
            "HOROVOD_HOSTNAME": f"job-worker-{index}-0",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "localhost",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_START_TIMEOUT": "100",
            **secret(out),
        }
        with (out / f"log-{len(workers)}").open("w") as log:
            script = f"import sys, horovod_elastic as helper; {patch}; sys.exit(helper.main(sys.argv[1:]))"
            command = (python, "-c", script) if patch else (python, str(HELPER))
            begun = subprocess.Popen(
                [*command, *program], env=variables | env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        begun.log = Path(log.name)
        workers.append(begun)
        return begun

    one.port = port
    yield one
    none_is_left(workers)


def shell(script: str) -> tuple[str, str, str]:
    return "sh", "-c", TELL + script


def loop(trap: str = "exit 143") -> tuple[str, str, str]:
    """A rank that runs until the file `end` exists or it gets SIGTERM."""
    return shell(f"trap '{trap}' TERM; touch \"$OUT/ready-$me\"; {UNTIL % 'end'}")


def environment(out: Path, name: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in (out / name).read_text().splitlines())
    return {name: value for name, _, value in pairs}


def ready(out: Path, *names: str) -> None:
    wait_for(lambda: all((out / f"ready-{name}").exists() for name in names))


def test_the_ranks_of_all_workers_are_started_with_their_numbers(start, out):
    workers = [start(index, 2, *loop(), slots=2, ALLRANKS_THREADS="3") for index in (1, 0)]
    ready(out, "0-0", "0-1", "1-0", "1-1")
    assert [worker.poll() for worker in workers] == [None, None]
    (out / "end").touch()
    assert [worker.wait(SOON) for worker in workers] == [0, 0]
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    numbers = {}
    for file in out.glob("rank-*"):
        env = environment(out, file.name)
        numbers[file.name] = " ".join(env[f"HOROVOD_{name}"] for name in names)
        assert env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1", "a number: Horovod's client does not retry names"
        assert env["HOROVOD_GLOO_IFACE"] == "lo"
        assert env["OMP_NUM_THREADS"] == "3"
        assert re.fullmatch(rf"job-worker-{file.name[5]}-0-\w{{8}}", env["HOROVOD_HOSTNAME"])
    assert numbers == {
        "rank-0-0": "0 4 0 2 0 2",
        "rank-0-1": "1 4 1 2 0 2",
        "rank-1-0": "2 4 0 2 1 2",
        "rank-1-1": "3 4 1 2 1 2",
    }


def test_a_worker_with_only_ipv6_addresses_ends_with_the_cure(start):
    worker = start(1, 2, "true", HOROVOD_GLOO_RENDEZVOUS_ADDR="::1")
    assert worker.wait(SOON) == 1
    assert "Horovod's gloo needs IPv4: use controller: MPI, or pods with IPv4 addresses" in worker.log.read_text()


@pytest.mark.nightly
def test_it_starts_with_the_minimum_when_the_others_do_not_join_in_time(start, out):
    first = start(0, 3, *loop(), ALLRANKS_HOROVOD_WAIT_SECONDS="1")
    ready(out, "0-0")
    assert environment(out, "rank-0-0")["HOROVOD_SIZE"] == "1"
    second = start(1, 3, *loop())
    ready(out, "1-0")
    (out / "end").touch()
    assert [first.wait(SOON), second.wait(SOON)] == [0, 0]


def test_a_stranger_can_neither_end_the_training_nor_use_the_rendezvous(start, out):
    workers = [start(index, 2, *loop()) for index in (0, 1)]
    ready(out, "0-0", "1-0")
    host = environment(out, "rank-1-0")["HOROVOD_HOSTNAME"]
    leave = json.dumps({"host": host, "index": 1, "slots": 1, "ended": {"0": 1}, "leaving": True, "bye": True})
    stranger = {"source": "127.0.0.2"}
    assert ask(start.port, "POST", "/allranks", leave, **stranger) == 403
    assert ask(start.port, "POST", "/allranks", leave, **stranger, token="guessed") == 403
    assert ask(start.port, "POST", "/allranks", leave) == 403, "the address of a pod is not sufficient"
    assert ask(start.port, "PUT", "/worker_addresses/x:0", "a pickled object", **stranger) == 403
    assert ask(start.port, "GET", f"/rank_and_size/{host}:0", **stranger) == 403
    assert [worker.poll() for worker in workers] == [None, None]
    (out / "end").touch()
    assert [worker.wait(SOON) for worker in workers] == [0, 0]


@pytest.mark.nightly
def test_workers_of_both_times_are_peers_when_the_secret_was_created_again(start, out):
    first, second = (start(index, 3, *loop(), ALLRANKS_HOROVOD_WAIT_SECONDS="1") for index in (0, 1))
    ready(out, "0-0", "1-0")
    (out / "secret").write_text("another one")
    third = start(2, 3, *loop())
    ready(out, "2-0")
    assert (first.poll(), second.poll()) == (None, None)
    (out / "end").touch()
    assert [worker.wait(SOON) for worker in (first, second, third)] == [0, 0, 0]


# Action of local rank 1 of worker 1, exit status of the worker, what it says last.
BY_SIGNAL = "allranks: the program was ended by signal "
ENDS = [
    pytest.param("exit 7", 7, "", id="exit 7"),
    pytest.param("exit 138", 138, "", id="exit 138", marks=pytest.mark.nightly),
    pytest.param("kill -KILL $$", 137, BY_SIGNAL + "9 (SIGKILL)\n", id="SIGKILL"),
    pytest.param("kill -SEGV $$", 139, BY_SIGNAL + "11 (SIGSEGV)\n", id="SIGSEGV", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("end", "status", "said"), ENDS)
def test_a_worker_with_a_failed_rank_ends_with_its_status_and_the_others_continue(start, out, end, status, said):
    failing = f"if [ $me = 1-1 ]; then {UNTIL % 'ready-1-0'} {end}; fi; trap 'exit 0' TERM; touch \"$OUT/ready-$me\"; "
    workers = [start(index, 2, *shell(failing + UNTIL % "end"), slots=2) for index in range(2)]
    assert workers[1].wait(SOON) == status
    assert workers[1].log.read_text().endswith(said)
    assert (BY_SIGNAL in workers[1].log.read_text()) == bool(said)
    old = environment(out, "rank-1-0")["HOROVOD_HOSTNAME"]
    assert workers[0].poll() is None, "a rank that ends with 0 after SIGTERM has not finished the training"
    (out / "ready-1-0").unlink()
    again = start(1, 2, *loop(), slots=2)
    ready(out, "1-0", "1-1")
    assert environment(out, "rank-1-0")["HOROVOD_HOSTNAME"] != old, "Horovod bans a host that failed"
    (out / "end").touch()
    assert [workers[0].wait(SOON), again.wait(SOON)] == [0, 0]


def test_a_rank_of_the_first_worker_that_fails_ends_all_and_the_first_worker_is_the_first_to_end(start, out):
    program = shell(f'if [ $me = 0-0 ]; then {UNTIL % "ready-1-0"} exit 7; fi; touch "$OUT/ready-$me"; exec sleep 60')
    workers = [start(index, 2, *program) for index in range(2)]
    assert workers[1].wait(SOON) == 7
    assert workers[0].poll() == 7
    assert workers[1].log.read_text() == "allranks: worker 0 has ended the training with status 7\n"


@pytest.mark.nightly
def test_the_first_worker_outlives_its_last_answer_however_slowly_that_is_sent(start, out):
    slow = "import time, horovod_elastic_driver as driver; hear = driver.Hosts.on_call; "
    slow += "driver.Hosts.on_call = lambda *request: (hear(*request), time.sleep(0.5))[0]"
    program = shell(f'if [ $me = 0-0 ]; then {UNTIL % "ready-1-0"} exit 7; fi; touch "$OUT/ready-$me"; exec sleep 60')
    workers = [start(index, 2, *program, patch=patch) for index, patch in enumerate((slow, ""))]
    assert [worker.wait(SOON) for worker in workers] == [7, 7]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_worker_leaves_and_the_others_continue(start, out, number):
    workers = [start(index, 3, *loop("exit 1")) for index in range(3)]
    ready(out, "0-0", "1-0", "2-0")
    workers[2].send_signal(number)
    assert workers[2].wait(SOON) == 128 + number
    assert (workers[0].poll(), workers[1].poll()) == (None, None)
    (out / "end").touch()
    assert [worker.wait(SOON) for worker in workers[:2]] == [0, 0]


def test_ranks_that_succeed_after_SIGTERM_do_not_end_the_training(start, out):
    workers = [start(index, 2, *loop('touch "$OUT/saved"; exit 0')) for index in range(2)]
    ready(out, "0-0", "1-0")
    workers[1].terminate()
    assert workers[1].wait(SOON) == 0
    assert (out / "saved").exists()
    time.sleep(0.5)
    assert workers[0].poll() is None
    (out / "end").touch()
    assert workers[0].wait(SOON) == 0


def test_termination_of_the_first_worker_ends_all(start, out):
    workers = [start(index, 2, *loop()) for index in range(2)]
    ready(out, "0-0", "1-0")
    for _ in range(20):
        workers[0].terminate()  # repeated signals have no further effect
    assert [worker.wait(SOON) for worker in workers] == [143, 143]


def test_SIGTERM_while_it_waits_for_the_driver_ends_it_at_once(start, out):
    worker = start(1, 2, *shell("exit 0"))
    wait_for(lambda: handles_sigterm(worker))
    worker.terminate()
    assert worker.wait(SOON) == 143
    assert not list(out.glob("rank-*"))


def test_a_lost_driver_is_reported_and_ends_the_ranks(start, out):
    workers = [
        start(index, 2, *loop("exit 0"), patch="helper.LOST_SECONDS = 1; helper.STAY_SECONDS = 0") for index in range(2)
    ]
    ready(out, "0-0", "1-0")
    os.killpg(workers[0].pid, signal.SIGKILL)
    assert workers[1].wait(SOON) == 138
    assert re.fullmatch(r"allranks: no answer from the driver at localhost:\d+ for 1 s\n", workers[1].log.read_text())


@pytest.mark.nightly
def test_a_pod_without_its_driver_stays_until_it_is_deleted(start, out):
    workers = [start(index, 2, *loop("exit 0"), patch="helper.LOST_SECONDS = 1") for index in range(2)]
    ready(out, "0-0", "1-0")
    os.killpg(workers[0].pid, signal.SIGKILL)
    wait_for(lambda: "no answer from the driver" in workers[1].log.read_text())
    assert workers[1].poll() is None
    workers[1].terminate()
    assert workers[1].wait(SOON) == 143


def test_a_rank_that_fails_because_of_a_lost_driver_is_not_the_root_cause(start, out):
    program = shell(f'touch "$OUT/ready-$me"; {UNTIL % "end"} exit 134')
    workers = [
        start(index, 2, *program, patch="helper.LOST_SECONDS = 1; helper.STAY_SECONDS = 0") for index in range(2)
    ]
    ready(out, "0-0", "1-0")
    os.killpg(workers[0].pid, signal.SIGKILL)
    (out / "end").touch()
    assert workers[1].wait(SOON) == 138


@pytest.mark.nightly
def test_a_worker_that_was_silent_too_long_is_removed_and_ends(start, out):
    quick = "import horovod_elastic_driver; horovod_elastic_driver.SILENT_SECONDS = 2"
    workers = [start(0, 2, *loop(), patch=quick), start(1, 2, *loop())]
    ready(out, "0-0", "1-0")
    workers[1].send_signal(signal.SIGSTOP)
    wait_for(lambda: "has been silent for 2 s" in workers[0].log.read_text())
    workers[1].send_signal(signal.SIGCONT)
    assert workers[1].wait(SOON) == 138
    expected = "allranks: the others continued without this worker, which was silent for too long\n"
    assert workers[1].log.read_text() == expected
    (out / "end").touch()
    assert workers[0].wait(SOON) == 0


def test_a_rank_that_ignores_SIGTERM_is_killed(start, out):
    deaf = f"trap '' TERM; touch \"$OUT/ready-$me\"; {UNTIL % 'end'}"
    program = shell(f"if [ $me = 0-1 ]; then {UNTIL % 'ready-0-0'} exit 5; fi; {deaf}")
    worker = start(0, 1, *program, slots=2, patch="helper.GRACE_SECONDS = 0.3")
    assert worker.wait(SOON) == 5


@pytest.mark.nightly
def test_too_few_workers_for_too_long_are_reported(start):
    worker = start(
        0, 2, "true", ALLRANKS_HOROVOD_MIN="2", ALLRANKS_HOROVOD_WAIT_SECONDS="0", HOROVOD_ELASTIC_TIMEOUT="1"
    )
    assert worker.wait(SOON) == 1
    assert worker.log.read_text() == (
        "allranks: Elastic Horovod has ended: 1 of at least 2 ranks have a worker, for more than 1 s "
        "(HOROVOD_ELASTIC_TIMEOUT)\n"
    )


def test_a_missing_driver_is_reported(start):
    worker = start(1, 2, "true", HOROVOD_START_TIMEOUT="0.4", HOROVOD_GLOO_RENDEZVOUS_PORT="9")
    assert worker.wait(SOON) == 1
    assert worker.log.read_text() == "allranks: no driver at localhost:9 within 0 s (HOROVOD_START_TIMEOUT)\n"


def test_an_image_without_Horovod_is_reported(start):
    worker = start(0, 1, "true", PYTHONPATH="")
    assert worker.wait(SOON) == 1
    text = worker.log.read_text()
    assert text.startswith("allranks: the image's python3 has no Horovod (")
    assert "Traceback" not in text


def test_a_port_in_use_is_reported(start):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        worker = start(0, 1, "true", HOROVOD_GLOO_RENDEZVOUS_PORT=port)
        assert worker.wait(SOON) == 1
    assert worker.log.read_text() == f"allranks: cannot listen on port {port}: Address already in use\n"


def test_a_missing_program_is_reported_with_status_127(start):
    workers = [start(index, 2, "no-such-program") for index in range(2)]
    assert [worker.wait(SOON) for worker in workers] == [127, 127]
    assert workers[0].log.read_text() == "allranks: cannot start no-such-program: No such file or directory\n"


def test_without_a_program_it_prints_its_usage(start):
    worker = start(0, 1)
    assert worker.wait(SOON) == 2
    assert worker.log.read_text() == "usage: horovod_elastic.py PROGRAM [ARG...]\n"


PROGRAM = HERE / "elastic_program.py"
STEP = re.compile(
    r"(?P<time>[\d.]+) rank=(?P<rank>\d+) size=(?P<size>\d+) step=(?P<step>\d+) loss=[\d.]+ pid=(?P<pid>\d+)"
)
LONG = 120.0


@pytest.fixture
def train(start, frameworks) -> Start:
    """Starts a worker of a real elastic training; `steps()` are the steps of its rank."""
    python = str(frameworks / "bin" / "python")

    def one(index: int, of: int, steps: int, seconds: float = 0.3, late: int = 0, **env: str) -> Any:
        real = {
            "PYTHONPATH": str(HELPERS),
            "OMP_NUM_THREADS": "1",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_START_TIMEOUT": "100",
            "ALLRANKS_HOROVOD_MIN": "2",
        }
        program = ("sh", "-c", f'sleep {late}; exec "$@"', "sh", python, str(PROGRAM), str(steps), str(seconds))
        worker = start(index, of, *program, python=python, **(real | env))
        worker.steps = lambda: [
            {name: float(value) for name, value in found.groupdict().items()}
            for found in STEP.finditer(worker.log.read_text())
        ]
        return worker

    return one


def reaches(worker: Any, what: str, value: int, since: float = 0) -> dict[str, float]:
    """Waits for a step of the worker after `since` with this size or at least this number; returns it."""

    def found() -> list[dict[str, float]]:
        assert worker.poll() is None or worker.steps(), worker.log.read_text()
        later = [step for step in worker.steps() if step["time"] > since]
        return [step for step in later if (step[what] == value if what == "size" else step[what] >= value)]

    wait_for(found, LONG)
    return found()[0]


def codes(workers: list[Any]) -> list[int]:
    return [worker.wait(LONG) for worker in workers]


def took(what: str, seconds: float) -> None:
    print(f"{what}: {seconds:.1f} s")


def assert_no_step_is_lost(worker: Any) -> None:
    """Each step follows the previous one or repeats it: a step without a commit is repeated."""
    made = [step["step"] for step in worker.steps()]
    assert all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(made)), made


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Elastic_Horovod_trains_to_the_end(train):
    workers = [train(index, 3, 5) for index in range(3)]
    assert codes(workers) == [0, 0, 0], workers[0].log.read_text()
    assert [{step["size"] for step in worker.steps()} for worker in workers] == [{3}, {3}, {3}]
    assert [{step["rank"] for step in worker.steps()} for worker in workers] == [{0}, {1}, {2}]
    assert [worker.steps()[-1]["step"] for worker in workers] == [5, 5, 5]


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Elastic_Horovod_continues_without_a_killed_worker_and_adds_its_replacement(train):
    workers = [train(index, 3, 60) for index in range(3)]
    last = reaches(workers[2], "step", 5)
    killed = time.time()
    os.kill(int(last["pid"]), signal.SIGKILL)
    assert workers[2].wait(LONG) == 137
    took("seconds from a killed rank to the others' next step", reaches(workers[0], "size", 2)["time"] - killed)
    begun = time.time()
    again = train(2, 3, 60)
    took("seconds from a replacement's start to the full size", reaches(again, "size", 3)["time"] - begun)
    assert codes([workers[0], workers[1], again]) == [0, 0, 0], workers[0].log.read_text()
    for worker in workers[:2]:
        assert_no_step_is_lost(worker)
        assert [size for size, _ in itertools.groupby(step["size"] for step in worker.steps())] == [3, 2, 3]
        assert worker.steps()[-1]["step"] == 60


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Elastic_Horovod_ends_with_the_first_workers_rank(train):
    workers = [train(index, 2, 500) for index in range(2)]
    os.kill(int(reaches(workers[0], "step", 3)["pid"]), signal.SIGKILL)
    assert codes(workers) == [137, 137]
    assert workers[1].log.read_text().endswith("allranks: worker 0 has ended the training with status 137\n")


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Elastic_Horovod_grows_and_shrinks(train):
    workers = [train(index, 2, 60) for index in range(2)]
    reaches(workers[0], "step", 3)
    begun = time.time()
    third = train(2, 3, 60)
    took("seconds from a new worker's start to its first step", reaches(workers[0], "size", 3)["time"] - begun)
    text = reaches(third, "step", 10)["time"]
    third.terminate()
    took("seconds from SIGTERM to the others' next step", reaches(workers[0], "size", 2, text)["time"] - text)
    assert third.wait(LONG) == 143
    assert codes(workers) == [0, 0], workers[0].log.read_text()
    for worker in workers:
        assert_no_step_is_lost(worker)
        assert [size for size, _ in itertools.groupby(step["size"] for step in worker.steps())] == [2, 3, 2]
    assert len({step["step"] for step in workers[0].steps()}) == len(workers[0].steps()), "none is made twice"


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Elastic_Horovod_waits_for_ranks_that_join_slowly(train):
    """The driver delays its answer; otherwise the first two would abort."""
    hasty = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"}
    workers = [train(index, 2, 40, **hasty) for index in range(2)]
    reaches(workers[0], "step", 3)
    workers.append(train(2, 3, 40, late=10, **hasty))
    assert codes(workers) == [0, 0, 0], workers[0].log.read_text()
    assert workers[0].steps()[-1]["size"] == 3


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Elastic_Horovod_ends_at_once_when_a_worker_dies_while_it_joins(train):
    """Horovod's ranks abort in any case: the driver makes them abort soon."""
    workers = [train(index, 2, 500) for index in range(2)]
    reaches(workers[0], "step", 3)
    third = train(2, 3, 500, late=60)
    children = Path(f"/proc/{third.pid}/task/{third.pid}/children")
    wait_for(children.read_text, LONG)
    wait_for(lambda: time.time() - workers[0].steps()[-1]["time"] > 3, LONG)  # the others wait
    os.killpg(third.pid, signal.SIGKILL)
    begun = time.time()
    assert codes(workers) == [134, 134]
    took("from the death of a worker that joins to the end", time.time() - begun)


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Elastic_Horovod_ends_when_too_few_are_left(train):
    workers = [train(index, 2, 500, HOROVOD_ELASTIC_TIMEOUT="5") for index in range(2)]
    os.kill(int(reaches(workers[1], "step", 3)["pid"]), signal.SIGKILL)
    assert codes(workers) == [1, 137]
    text = workers[0].log.read_text()
    assert "allranks: Elastic Horovod has ended: 1 of at least 2 ranks have a worker, for more than 5 s" in text
    assert "Traceback" not in text


@pytest.mark.slow
@pytest.mark.nightly
def test_real_Elastic_Horovod_ends_when_too_few_join(train):
    worker = train(0, 2, 5, HOROVOD_ELASTIC_TIMEOUT="2", ALLRANKS_HOROVOD_WAIT_SECONDS="0")
    assert worker.wait(LONG) == 1
    assert worker.log.read_text() == (
        "allranks: Elastic Horovod has ended: 1 of at least 2 ranks have a worker, for more than 2 s "
        "(HOROVOD_ELASTIC_TIMEOUT)\n"
    )
