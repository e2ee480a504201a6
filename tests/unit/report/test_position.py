"""Where the main thread of a program is, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from allranks.report.position import in_the_kernel
from support.builders import table

ROOT = Path(__file__).resolve().parents[3] / "operator"
ASK = """
import json, sys, threading, time
sys.path.insert(0, {root!r})
from allranks.report.position import position

def ask():
    time.sleep(0.3)
    open("answer", "w").write(json.dumps(position()))
    import os
    os._exit(0)

threading.Thread(target=ask).start()
"""
WAITING = """
import queue

def drain(numbers):
    numbers.get()

def main():
    drain(queue.Queue())

main()
"""
RAISING = """
import queue
try:
    raise ValueError('sample 4711 is broken')
finally:
    queue.Queue().get()
"""
ENDED = "raise ValueError('sample 4711 is broken')\n"
NATIVE = """
import threading

def hold(lock):
    lock.acquire()
    return lock.acquire(), 1

hold(threading.Lock())
"""
DEBUGGER = """
import pdb, sys, os
sys.stdin = os.fdopen(os.pipe()[0])

def step():
    pdb.Pdb(nosigint=True).set_trace()
    return 1

step()
"""
INPUT = """
import os
os.dup2(os.pipe()[0], 0)
input()
"""
READING = """
import os
os.mkfifo("batches")
os.read(os.open("batches", os.O_RDWR), 1)
"""
LOADING = """
import time
from allranks.report import loading

def batches():
    time.sleep(60)
    yield 1

for batch in loading(batches()):
    pass
"""
BROKEN = "ValueError: sample 4711 is broken"


def answer_of(program, folder):
    """Run a program; return where its main thread is after some time."""
    (folder / "train.py").write_text(ASK.format(root=str(ROOT)) + program)
    subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, timeout=60, check=False)
    return json.loads((folder / "answer").read_text())


@table(
    (
        "a call into a library",
        WAITING,
        {
            "where": "numbers.get()",
            "function": "drain",
            "call": "queue.get",
            "callers": ["threading.wait", "queue.get", "main", "<module>"],
        },
    ),
    (
        "a finally",
        RAISING,
        {
            "where": "queue.Queue().get()",
            "call": "queue.get",
            "raising": BROKEN,
            "callers": ["threading.wait", "queue.get"],
        },
    ),
    ("a main thread that has ended", ENDED, {"call": "ended", "raising": BROKEN}),
    (
        "a native function",
        NATIVE,
        {"where": "return lock.acquire(), 1", "function": "hold", "call": "acquire", "callers": ["<module>"]},
    ),
    ("a debugger", DEBUGGER, {"where": "return 1", "function": "step", "activity": "debugger"}),
    ("input from a terminal", INPUT, {"where": "input()", "call": "input", "activity": "input"}),
    ("a file", READING, {"where": "os.read", "call": "read", "activity": "read", "file": "batches"}),
    ("a batch", LOADING, {"where": "time.sleep(60)", "function": "batches", "call": "sleep", "activity": "data"}),
)
def test_position(case, tmp_path):
    program, expected = case
    answer = answer_of(program, tmp_path)
    callers = [caller.split()[0] for caller in answer.pop("callers", [])]
    line = int(answer.pop("where", ":0").split(":")[1])
    code = (tmp_path / "train.py").read_text().splitlines()[line - 1] if line else ""
    assert expected.get("where", "") in code
    assert answer.pop("file", "").endswith(expected.get("file", ""))
    assert callers == expected.get("callers", callers)
    fields = ("where", "file", "callers", *(() if "call" in expected else ("call",)))
    assert {name: value for name, value in answer.items() if name not in fields} == {
        name: value for name, value in expected.items() if name not in fields
    }


@table(
    ("waits for a disk", "7 (python 3) D 1 2", "1 0x0 0x7f 0x10", {"stuck": True}),
    ("runs", "7 (python) R 1 2", "running", {}),
    ("a kernel that does not tell", None, None, {}),
)
def test_what_a_thread_waits_for_in_the_kernel(case, tmp_path):
    stat, syscall, expected = case
    if stat is not None:
        (tmp_path / "stat").write_text(stat)
        (tmp_path / "syscall").write_text(syscall)
    waits = in_the_kernel(tmp_path)
    assert {name: waits[name] for name in expected} == expected
    assert expected or not waits


COLLECTIVE = """
import functools
from types import ModuleType

def library(path, code):
    module = ModuleType("library")
    exec(compile(code, path, "exec"), module.__dict__)
    return module

c10d = library("/x/site-packages/torch/distributed/distributed_c10d.py", "import threading\\n"
    "def all_reduce(x): wait(x)\\ndef wait(x): threading.Event().wait()\\n")
logger = library("/x/site-packages/torch/distributed/c10d_logger.py", "def wrapper(call): call(0)\\n")
trainer = library("/x/site-packages/trainer/loop.py", "def fit(call): evaluate(call)\\ndef evaluate(call): call()\\n")

def main():
    trainer.fit(functools.partial(logger.wrapper, c10d.all_reduce))

main()
"""


def test_a_collective_is_named_with_the_functions_of_a_trainer_that_call_it(tmp_path):
    answer = answer_of(COLLECTIVE, tmp_path)
    assert (answer["call"], answer["collective"], answer["function"]) == ("all_reduce", True, "main")
    assert [caller.split()[0] for caller in answer["callers"]] == ["evaluate", "fit", "<module>"]
