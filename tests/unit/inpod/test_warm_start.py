"""A program that was started in advance, before the attempt began: real processes, and a fake operator over HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_operator import FakeOperator, operator_in
from support.warm_pod import COLD, DONE, LIBRARY, Pod, quick_helpers

TRAINS = """
import os, sys, time
import library
from allranks.report import report
{early}
report(step=1)
print(os.getpid(), os.environ["ALLRANKS_ATTEMPT"], flush=True)
while os.environ["ALLRANKS_ATTEMPT"] == "2":
    time.sleep(0.05)
{late}
"""


@pytest.fixture(scope="module")
def quick(helpers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helpers that prepare soon after the first step."""
    return quick_helpers(helpers, tmp_path_factory.mktemp("quick") / "allranks")


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[FakeOperator]:
    with operator_in(tmp_path) as operator:
        yield operator


@pytest.fixture
def pod(tmp_path: Path, quick: Path, operator: FakeOperator) -> Pod:
    return Pod(tmp_path, quick, operator)


def script(pod: Pod, early: str = "", late: str = "") -> str:
    path = pod.folder / "train.py"
    path.write_text(TRAINS.format(early=early, late=late))
    return str(path)


# --- one restart -----------------------------------------------------------------------------------------------------


def test_the_next_attempt_finds_its_imports_done(pod):
    out, err = pod.run(sys.executable, script(pod))
    first, waited = pod.imports.read_text().split()[:2]
    assert out == f"{first} 2\n{waited} 3\n"
    assert first != waited
    assert DONE in err


def test_a_program_that_restarts_alone_finds_its_imports_done(pod):
    pod.next = {"attempt": 2, "restart": 1}
    early = """
if os.path.exists("begun"):
    os.environ["ALLRANKS_ATTEMPT"] = "again"
open("begun", "w").close()
"""
    out, err = pod.run(sys.executable, script(pod, early))
    first, waited = pod.imports.read_text().split()[:2]
    assert out == f"{first} 2\n{waited} again\n"
    assert first != waited
    assert DONE in err


def test_nothing_is_prepared_if_the_job_does_not_want_it(pod):
    _, err = pod.run(sys.executable, script(pod), ALLRANKS_WARM_START="Never")
    assert len(pod.imports.read_text().split()) == 2
    assert DONE not in err
    assert COLD not in err


def test_files_of_the_program_are_read_when_the_attempt_begins(pod):
    path = script(pod, late="import ours; print(ours.VALUE)")
    (pod.folder / "ours.py").write_text("import sys; VALUE = 'ours' in sys.modules and 'read now'")
    out, err = pod.run(sys.executable, path)
    assert out.splitlines()[2:] == ["read now"]
    assert DONE in err


# --- what the program sees -------------------------------------------------------------------------------------------

VIEW = r"""
import atexit, collections
import faulthandler, gc, json, locale, multiprocessing, random, resource, signal, threading, warnings
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
def target(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}").split(":")[0]
    except OSError:
        return "closed"
def files():
    # What stays open: a list has a number of its own, the reports open files for a moment and have a connection.
    lists = [collections.Counter(map(target, os.listdir("/proc/self/fd"))) for _ in range(100)]
    common = lists[0]
    for names in lists:
        common &= names
    return sorted(name for name in common.elements() if name not in ("closed", "socket"))
main = sys.modules["__main__"]
def work(number, out):
    out.put([number * 2, multiprocessing.current_process().name, sys.modules["__mp_main__" if "__mp_main__" in
             sys.modules else "__main__"].__name__, os.environ["ALLRANKS_ATTEMPT"]])
def started(method):
    if not getattr(main, "__file__", None) and method != "fork":
        return "no file"
    context = multiprocessing.get_context(method)
    out = context.SimpleQueue()
    child = context.Process(target=work, args=(21, out), name="child")
    child.start()
    result = out.get()
    child.join()
    return result, child.exitcode
def view():
    return {
        "environment": {k: v for k, v in os.environ.items() if "URL" not in k and "FOLDER" not in k and k != "WAY"},
        "arguments": [sys.argv, sys.orig_argv, open("/proc/self/cmdline").read(), sys.flags, sys.executable],
        "warning options": [sys.warnoptions, sys._xoptions, [str(f) for f in warnings.filters]],
        "path": sys.path,
        "hooks": [[repr(type(f)) for f in sys.meta_path], len(sys.path_hooks)],
        "main": [main.__name__, getattr(main, "__file__", 0), str(main.__spec__).split(" object at ")[0], main.__doc__,
                 main.__package__,
                 repr(type(main.__loader__)), sorted(main.__dict__)],
        "files": files(),
        "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno(), s.isatty(),
                     repr(type(s.buffer))] for s in (sys.stdin, sys.stdout, sys.stderr)],
        "signals": [[status["SigBlk"], status["SigIgn"], status["SigCgt"]],
                    {n: str(signal.getsignal(n)).split(" at ")[0] for n in range(1, 65) if n not in (32, 33)}],
        "faulthandler": faulthandler.is_enabled(),
        "threads": sorted(t.name for t in threading.enumerate()),
        "limits": [resource.getrlimit(n) for n in range(16)],
        "group": [os.getpgid(0) == os.getpgid(os.getppid()), os.getsid(0) == os.getsid(os.getppid()),
                  open(f"/proc/{os.getppid()}/cmdline").read().split("\0")[1:2], os.nice(0), os.umask(18),
                  open("/proc/self/oom_score_adj").read()],
        "folder": os.getcwd(),
        "python": [hash("x"), gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), sys.getrecursionlimit(),
                   sys.getswitchinterval(), locale.getlocale(), sys.dont_write_bytecode, sys.gettrace(),
                   sys.getprofile(), "library" in sys.modules, hasattr(sys, "last_value")],
        "methods": [multiprocessing.get_start_method(), *map(started, ("fork", "spawn", "forkserver"))],
    }
if __name__ == "__main__":
    print("VIEW", json.dumps(view()), flush=True)
    print("RANDOM", random.getrandbits(128), flush=True)
    atexit.register(lambda: print("at exit"))
    print("buffered", end="")
"""
WAYS = ("script", "unbuffered", "module", "text", "first line")


def view_in(pod: Pod, way: str, **env: str) -> tuple[dict[str, Any], list[str], str]:
    text = TRAINS.replace("import library", "import library\nif __name__ == '__main__': from library import os", 1)
    head, _, tail = text.partition("{early}")
    # Children of `multiprocessing` import the file again.
    body = "\n".join("    " + line for line in tail.splitlines() if line != "{late}")
    text = f"#!{sys.executable}\n'''A program.'''{head}\nif __name__ == '__main__':\n{body}\n{VIEW}"
    path = pod.folder / "train.py"
    path.write_text(text)
    path.chmod(0o755)
    command = {
        "script": [sys.executable, "train.py", "--rate", "0.1"],
        "unbuffered": [sys.executable, "-u", "-X", "dev", "-W", "ignore::UserWarning", "-O", str(path)],
        "module": [sys.executable, "-m", "train", "x"],
        "text": [sys.executable, "-c", text, "x"],
        "first line": [str(path), "y"],
    }[way]
    pod.imports.write_text("")
    out, err = pod.run(*command, **env)
    assert "Traceback" not in err, err
    observed, *rest = out.rsplit("VIEW ", 1)[1].splitlines()
    return json.loads(observed), rest, err


@pytest.mark.parametrize("way", WAYS)
def test_the_program_sees_what_it_sees_without_preparation(pod, operator, way):
    warm, rest, err = view_in(pod, way)
    assert DONE in err
    operator.states.clear()
    operator.say(None)
    cold, rest_of_cold, err = view_in(pod, way, ALLRANKS_WARM_START="Never")
    assert DONE not in err
    assert {name: (cold[name], warm.get(name)) for name in cold if cold[name] != warm.get(name)} == {}
    assert rest[1:] == rest_of_cold[1:] == ["bufferedat exit"]
    assert rest[0] != rest_of_cold[0]  # each process has random numbers of its own


# --- where nothing is prepared ---------------------------------------------------------------------------------------

REASONS = [
    ("os.environ.get('ALLRANKS_ATTEMPT')", "", "ALLRANKS_ATTEMPT changes, which the imports may read"),
    (
        "os.environ.get('HF_HOME')",
        "os.environ['HF_HOME'] = '/x'",
        "the program sets HF_HOME, which its imports may read",
    ),
    ("", "os.environ['OMP_NUM_THREADS'] = '1'", "the program sets OMP_NUM_THREADS, which its imports may read"),
    ("import socket\nkept = socket.socket()", "", "the imports open network connections"),
    ("import users", "", "an installed package imports users, a file of the program"),
    ("import other", "sys.modules.pop('other')", "the program does not import other"),
    ("import gevent", "", "gevent replaces functions of other modules"),
    ("import tensorflow", "", "tensorflow starts threads when it is imported"),
]


@pytest.mark.parametrize(("library", "early", "reason"), REASONS, ids=[row[2] for row in REASONS])
def test_an_import_that_might_have_another_result_is_not_done_in_advance(pod, library, early, reason):
    (pod.packages / "library.py").write_text(LIBRARY + library)
    for name in ("other", "gevent", "tensorflow"):
        (pod.packages / f"{name}.py").write_text("")
    (pod.folder / "users.py").write_text("")
    out, err = pod.run(sys.executable, script(pod, early))
    assert out.endswith(" 3\n")
    assert f"{COLD}{reason}\n" in err
    assert DONE not in err


def test_a_shell_that_starts_the_program_is_run_again(pod):
    out, err = pod.run("sh", "-c", f"echo begins >&2; exec {sys.executable} {script(pod)}")
    assert out.endswith(" 3\n")
    assert err.count("begins\n") == 2
    assert f"{COLD}the command starts Python by another program\n" in err
