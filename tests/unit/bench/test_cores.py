"""Benchmarks can reserve cores for the API server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench import cores

ALL = os.sched_getaffinity(0)
THREADS = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("started", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(len(ALL) < 2, reason="one core cannot be shared out")
def test_threads_of_the_server_move_to_its_cores_and_all_others_leave_them():
    with cores.apart():
        ours = os.sched_getaffinity(0)
        with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE) as server:
            assert server.stdout
            assert server.stdout.readline() == b"started\n"
            assert os.sched_getaffinity(server.pid) == ours
            cores.give_to_server([server.pid])
            threads = [int(task.name) for task in Path(f"/proc/{server.pid}/task").iterdir()]
            assert len(threads) == 4
            assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset(ALL - ours)}
            server.kill()
    assert os.sched_getaffinity(0) == ALL


def test_by_default_no_thread_is_moved():
    cores.give_to_server([os.getpid()])
    assert os.sched_getaffinity(0) == ALL
