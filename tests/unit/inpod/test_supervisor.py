"""The supervisor in a pod: real processes, and a fake operator over HTTP."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.core.facts.processes import BEGINS
from allranks.pod_bundle import HELPERS
from support.fake_operator import FakeOperator, operator_in

sys.path.append(str(HELPERS))
import order_channel
import process_tree

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[FakeOperator]:
    with operator_in(tmp_path) as operator:
        yield operator


def changed(helpers: Path, folder: Path, file: str, usual: str, value: str) -> Path:
    """Copies the helpers with another value of a constant."""
    copied = Path(shutil.copytree(helpers, folder))
    text = (copied / file).read_text()
    assert usual in text
    (copied / file).write_text(text.replace(usual, value))
    return copied


@pytest.fixture(scope="module")
def quick(helpers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helpers that ask again soon after an order."""
    folder = tmp_path_factory.mktemp("quick") / "allranks"
    return changed(helpers, folder, "order_channel.py", "ORDER_SECONDS = 2.0", "ORDER_SECONDS = 0.1")


@pytest.fixture(scope="module")
def impatient(quick: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helpers that wait for an answer of the operator for a few seconds only."""
    folder = tmp_path_factory.mktemp("impatient") / "allranks"
    return changed(quick, folder, "supervisor.py", "SILENCE_SECONDS = 20.0", "SILENCE_SECONDS = 3.0")


@pytest.fixture
def start(quick: Path, operator: FakeOperator, tmp_path: Path) -> Iterator[Start]:
    """Starts `watch.py -- PROGRAM...` for attempt 2."""
    started: list[subprocess.Popen[bytes]] = []

    def one(
        *program: str, folder: Path = quick, before: tuple[str, ...] = (), **env: str | None
    ) -> subprocess.Popen[bytes]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON"))}
        ours |= operator.environment
        ours |= {"ALLRANKS_IN_PLACE": "1", "ALLRANKS_ATTEMPT": "2"}
        ours["ALLRANKS_WARM_FOLDER"] = str(tmp_path / f"warm-{len(started)}")  # a killed one leaves it
        for name, value in env.items():
            ours.pop(name, None)
            if value is not None:
                ours[name] = value
        command = [*before, sys.executable, str(folder / "watch.py"), "--", *program]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=ours, stdout=pipe, stderr=pipe, start_new_session=True))
        return started[-1]

    yield one
    for process in started:
        if process.poll() is None:
            for pid in process_tree.below(process.pid, parents()):
                os.kill(pid, signal.SIGKILL)
            process.kill()
        process.communicate()


def parents() -> dict[int, int]:
    return {pid: parent for pid in process_tree.processes() if (parent := process_tree.parent_of(pid)) is not None}


def python(text: str) -> tuple[str, str, str]:
    return sys.executable, "-c", text


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def is_alive(pid: int) -> bool:
    return process_tree.parent_of(pid) is not None


STOP = {"order": "Stop", "attempt": 3, "grace": 60}
START: dict[str, Any] = {"order": "Start", "attempt": 3, "env": {"ALLRANKS_ATTEMPT": "3"}}
RUN_ONCE = 'echo "attempt $ALLRANKS_ATTEMPT"; [ $ALLRANKS_ATTEMPT = 3 ] || exit 7'


# --- one restart -----------------------------------------------------------------------------------------------------


def test_a_program_that_failed_starts_again_in_its_pod_with_the_variables_of_the_next_attempt(start, operator):
    program = f'{RUN_ONCE}; echo "${{ADDED-none}} ${{REMOVED-none}} ${{KEPT-none}}"'
    process = start("sh", "-c", program, REMOVED="x", KEPT="k")
    state = operator.wait(state="Ended")
    assert (state["attempt"], state["last"]["code"], state["last"]["signal"]) == (2, 7, None)
    assert (state["last"]["attempt"], state["last"]["message"]) == (2, "attempt 2")
    operator.say(STOP)
    down = operator.wait(state="Down")
    assert (down["attempt"], down["started"], down["last"]["attempt"]) == (3, None, 2)
    operator.say({**START, "env": {"ALLRANKS_ATTEMPT": "3", "ADDED": "a=b", "REMOVED": None}})
    assert ended(process) == (0, b"attempt 2\nattempt 3\na=b none k\n", f"{BEGINS.format(3)}\n".encode())
    states = [
        (state["attempt"], state["state"]) for state in sorted(operator.states, key=lambda state: state["number"])
    ]
    assert states[-1] == (3, "Running") or states[-1] == (3, "Down")  # it may have ended before it was sent
    # A state is repeated until there is an order.
    assert [state for state in dict.fromkeys(states) if state[1] != "Running"] == [(2, "Ended"), (3, "Down")]


def test_a_program_restarts_alone_in_the_same_attempt(start, operator):
    process = start("sh", "-c", 'echo "attempt $ALLRANKS_ATTEMPT"; read line; exit 7')
    for restart in (1, 2):
        state = operator.wait(state="Ended", restart=restart - 1)
        assert (state["attempt"], state["last"]["attempt"], state["last"]["code"]) == (2, 2, 7)
        operator.say({"order": "Start", "attempt": 2, "env": {}, "restart": restart})  # too early: it is not down
        operator.say({"order": "Stop", "attempt": 2, "grace": 60, "restart": restart})
        operator.wait(state="Down", restart=restart)
        operator.say({"order": "Start", "attempt": 2, "env": {}, "restart": restart})
    operator.wait(state="Ended", restart=2)
    operator.say({"order": "Stop", "attempt": 3, "grace": 60})
    down = operator.wait(state="Down", attempt=3)
    assert down["restart"] == 0
    operator.say({"order": "Exit"})
    code, out, err = ended(process)
    assert (code, out) == (7, b"attempt 2\n" * 3)
    lines = [f"allranks: restart {number} in attempt 2 begins in this pod" for number in (1, 2)]
    assert err.decode().splitlines() == lines


def test_an_order_for_a_restart_that_is_over_changes_nothing(start, operator):
    process = start("sh", "-c", 'echo begun; [ "$RESTARTED" ] && exec sleep 600; exit 7')
    operator.wait(state="Ended")
    operator.say({"order": "Stop", "attempt": 2, "grace": 60, "restart": 1})
    operator.wait(state="Down", restart=1)
    operator.say({"order": "Start", "attempt": 2, "env": {"RESTARTED": "1"}, "restart": 1})
    operator.wait(state="Running", restart=1)
    operator.answer = lambda state: (200, {"order": "Stop", "attempt": 2, "grace": 0, "restart": 1})
    operator.restart()
    operator.wait_for_polls(2)  # it has received the order with the first one
    assert operator.wait(state="Running", restart=1)["last"]["code"] == 7
    operator.answer = lambda state: None
    process.terminate()
    assert ended(process)[1] == b"begun\nbegun\n"


def test_a_running_program_is_stopped_and_its_exit_is_that_of_the_attempt_before(start, operator):
    program = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"saved\\n"), sys.exit(0)))
print("attempt", os.environ["ALLRANKS_ATTEMPT"], flush=True)
if os.environ["ALLRANKS_ATTEMPT"] == "2":
    time.sleep(600)
"""
    process = start(*python(program))
    assert process.stdout.readline() == b"attempt 2\n"
    operator.wait(state="Running")
    operator.say(STOP)
    down = operator.wait(state="Down")
    assert (down["last"]["code"], down["last"]["signal"], down["last"]["message"]) == (0, None, "attempt 2\nsaved")
    operator.say(START)
    assert ended(process)[:2] == (0, b"saved\nattempt 3\n")


def test_exit_code_0_ends_the_pod_also_if_processes_are_left(start):
    process = start("sh", "-c", "sleep 900 & echo left $!")
    assert process.wait(300) == 0
    os.kill(int(process.stdout.read1(100).split()[1]), signal.SIGKILL)


def test_a_signal_of_the_program_is_reported_as_the_kernel_reported_it(start, operator):
    process = start("sh", "-c", "echo 'last words'; kill -KILL $$")
    last = operator.wait(state="Ended")["last"]
    line = "allranks: the program was ended by signal 9 (SIGKILL)"
    assert (last["code"], last["signal"], last["message"]) == (137, 9, f"last words\n{line}")
    operator.say({"order": "Exit"})
    assert ended(process) == (137, b"last words\n", f"{line}\n".encode())


def test_a_program_without_output_has_no_last_words(start, operator):
    start("sh", "-c", "exit 3")
    assert operator.wait(state="Ended")["last"]["message"] == ""


def test_the_message_has_the_last_lines_and_fits_whatever_the_output(start, operator):
    start(
        *python(r"""
import os
os.write(1, b"x" * 50_000 + b"\n" + "\u00e9\u4e16\U0001f600".encode() * 90)
os.write(1, b"\x00\x01\xff" * 300 + b"\nthe end\n")
os._exit(4)
""")
    )
    message = operator.wait(state="Ended")["last"]["message"]
    assert message.endswith("\nthe end")
    assert 500 < len(message) <= 2048


def test_a_restarted_program_that_fails_again_tells_its_own_exit(start, operator):
    process = start("sh", "-c", "exit $((10 + ALLRANKS_ATTEMPT))")
    for attempt in (2, 3, 4):
        last = operator.wait(state="Ended", attempt=attempt)["last"]
        assert (last["attempt"], last["code"]) == (attempt, 10 + attempt)
        operator.say({**STOP, "attempt": attempt + 1})
        operator.wait(state="Down", attempt=attempt + 1)
        operator.say({**START, "attempt": attempt + 1, "env": {"ALLRANKS_ATTEMPT": str(attempt + 1)}})
    operator.wait(state="Ended", attempt=5)
    operator.say({"order": "Exit"})
    assert process.wait(300) == 15


def test_many_restarts_leave_no_descriptors_threads_or_processes(start, operator):
    process = start("sh", "-c", "sleep 900 & exit 1")
    operator.wait(state="Ended", attempt=2)
    counts = []
    for attempt in range(3, 13):
        operator.say({**STOP, "attempt": attempt})
        operator.wait(state="Down", attempt=attempt)
        operator.say({**START, "attempt": attempt, "env": {}})
        operator.wait(state="Ended", attempt=attempt)
        counts.append(len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
    assert max(counts[5:]) <= counts[0] + 4  # a connection that is just being closed
    operator.say({**STOP, "attempt": 13})
    operator.wait(state="Down", attempt=13)
    assert process_tree.below(process.pid, parents()) == set()


# --- what programs do ------------------------------------------------------------------------------------------------

TREES = {
    "a child": "sleep 900 & echo $!; exit 5",
    "a child that ignores SIGTERM": "(trap '' TERM; sleep 900; sleep 900) & echo $!; exit 5",
    "a child in a session of its own": "setsid sleep 900 & sleep 0.1; echo $!; exit 5",
    "a daemon": "(setsid sh -c 'sleep 900 & echo $!; exit') ; exit 5",
    "a child that ignores every signal": "(trap '' TERM HUP INT USR1; while :; do sleep 1; done) & echo $!; exit 5",
    "a stopped child": "sleep 900 & kill -STOP $!; echo $!; exit 5",
}


@pytest.mark.parametrize("tree", TREES)
def test_nothing_of_an_attempt_is_left_when_the_pod_is_down(start, operator, tree):
    process = start("sh", "-c", TREES[tree])
    left = int(process.stdout.readline())
    operator.wait(state="Ended")
    operator.say(STOP)
    operator.wait(state="Down")
    assert not is_alive(left)
    assert process_tree.below(process.pid, parents()) == set()


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(start, operator):
    process = start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    assert process.stdout.readline() == b"ready\n"
    began = time.monotonic()
    operator.say({**STOP, "grace": 1})
    last = operator.wait(state="Down")["last"]
    assert (last["code"], last["signal"]) == (137, 9)
    assert time.monotonic() - began >= 1.0


def test_an_order_to_stop_is_not_repeated_in_a_loop_while_it_is_carried_out(start, operator, helpers):
    program = "trap 'sleep 3; exit 1' TERM; echo ready; while :; do sleep 0.1; done"
    process = start("sh", "-c", program, folder=helpers)
    assert process.stdout.readline() == b"ready\n"
    operator.say(STOP)
    operator.wait(state="Down")
    assert len([state for state in operator.states if state["state"] == "Running"]) <= 4


def test_a_port_is_free_for_the_next_attempt(start, operator):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = f"""
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", {port}))
if os.environ["ALLRANKS_ATTEMPT"] == "2":
    if os.fork() == 0:
        os.setsid()
        time.sleep(900)  # has the port as well
    os._exit(1)
"""
    process = start(*python(program))
    operator.wait(state="Ended")
    operator.say(STOP)
    operator.wait(state="Down")
    operator.say(START)
    assert ended(process)[:2] == (0, b"")


def test_the_program_sees_nothing_of_its_parent(start, operator):
    program = r"""
import os, signal, sys
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
print(sorted(os.listdir("/proc/self/fd"))[:4], status["SigBlk"], status["SigIgn"])
print(os.getpgid(0) == os.getpgid(os.getppid()), os.getsid(0) == os.getsid(os.getppid()))
print([name for name in os.environ if "IN_PLACE" in name or "STACKS_SIGNAL" in name])
print(os.environ["PYTHONPATH"].count("startup"), os.isatty(0), os.isatty(1))
"""
    process = start(*python(program))
    _, out, _ = ended(process)
    lines = out.decode().splitlines()
    # Python itself ignores SIGPIPE (13) and SIGXFSZ (25).
    assert lines[0] == f"['0', '1', '2', '3'] {0:016x} {(1 << 12) | (1 << 24):016x}"
    assert lines[1:] == ["True True", "[]", "1 False False"]


def test_a_shell_inherits_no_ignored_signal(start):
    _, out, _ = ended(start("grep", "-E", "SigIgn|SigBlk", "/proc/self/status"))
    assert re.findall(rb"\t(\d+)\n", out) == [b"0" * 16, b"0" * 16]


def test_both_streams_in_one_pipe_keep_their_order_over_a_restart(helpers, operator):
    program = "import os, sys\nfor n in range(2000): os.write(1 + n % 2, b'%d\\n' % n)\n"
    program += "sys.exit(os.environ['ALLRANKS_ATTEMPT'] == '2')"
    env = {**os.environ, **operator.environment, "ALLRANKS_IN_PLACE": "1", "ALLRANKS_ATTEMPT": "2"}
    command = [sys.executable, str(helpers / "watch.py"), "--", *python(program)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        reader = threading.Thread(target=lambda: lines.extend(process.stdout.read().split()))
        lines: list[bytes] = []
        reader.start()
        operator.wait(state="Ended")
        operator.say(STOP)
        operator.wait(state="Down")
        operator.say(START)
        reader.join(300)
    numbers = [b"%d" % number for number in range(2000)]
    assert lines == [*numbers, *BEGINS.format(3).encode().split(), *numbers]


def test_a_program_is_on_the_terminal_of_its_pod(helpers, operator):
    import pty

    ours, theirs = pty.openpty()
    env = {**os.environ, **operator.environment, "ALLRANKS_IN_PLACE": "1"}
    command = [sys.executable, str(helpers / "watch.py"), "--", *python("import os; print(*map(os.isatty, range(3)))")]
    subprocess.run(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs, timeout=300, check=True)
    os.close(theirs)
    assert os.read(ours, 100).split() == [b"True"] * 3
    os.close(ours)


def test_reports_from_the_output_are_those_of_the_attempt_that_runs(helpers, tmp_path, start, operator):
    sent: list[dict[str, Any]] = []
    take = operator.server.RequestHandlerClass.do_POST

    def recorded(handler: Any) -> None:
        if handler.path == "/v1/report":
            size = int(handler.headers["Content-Length"])
            sent.append(json.loads(handler.rfile.peek(size)[:size]))
        take(handler)

    operator.server.RequestHandlerClass.do_POST = recorded
    program = "echo step $((ALLRANKS_ATTEMPT * 10)); [ $ALLRANKS_ATTEMPT = 3 ] || exit 1"
    process = start("sh", "-c", program, ALLRANKS_LOG_PATTERN=r"step (?P<step>\d+)")
    operator.wait(state="Ended")
    operator.say(STOP)
    operator.wait(state="Down")
    operator.say(START)
    assert ended(process)[0] == 0
    steps = [(message["attempt"], message["step"]) for message in sent if message["step"] is not None]
    assert set(steps) == {(2, 20), (3, 30)}


# --- the first start waits for the other pods ------------------------------------------------------------------------

FIRST = {"order": "Start", "attempt": 2, "env": {}}


@pytest.fixture
def together(start: Start) -> Start:
    """Starts `watch.py` in a pod that waits for the others."""
    return lambda *program, **env: start(*program, **{"ALLRANKS_START_TOGETHER": "1", **env})


def test_the_first_program_waits_for_the_order_to_start(together, operator):
    process = together("sh", "-c", "echo begins; env | grep TOGETHER; exit 0")
    assert operator.wait(state="Down")["last"] is None
    operator.say(FIRST)
    code, out, err = ended(process)
    assert (code, out) == (0, b"begins\n")
    assert b"begins in this pod" not in err
    assert operator.states[0]["state"] == "Down"


def test_a_program_that_waited_restarts_in_its_pod_as_others_do(together, operator):
    process = together("sh", "-c", "exit $((ALLRANKS_ATTEMPT == 2 ? 5 : 0))")
    operator.wait(state="Down")
    operator.say(FIRST)
    assert operator.wait(state="Ended")["last"]["code"] == 5
    operator.say(STOP)
    operator.wait(state="Down", attempt=3)
    operator.say(START)
    assert ended(process)[0] == 0


def test_without_restarts_in_the_pod_a_program_that_waited_ends_its_pod(together, operator):
    process = together("sh", "-c", "exit 5", ALLRANKS_IN_PLACE=None)
    operator.wait(state="Down")
    operator.say(FIRST)
    assert ended(process)[0] == 5


@pytest.mark.parametrize(
    "answer",
    [None, (503, {"error": "no room"}), (400, {"error": "unknown"}), (404, {"error": "reports go to /v1/report"})],
    ids=str,
)
def test_a_job_starts_without_an_operator(together, operator, impatient, answer):
    if answer:
        operator.answer = lambda state: answer
    else:
        operator.stop()
    process = together("echo", "begins", folder=impatient)
    code, out, err = ended(process)
    assert (code, out) == (0, b"begins\n")
    assert b"no answer of the operator for 3 s: not waiting for the other pods" in err


def test_a_pod_waits_as_long_as_the_operator_answers(together, operator, impatient):
    operator.hold = 0.5
    process = together("echo", "begins", folder=impatient)
    operator.wait_for_polls(10)  # five seconds
    assert {state["state"] for state in operator.states} == {"Down"}
    operator.say(FIRST)
    assert ended(process)[:2] == (0, b"begins\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_pod_that_waits(together, operator, number):
    process = together("echo", "begins")
    operator.wait(state="Down")
    process.send_signal(number)
    assert ended(process)[:2] == (143, b"")


def test_a_pod_that_waits_ends_when_its_job_is_over(together, operator):
    process = together("echo", "begins")
    operator.wait(state="Down")
    operator.say({"order": "Exit"})
    assert ended(process)[:2] == (143, b"")


def test_a_pod_that_waits_begins_with_a_later_attempt(together, operator):
    process = together("sh", "-c", "echo attempt $ALLRANKS_ATTEMPT")
    operator.wait(state="Down", attempt=2)
    operator.say(STOP)
    operator.wait(state="Down", attempt=3)
    operator.say(START)
    assert ended(process)[:2] == (0, b"attempt 3\n")


def test_a_pod_that_was_to_begin_with_a_later_attempt_does_not_start_without_an_operator(together, operator, impatient):
    process = together("echo", "begins", folder=impatient)
    operator.wait(state="Down", attempt=2)
    operator.say(STOP)
    operator.wait(state="Down", attempt=3)
    operator.stop()
    assert ended(process)[:2] == (143, b"")


# --- signals of the kubelet ------------------------------------------------------------------------------------------


def test_sigterm_ends_the_pod_with_the_program(start, operator):
    process = start("sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done")
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(300) == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_after_the_program_has_ended_ends_the_pod_with_its_code(start, operator, number):
    process = start("sh", "-c", "exit 6")
    operator.wait(state="Ended")
    process.send_signal(number)
    assert process.wait(300) == 6


def test_sigterm_in_a_pod_that_is_down_ends_it_with_the_code_of_the_last_program(start, operator):
    process = start("sh", "-c", "exit 6")
    operator.wait(state="Ended")
    operator.say(STOP)
    operator.wait(state="Down")
    process.terminate()
    assert process.wait(300) == 6


def test_sigterm_while_the_program_is_being_stopped_ends_the_pod_and_it_has_not_succeeded_if_the_order_came_first(
    start, operator
):
    process = start("sh", "-c", "trap 'sleep 1; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    assert process.stdout.readline() == b"ready\n"
    operator.say(STOP)
    deadline = time.monotonic() + 60
    while not operator.answers and time.monotonic() < deadline:
        time.sleep(0.01)
    process.terminate()
    process.wait(300)
    assert [state for state in operator.states if state["state"] == "Down"] == []


def test_sigterm_while_the_next_attempt_runs_reaches_its_program(start, operator):
    program = "[ $ALLRANKS_ATTEMPT = 3 ] || exit 1; trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    process = start("sh", "-c", program)
    operator.wait(state="Ended")
    operator.say(STOP)
    operator.wait(state="Down")
    operator.say(START)
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(300) == 9


# --- answers ---------------------------------------------------------------------------------------------------------

IGNORED = [
    {"order": "Stop", "attempt": 2, "grace": 0},
    {"order": "Stop", "attempt": 1, "grace": 0},
    {"order": "Start", "attempt": 2, "env": {}},
    {"order": "Start", "attempt": 3, "env": {}},
    {"order": "Exit"},
    {"order": "Reboot", "attempt": 9},
    {"order": "Stop"},
    {"order": "Stop", "attempt": "3"},
    {"order": "Stop", "attempt": 3.0},
    {"order": "Stop", "attempt": -1},
    {"order": "Stop", "attempt": 2**40},
    {"order": "Stop", "attempt": 3, "grace": "0"},
    {"order": "Stop", "attempt": 3, "grace": -1},
    {"order": "Start", "attempt": 3, "env": {"A": 1}},
    {"order": "Start", "attempt": 3, "env": {"A=B": "1"}},
    {"order": "Start", "attempt": 3, "env": {"A": "\0"}},
    {"order": "Start", "attempt": 3, "env": {"A": "\ud800"}},
    [],
    b"not JSON",
    b"{}" * 10,
    b'{"order": "Stop", "attempt": 3, "grace": NaN}',
]


def test_old_forged_and_invalid_orders_change_nothing_while_the_program_runs(start, operator):
    operator.answer = scripted(operator, IGNORED)
    process = start("sh", "-c", "echo ready; exec sleep 900")
    assert process.stdout.readline() == b"ready\n"
    operator.wait_for_polls(len(IGNORED) + 1)
    assert {state["state"] for state in operator.states} == {"Running"}
    process.terminate()
    assert process.wait(300) == 143


def scripted(operator: FakeOperator, bodies: list[Any]) -> Callable[[dict[str, Any]], tuple[int, Any] | None]:
    """Answers these bodies one after the other, then waits."""
    left = list(bodies)
    return lambda state: (200, left.pop(0)) if left else None


def test_orders_of_another_attempt_change_nothing_after_the_end(start, operator):
    process = start("sh", "-c", "exit 5")
    operator.wait(state="Ended")
    polls = len(operator.states)
    operator.answer = scripted(operator, [{"order": "Start", "attempt": attempt, "env": {}} for attempt in (1, 2, 3)])
    operator.say({"order": "Start", "attempt": 2, "env": {}})
    operator.stop()
    operator._listen(operator.port)
    operator.wait_for_polls(polls + 3)
    assert {state["state"] for state in operator.states[1:]} == {"Ended"}
    operator.say({"order": "Exit"})
    assert process.wait(300) == 5


def test_a_start_is_obeyed_only_for_the_attempt_for_which_the_pod_is_down(start, operator):
    process = start("sh", "-c", RUN_ONCE)
    operator.wait(state="Ended")
    operator.say(STOP)
    operator.wait(state="Down")
    polls = len(operator.states)
    operator.answer = scripted(operator, [{"order": "Start", "attempt": attempt, "env": {}} for attempt in (2, 4)])
    operator.say({**STOP, "attempt": 5})
    down = operator.wait(state="Down", attempt=5)
    assert len(operator.states) > polls
    assert down["last"]["attempt"] == 2
    process.terminate()
    assert process.wait(300) == 7


def test_an_operator_that_was_restarted_knows_the_whole_state_at_once(start, operator):
    process = start("sh", "-c", RUN_ONCE)
    operator.wait(state="Ended")
    operator.restart()
    began = time.monotonic()
    state = operator.wait(state="Ended")
    assert time.monotonic() - began < 8
    assert (state["last"]["code"], state["last"]["message"]) == (7, "attempt 2")
    operator.say(STOP)
    operator.wait(state="Down")
    operator.restart()
    assert operator.wait(state="Down")["attempt"] == 3
    operator.say(START)
    assert ended(process)[0] == 0


def test_a_connection_that_is_cut_in_the_middle_of_an_answer_is_made_again(start, operator):
    cut = [b'{"order": "St', b""]
    operator.answer = lambda state: (200, cut.pop()) if cut else None
    process = start("sh", "-c", RUN_ONCE)
    operator.say(STOP)
    operator.wait(state="Down")
    operator.say(START)
    assert ended(process)[0] == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 429, 500, 503])
def test_a_program_that_fails_while_the_operator_rejects_its_supervisor_ends_the_pod(
    start, operator, impatient, status
):
    operator.answer = lambda state: (status, {"error": "no"})
    process = start("sh", "-c", "echo last; exit 5", folder=impatient)
    assert ended(process) == (5, b"last\n", b"")


def test_a_pod_that_waits_asks_an_operator_that_rejects_it_about_once_a_second(together, operator):
    times: list[float] = []

    def reject(state: dict[str, Any]) -> tuple[int, Any]:
        times.append(time.monotonic())
        return 503, {"error": "no"}

    operator.answer = reject
    process = together("echo", "begins")
    operator.wait_for_polls(10)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(pauses[-3:]) < 2  # while a program runs, each would take 2.5 s or longer
    operator.answer = lambda state: None
    operator.say(FIRST)
    assert ended(process)[:2] == (0, b"begins\n")


def test_a_pod_ends_with_its_program_if_the_operator_is_gone(start, operator, impatient):
    process = start("sh", "-c", "echo ready; sleep 2; exit 5", folder=impatient)
    assert process.stdout.readline() == b"ready\n"
    operator.stop()
    assert process.wait(300) == 5
    operator._listen(0)


def test_a_pod_that_is_down_ends_if_the_operator_is_gone_and_has_not_succeeded(start, operator, impatient):
    process = start("sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done", folder=impatient)
    assert process.stdout.readline() == b"ready\n"
    operator.say(STOP)
    operator.wait(state="Down")
    operator.stop()
    assert process.wait(300) == 143
    operator._listen(0)


def test_a_pod_waits_while_the_operator_answers(start, operator, impatient):
    operator.hold = 0.3
    process = start("sh", "-c", "exit 5", folder=impatient)
    operator.wait_for_polls(15)  # more than four seconds
    assert process.poll() is None
    operator.say({"order": "Exit"})
    assert process.wait(300) == 5


def test_an_operator_that_does_not_close_its_connection_is_gone_as_well(start, impatient, operator, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nothing answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/report"
        process = start("sh", "-c", "exit 5", folder=impatient, ALLRANKS_REPORT_URL=url)
        assert process.wait(300) == 5


# --- without it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["ALLRANKS_REPORT_URL", "ALLRANKS_REPORT_TOKEN_FILE", "ALLRANKS_IN_PLACE"])
def test_without_an_operator_the_program_takes_the_place_of_the_supervisor(start, missing):
    process = start("sh", "-c", "echo $$; exit 5", **{missing: None})
    assert ended(process) == (5, b"%d\n" % process.pid, b"")


@pytest.mark.parametrize(("program", "status"), [("/none/such", 127), ("/", 126)])
def test_a_program_that_cannot_be_started_ends_the_pod(start, program, status):
    code, _, err = ended(start(program))
    assert code == status
    assert err.startswith(f"allranks: cannot start {program}: ".encode())


# --- PID 1 -----------------------------------------------------------------------------------------------------------


def can_unshare() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--ipc", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs the right to create PID namespaces")
def test_as_process_1_it_ends_daemons_and_clears_the_shared_memory_of_its_pod(start, operator):
    program = """
import multiprocessing.shared_memory as shared, os, sys
name = "/dev/shm/torch_" + str(os.getpid()) + "_test_" + os.environ["TEST"]
if os.environ["ALLRANKS_ATTEMPT"] == "2":
    open(name, "wb").write(b"x" * 1000)
    print(name, os.getppid(), flush=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import time; time.sleep(900)
        os._exit(0)
    os._exit(1)
print(os.listdir("/proc").count("3"), flush=True)
"""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--ipc", "--kill-child")
    process = start(*python(program), before=unshare, TEST=str(os.getpid()))
    name, parent = process.stdout.readline().split()
    assert parent == b"1"
    operator.wait(state="Ended")
    operator.say(STOP)
    operator.wait(state="Down")
    assert not Path(name.decode()).exists()
    operator.say(START)
    assert ended(process)[0] == 0


# --- parts -----------------------------------------------------------------------------------------------------------


def test_only_files_of_libraries_of_this_user_and_this_attempt_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(process_tree, "_OF_THE_HOST", "")
    began = time.time()
    ours = ["torch_12_345_0", "nccl-AbCdEf", "psm_0a1b2c3d", "psm2_shm.1", "sem.mp-abc", "sem.loky-1", "pym-12-x"]
    others = ["torch", "nccl", "data.bin", "my-psm_1", "sem.other", "plasma", "torch_x"]
    for name in (*ours, *others, "nccl-older"):
        (tmp_path / name).write_text("x")
    os.utime(tmp_path / "nccl-older", (began - 100, began - 100))
    (tmp_path / "nccl-folder").mkdir()
    (tmp_path / "nccl-link").symlink_to(tmp_path / "data.bin")
    assert sorted(process_tree.clear_shared_memory(began - 1, tmp_path)) == sorted(ours)
    assert {path.name for path in tmp_path.iterdir()} == {*others, "nccl-older", "nccl-folder", "nccl-link"}


def test_nothing_is_removed_in_the_ipc_namespace_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(process_tree, "_OF_THE_HOST", str(Path("/proc/self/ns/ipc").readlink()))
    (tmp_path / "nccl-AbCdEf").write_text("x")
    assert process_tree.clear_shared_memory(0.0, tmp_path) == []


def test_a_process_below_a_process_that_ended_is_found():
    assert process_tree.below(1, {2: 1, 3: 2, 4: 3, 5: 9, 9: 0}) == {2, 3, 4}


@pytest.mark.parametrize("text", ["\x1b" * 2048, "\u00e9" * 2048, '"' * 2048, "\U0001f600" * 2048, "plain"])
def test_a_message_of_any_text_fits(text):
    last = order_channel.LastExit(1, 137, 9, time.monotonic(), text)
    assert len(json.dumps(order_channel.State(1, "Ended", time.monotonic(), last).message())) <= 8192
