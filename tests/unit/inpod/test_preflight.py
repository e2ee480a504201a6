"""The helper that tests a pod before its program: real processes without torch, and the evaluation of rounds.

Tests with torch and real ranks: tests/frameworks/examples/test_preflight.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from allranks.core.facts.preflight import FailedTest, failed_test
from allranks.core.objects.preflight import VARIABLE, command
from allranks.pod_bundle import HELPERS
from support.builders import table

sys.path.append(str(HELPERS))
import preflight

PROGRAM = "import os, sys; print('program', os.environ.get('ALLRANKS_PREFLIGHT')); sys.exit(3)"


@pytest.fixture
def start(helpers: Path, tmp_path: Path):
    """Starts a program behind the tests of a pod, beside modules that its Python imports."""
    started: list[subprocess.Popen[str]] = []

    def one(checks: list[str], modules: dict[str, str] | None = None, seconds: int = 60, **env: str):
        for name, text in (modules or {}).items():
            (tmp_path / name).write_text(text)
        settings = {"checks": checks, "seconds": seconds, "rank": 0, "size": 3, "address": "127.0.0.1:1"}
        variables = {VARIABLE: json.dumps(settings), "ALLRANKS_ROLE": "worker", "ALLRANKS_INDEX": "2"}
        process = subprocess.Popen(
            [sys.executable, helpers / "preflight.py", "--", sys.executable, "-c", PROGRAM],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)} | variables | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def test_the_program_starts_after_the_tests_and_does_not_see_them(start, tmp_path):
    process = start(["disk"])
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (3, "program None\n")
    assert f"disk passed (64 MiB in {tmp_path})" in errors


def test_without_torch_it_says_what_was_not_tested(start):
    process = start(["disk", "gpu", "network"], {"torch.py": "raise ModuleNotFoundError(name='torch')"})
    output, errors = process.communicate(timeout=120)
    assert output == "program None\n"
    for check in ("gpu", "network"):
        assert f"{check} not tested (the image has no torch)" in errors
    assert "disk passed" in errors


WRONG_BYTES = "import os; flush = os.fsync; os.fsync = lambda file: (flush(file), os.pwrite(file, b'?', 4711))"
BAD_DISK = "import errno, os\ndef fsync(file): raise OSError(errno.EIO, 'error')\nos.fsync = fsync"
READ_ONLY = "import errno, os\ndef fsync(file): raise OSError(errno.EROFS, 'error')\nos.fsync = fsync"


@table(
    ("other bytes than were written", WRONG_BYTES, "has other bytes than were written"),
    ("an error of the device", BAD_DISK, "Input/output error"),
)
def test_after_a_wrong_result_the_last_line_names_the_replica_and_the_program_does_not_run(case, start):
    fault, words = case
    process = start(["disk"], {"sitecustomize.py": fault})
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (1, "")
    outcome = failed_test(errors)
    assert outcome is not None
    assert (outcome.check, outcome.replica) == ("disk", "worker-2")
    assert words in outcome.text


def test_a_disk_that_cannot_be_written_is_not_tested(start):
    process = start(["disk"], {"sitecustomize.py": READ_ONLY})
    output, errors = process.communicate(timeout=120)
    assert output == "program None\n"
    assert "disk not tested" in errors


WITH_ERROR = (
    "import types\ncuda = types.SimpleNamespace(device_count=lambda: (_ for _ in ()).throw(RuntimeError({!r})))"
)


@table(
    ("a device", "CUDA error: uncorrectable ECC error encountered", True),
    ("the image", "CUDA error: no kernel image is available for execution on the device", False),
)
def test_only_an_error_that_names_a_device_is_one_of_the_node(case, start):
    message, of_node = case
    process = start(["gpu"], {"torch.py": WITH_ERROR.format(message)})
    output, errors = process.communicate(timeout=120)
    assert (failed_test(errors) is not None, output == "") == (of_node, of_node)
    assert message in errors


def test_a_test_that_does_not_end_fails_nothing(start):
    process = start(["gpu"], {"torch.py": "import time; time.sleep(3600)"}, seconds=2)
    output, errors = process.communicate(timeout=120)
    assert output == "program None\n"
    assert "gpu not tested (no result in 2 s)" in errors


def test_a_pod_that_is_deleted_during_the_tests_ends_at_once(start, tmp_path):
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    process = start(["gpu"], {"torch.py": f"import time; open({str(begun)!r}, 'w'); time.sleep(3600)"}, seconds=3600)
    begun.read_text()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)  # ends when the child has closed the output as well
    assert (process.returncode, output) == (128 + signal.SIGTERM, "")


def test_an_image_without_python3_runs_its_program_and_says_so(tmp_path):
    shell, echo = shutil.which("sh"), shutil.which("echo")
    assert shell
    assert echo
    (tmp_path / "echo").symlink_to(echo)
    line = command(["echo", "a b", "$HOME"])
    done = subprocess.run(
        [shell, *line[1:]], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "a b $HOME\n"
    assert done.stderr == "allranks: no preflight: the image has no python3\n"


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 33])
def test_each_rank_meets_another_one_in_each_round(size):
    rounds = preflight.schedule(size)
    for partners in rounds:
        assert all(partner is None or partners[partner] == rank for rank, partner in enumerate(partners))
        assert partners.count(None) == size % 2
    for rank in range(size):
        met = [partners[rank] for partners in rounds if partners[rank] is not None]
        assert len(met) == len(set(met)) >= min(2, size - 1)


def results(size: int, bad: set[int] = frozenset(), pairs: set[frozenset[int]] = frozenset(), gone: int = -1):
    """What ranks say after all rounds, if exchanges with `bad` ranks fail, and exchanges between `pairs`."""
    out: dict[int, tuple[str, dict[int, str]]] = {rank: (f"worker-{rank}", {}) for rank in range(size) if rank != gone}
    for partners in preflight.schedule(size):
        for rank, partner in enumerate(partners):
            if partner is not None and rank != gone:
                fails = not bad.isdisjoint((rank, partner)) or {rank, partner} in pairs or partner == gone
                out[rank][1][partner] = "timed out" if fails else ""
    return out


MET_BY_0 = {partners[0] for partners in preflight.schedule(8)}


@table(
    ("none", results(4), []),
    ("one of three", results(3, {1}), [1]),
    ("rank 0", results(4, {0}), [0]),
    ("two of four", results(4, {1, 3}), [1, 3]),
    ("two of 33", results(33, {7, 32}), [7, 32]),
    ("one of two: either may be bad", results(2, {1}), []),
    ("two of three: either may be bad", results(3, {0, 1}), []),
    ("all", results(4, {0, 1, 2, 3}), []),
    ("a link between two", results(4, pairs={frozenset((1, 2))}), []),
    ("one without a result is no evidence", results(4, gone=2), []),
    ("a healthy one that met only bad ones", results(8, MET_BY_0), sorted(MET_BY_0)),
)
def test_the_rank_that_fails_with_all_others_is_suspected(case):
    of_ranks, expected = case
    assert [suspect["rank"] for suspect in preflight.verdict(of_ranks)] == expected


def test_a_suspect_is_named_with_those_it_met():
    [suspect] = preflight.verdict(results(3, {1}))
    text = "all-reduce failed with worker-0, worker-2, and other pairs passed: timed out"
    assert (suspect["replica"], sorted(suspect["text"])) == ("worker-1", sorted(text))


def test_the_operator_reads_the_line_of_a_suspect():
    suspect = preflight.verdict(results(3, {1}))[0]
    line = f"allranks: preflight failed: {json.dumps({'check': 'network', **suspect})}\n"
    assert failed_test(line) == FailedTest("network", "worker-1", suspect["text"])


def test_no_pair_meets_twice():
    met = [{frozenset((a, b)) for a, b in enumerate(partners)} for partners in preflight.schedule(16)]
    assert all(first.isdisjoint(second) for first, second in pairwise(met))
