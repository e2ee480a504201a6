"""`allranks.run` with functions and scripts: real processes on this machine, with a framework that needs no package."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import allranks
from allranks.local import run_directories
from allranks.sdk import payload

HERE = {"framework": "tensorflow", "logs": False}
"""TensorFlow's ranks are started as plain Python programs with variables."""


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def index() -> int:
    return int(os.environ["ALLRANKS_INDEX"])


def scaled(values, factor=1):
    return [factor * value for value in values], index()


def test_the_value_of_rank_0_is_returned():
    assert allranks.run(scaled, [1, 2], ranks=-2, factor=3, **HERE) == ([3, 6], 0)


def test_a_lambda_and_its_variables_travel_by_value():
    offset = 40
    assert allranks.run(lambda value: value + offset, 2, ranks=-1, **HERE) == 42


def test_an_argument_with_the_name_of_a_parameter_of_run_is_given_by_kwargs():
    def named(name):
        return f"hello {name}"

    assert allranks.run(named, ranks=-1, kwargs={"name": "world"}, **HERE) == "hello world"


def test_the_exception_of_the_rank_that_failed_first_is_raised_with_its_traceback():
    def fails(what):
        if index() == 1:
            raise LookupError(f"no {what}")
        threading.Event().wait(60)  # ended with the job

    with pytest.raises(allranks.RankFailed) as caught:
        allranks.run(fails, "data", ranks=-2, **HERE)
    error = caught.value
    assert (error.rank, error.exit_code, error.signal, error.job) == (1, 1, None, "fails")
    assert isinstance(error.__cause__, LookupError)
    assert error.__cause__.args == ("no data",)
    assert 'raise LookupError(f"no {what}")' in error.traceback
    assert str(error).startswith("rank 1 of fails failed first:\n\nTraceback")
    assert "call_function.py" not in str(error)


def test_an_exception_that_cannot_be_sent_or_loaded_is_named_with_the_reason():
    class Busy(Exception):
        lock = None

    class Particular(Exception):
        def __init__(self, name, size):
            super().__init__(f"{name}: {size}")

    def is_busy():
        error = Busy("no room")
        error.lock = threading.Lock()
        raise error

    def is_particular():
        raise Particular("heap", 3)

    for function, sentence in (
        (is_busy, r"the exception itself, Busy, cannot be pickled \(TypeError: cannot pickle '_thread.lock' object\)"),
        (is_particular, r"the exception itself, Particular, cannot be loaded here \(TypeError: .*'size'\)"),
    ):
        with pytest.raises(allranks.RankFailed, match=f"{sentence}$") as caught:
            allranks.run(function, ranks=-1, **HERE)
        assert caught.value.__cause__ is None
        assert "raise " in caught.value.traceback


def test_restarts_are_suggested_in_the_words_of_python(capsys):
    def fails():
        raise LookupError("no data")

    with pytest.raises(allranks.RankFailed):
        allranks.run(fails, ranks=-1, **HERE | {"logs": True})
    assert "not restarted: no rank has reported a step (restarts=3 restarts it)" in capsys.readouterr().out


def test_a_function_without_an_import_of_a_framework_runs():
    assert allranks.run(lambda value: 2 * value, 21, ranks=-2, logs=False) == 42


def test_a_run_directory_that_cannot_be_written_is_refused(monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(payload, "write", refused)
    sentence = "mine cannot be written: permission denied: choose another run directory"
    with pytest.raises(allranks.CannotRun, match=f"^{sentence}$"):
        allranks.run(scaled, [1], ranks=-1, run_dir="mine", **HERE)


@pytest.mark.parametrize(
    ("prints", "said"),
    [
        ("echo begun; echo 'ImportError: no yaml' >&2", "printed last:\n\nImportError: no yaml"),
        ("seq 20", "printed last:\n\n16\n17\n18\n19\n20"),
        ("", " and printed nothing"),
    ],
)
def test_a_command_that_ends_without_a_status_is_an_error_with_its_last_lines(monkeypatch, tmp_path, prints, said):
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\n{prints}\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(allranks.AllranksError) as caught:
        allranks.run(scaled, [1], ranks=-1, **HERE)
    assert str(caught.value).startswith("allranks could not run the job: its process ended with exit code 1")
    assert str(caught.value).endswith(said)


def test_a_rank_that_is_killed_is_reported_with_its_signal():
    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(allranks.RankFailed, match="rank 0 of dies failed first") as caught:
        allranks.run(dies, ranks=-1, **HERE)
    assert (caught.value.signal, caught.value.traceback, caught.value.__cause__) == (9, "", None)


def test_a_value_that_cannot_be_pickled_does_not_fail_the_job():
    def counts():
        return (number for number in range(3))

    with pytest.raises(allranks.ResultError, match="returned a generator that cannot be pickled"):
        allranks.run(counts, ranks=-1, **HERE)
    assert [run.phase for run in run_directories.stored_runs()] == ["Succeeded"]


LOCK = threading.Lock()


def uses_a_lock():
    with LOCK:
        return 1


UNSENDABLE = [
    (uses_a_lock, (), {}, "the variable LOCK that uses_a_lock uses, a lock, cannot be pickled"),
    (scaled, (LOCK,), {}, "argument 1 of scaled, a lock, cannot be pickled"),
    (scaled, ([],), {"factor": LOCK}, "argument factor of scaled, a lock, cannot be pickled"),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "message"), UNSENDABLE, ids=[row[3][:40] for row in UNSENDABLE])
def test_an_object_that_cannot_be_pickled_is_named_and_nothing_is_started(function, args, kwargs, message):
    with pytest.raises(allranks.CannotPickle, match=message):
        allranks.run(function, *args, ranks=-2, **HERE, **kwargs)
    assert not Path("runs").exists()


def test_arguments_that_do_not_fit_the_function_are_refused_before_anything_starts():
    with pytest.raises(TypeError, match=r"scaled\(values, factor=1\) cannot be called with these arguments: missing"):
        allranks.run(scaled, ranks=-2, **HERE)


REFUSED = [
    ({"ranks": 2}, allranks.CannotRun, "image= is missing: name an image that has Python 3"),
    ({"ranks": 0}, ValueError, "must be a negative number, .*, or a positive one for ranks on a cluster"),
    ({"ranks": -1, "image": "x", "pool": "y"}, ValueError, "image=, pool=: only for a cluster, and ranks=-1 runs on"),
    ({"ranks": 2, "run_dir": "x"}, ValueError, "run_dir= is a directory of this machine"),
    ({"ranks": -1, "framework": "keras"}, ValueError, "framework='keras': must be one of pytorch, "),
    ({"ranks": -1, "framework": "pytorch"}, allranks.RankFailed, "No module named"),
    ({"ranks": -1, "name": "Bad Name"}, allranks.InvalidManifest, "metadata.name: "),
    ({"ranks": -1, "env": {"TF_CONFIG": "{}"}}, allranks.InvalidManifest, "TF_CONFIG"),
]


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_a_wrong_option_is_refused_with_its_cure(options, kind, message):
    with pytest.raises(kind, match=message):
        allranks.run(scaled, [1], **{**HERE, **options})


def test_the_output_of_the_ranks_is_printed_with_the_rank_in_front(capsys, tmp_path):
    def speaks():
        print("hello", flush=True)
        (tmp_path / f"spoke-{index()}").touch()
        while len(list(tmp_path.glob("spoke-*"))) < 2:  # when worker-0 ends, the job succeeds and worker-1 is ended
            time.sleep(0.02)

    allranks.run(speaks, ranks=-2, framework="tensorflow")
    printed = capsys.readouterr().out
    assert "worker-0 | hello\n" in printed
    assert "worker-1 | hello\n" in printed
    assert "speaks Succeeded in " in printed


def test_a_script_gets_its_arguments():
    Path("show.py").write_text("import sys, pathlib\npathlib.Path('out').write_text(' '.join(sys.argv[1:]))\n")
    assert allranks.run("show.py", "--epochs", 3, ranks=-1, **HERE) is None
    assert Path("out").read_text() == "--epochs 3"


def test_a_script_takes_no_keyword_arguments():
    with pytest.raises(TypeError, match=r"show.py is a script, which takes no keyword arguments: lr"):
        allranks.run("show.py", ranks=-1, lr=1, **HERE)


def test_the_run_is_stored_as_by_the_command_and_the_payload_is_removed():
    allranks.run(scaled, [1], ranks=-1, name="mine", **HERE)
    (run,) = run_directories.stored_runs()
    assert (run.job, run.phase) == ("mine", "Succeeded")
    assert (Path("runs") / "mine" / "latest").resolve() == run.directory.resolve()
    assert not (run.directory / "function.pickle").exists()


def test_ctrl_c_ends_the_ranks_and_raises_keyboard_interrupt(tmp_path):
    program = """
import os, pathlib, time
import allranks

def waits():
    pathlib.Path(f"up-{os.environ['ALLRANKS_INDEX']}").write_text(str(os.getpid()))
    time.sleep(120)

try:
    allranks.run(waits, ranks=-2, framework='tensorflow', logs=False)
except KeyboardInterrupt:
    print("interrupted")
"""
    (tmp_path / "caller.py").write_text(program)
    caller = subprocess.Popen(
        [sys.executable, "caller.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run in the background of a script
    )
    try:
        wait_until(lambda: len(running(tmp_path)) == 2)
        pids = running(tmp_path)
        caller.send_signal(signal.SIGINT)
        assert caller.communicate(timeout=300)[0] == "interrupted\n"
    finally:
        caller.kill()
        caller.wait()
    assert not [pid for pid in pids if is_alive(pid)]


def running(folder: Path) -> list[int]:
    """The pids that the ranks have written."""
    return [int(text) for file in folder.glob("up-*") if (text := file.read_text())]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition, seconds=100.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_functions_are_pickled_in_several_threads():
    """cloudpickle has one list of the modules by value."""
    failed = []

    def pickles():
        try:
            for _ in range(20):
                payload.dumps(scaled, [1], {})
        except allranks.AllranksError as error:
            failed.append(error)

    threads = [threading.Thread(target=pickles) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_the_types_of_the_interface_are_those_of_its_names():
    stub = Path(allranks.__file__).with_suffix(".pyi").read_text()
    assert set(re.findall(r" as (\w+)$", stub, re.MULTILINE)) == {*allranks._LAZY, "__version__"}
    assert all(callable(getattr(allranks, name)) for name in allranks._LAZY)
