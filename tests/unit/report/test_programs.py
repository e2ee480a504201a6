"""The library inside real processes: what it imports, how it ends, forks, hangs."""

from __future__ import annotations

import re
import sys

import pytest

from allranks.report import stacks
from support.fake_report_server import ok, program

PATIENT = "from allranks.report import client; client.Client.finish.__defaults__ = (300.0,)\n"
"""The end of the program waits for its last message, longer than the usual second."""


def test_outside_a_job_it_imports_almost_nothing():
    done = program(None, "import sys; before = set(sys.modules)\n"
                   "from allranks.report import report, waiting, finish\n"
                   "report(step=1, loss=0.5, checkpoint=True)\nwith waiting(): pass\nfinish()\n"
                   "print(*sorted(set(sys.modules) - before))")  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours = {"allranks", "allranks.version", "allranks.report", "__future__", "typing"}
    outside = {name for name in done.stdout.split() if name.split(".")[0] not in ("typing", "collections", "re")}
    assert {name for name in outside if "." not in name or name.startswith("allranks")} - ours <= {
        "abc", "contextlib", "copyreg", "enum", "functools", "keyword", "operator", "reprlib", "sre_compile",
        "types", "warnings", "_collections", "_functools", "_operator", "_sre", "_typing", "itertools",
    }  # fmt: skip


def test_in_a_job_it_imports_the_standard_library_only():
    done = program(None, "from allranks.report import client, meter\nimport sys\nprint(*sys.modules)")
    names = {name.split(".")[0] for name in done.stdout.split()}
    assert names - set(sys.stdlib_module_names) - {"allranks", "__main__", "sitecustomize"} == {
        name for name in names if name.startswith(("_distutils", "__editable__", "_virtualenv"))
    }
    assert "asyncio" not in names


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise ValueError"])
def test_the_last_report_is_sent_however_the_program_ends(hub, ending):
    text = f"from allranks.report import report\nreport(step=1)\nreport(step=41, loss=0.1)\n{ending}"
    done = program(hub, PATIENT + text, RANK="3")
    assert done.returncode == {"": 0, "raise SystemExit(3)": 3, "raise ValueError": 1}[ending]
    assert [hub.messages[-1][key] for key in ("rank", "step", "done")] == [3, 41, True]


def test_a_program_that_skips_pythons_exit_calls_finish_itself(hub):
    done = program(
        hub, "import os\nfrom allranks.report import report, finish\nreport(step=41)\nfinish(300)\nos._exit(0)"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [hub.messages[-1][key] for key in ("step", "done")] == [41, True]


def test_a_program_without_a_helper_says_when_it_waits_for_others(hub):
    done = program(hub, PATIENT + """
from allranks.report import report, waiting
with waiting(): pass
report(step=1)
import allranks.report as library
with waiting():
    library.finish(300)
""")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert [hub.messages[-1][key] for key in ("step", "waiting", "busySeconds")] == [1, True, None]


def test_forked_processes_are_ranks_of_their_own(hub):
    done = program(hub, PATIENT + """
import os
from allranks.report import report
os.environ["RANK"] = "0"
report(step=10)
pid = os.fork()
if pid == 0:
    os.environ["RANK"] = "1"
    report(step=20)
else:
    os.waitpid(pid, 0)
""")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    ended = {(each["rank"], each["step"]) for each in hub.messages if each["done"]}
    assert ended == {(0, 10), (1, 20)}


def test_a_forked_process_that_reports_nothing_sends_nothing_and_ends_at_once(hub):
    done = program(hub, PATIENT + """
import os, sys, time
from allranks.report import report
report(step=10)
if pid := os.fork():
    began = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert time.monotonic() - began < 250  # it would wait for 300 s
else:
    sys.exit(0)
""")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(each["done"] for each in hub.messages) == 1


def test_a_report_in_a_signal_handler_during_a_report(hub):
    done = program(hub, """
import signal
from allranks.report import report
count = 0
def handler(*_):
    global count
    count += 1
    report(step=count, checkpoint=True, loss=0.5)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
step = 0
while count < 300:
    step += 1
    report(step=step, samples=1, loss=0.5, checkpoint=True)
signal.setitimer(signal.ITIMER_REAL, 0)
""")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("url", ["nothing", "ftp://127.0.0.1/", "http://127.0.0.1:port/", "http://"])
def test_an_invalid_address_is_a_warning_and_not_an_error(hub, url):
    text = "from allranks.report import report\nfor step in range(3): report(step=step)\nprint('trained')"
    done = program(hub, text, ALLRANKS_REPORT_URL=url)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("allranks: report() failed: ValueError: ")


def test_a_hung_main_thread_dumps_its_stack(hub, tmp_path):
    errors, hangs = tmp_path / "stderr", tmp_path / "hangs"
    errors.touch()
    hub.answers = [lambda message: ok(0.05, "hang-1" if hangs.exists() else "")(message)]
    done = program(hub, f"""
import os, threading, time
from allranks.report import report
os.dup2(os.open({str(errors)!r}, os.O_WRONLY | os.O_APPEND), 2)
def lost_collective():
    lock = threading.Lock()
    lock.acquire()
    while not os.stat(2).st_size: os.close(os.open({str(hangs)!r}, os.O_CREAT)); lock.acquire(timeout=0.2)
threading.Thread(target=time.sleep, args=(300,), name="data", daemon=True).start()
report(step=1)
lost_collective()
""", RANK="3", HOSTNAME="job-worker-1-0")  # fmt: skip
    assert done.returncode == 0
    line, stack = errors.read_text().split("\n", 1)
    assert line == (
        "allranks: rank 3 (pod job-worker-1-0): stacks, asked for because the job makes no progress (hang-1)"
    )
    assert re.search(r'File "<string>", line 8 in lost_collective\n  File "<string>", line 11 in <module>', stack)
    assert stack.startswith("Thread MainThread (most recent call first):\n")
    # The main thread first, then the program's other threads, and none of this library.
    assert re.findall(r"Thread (.*) \(most recent call first\)", stack) == ["MainThread", "data"]
    assert "allranks/report" not in stack


def test_stacks_in_a_local_run_have_the_replica_and_not_the_name_of_the_machine(monkeypatch):
    for host, shown in (("laptop", "pod worker-1"), ("job-worker-1-0", "pod job-worker-1-0")):
        monkeypatch.setenv("HOSTNAME", host)
        monkeypatch.setenv("ALLRANKS_ROLE", "worker")
        monkeypatch.setenv("ALLRANKS_INDEX", "1")
        assert stacks.pod() == shown


def test_native_code_that_holds_the_gil_dumps_its_stack(hub, tmp_path):
    errors = tmp_path / "stderr"
    errors.touch()
    done = program(hub, f"""
import ctypes, os
from allranks.report import report
os.dup2(os.open({str(errors)!r}, os.O_WRONLY | os.O_APPEND), 2)
report(step=1)
def native_code():
    # PyDLL does not release the interpreter's lock.
    ctypes.PyDLL(None).system(b"timeout 50 sh -c 'until grep -q native_code {errors}; do sleep 0.05; done'")
native_code()
""", ALLRANKS_HANG_SECONDS="1")  # fmt: skip
    text = errors.read_text()
    assert (done.returncode, text.split("\n")[0]) == (0, "Timeout (0:00:00.750000)!")
    assert 'File "<string>", line 8 in native_code' in text


@pytest.mark.nightly
def test_a_program_that_waits_does_not_trigger_the_timer(hub):
    text = "import time\nfrom allranks.report import report\nreport(step=1)\ntime.sleep(5)"
    done = program(hub, text, ALLRANKS_HANG_SECONDS="5")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("value", ["", "soon", "-1", "nan", "1e99"])
def test_without_a_number_of_seconds_there_is_no_timer(hub, value):
    done = program(hub, "from allranks.report import report\nreport(step=1)", ALLRANKS_HANG_SECONDS=value)
    assert (done.returncode, done.stderr) == (0, "")
