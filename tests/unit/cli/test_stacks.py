"""`allranks stacks`, with an API server in memory, and `allranks runs stacks`."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allranks.cli.commands import stacks
from allranks.cli.main import cli
from allranks.client import rank_stacks
from allranks.core.facts.rank_reports import STACKS_ANNOTATION, stack_dump_id
from allranks.local import run_directories
from allranks.report.client import reason_for
from support.job_api import JobApi
from support.live import eventually
from support.ui_samples import a_job, a_run, pods_of, progress, stamp


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobApi]:
    monkeypatch.setattr(stacks, "POLL_SECONDS", 0.05)
    running = a_job("penguins", "Running", progress=progress(1200))
    with JobApi(tmp_path, running, a_job("broken", "Failed"), a_job("silent", "Running")) as api:
        api.pods = pods_of(running)
        api.logs = {f"penguins-worker-{place}-0": [] for place in range(3)}
        yield api


def call(api: JobApi, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["stacks", *arguments, "--kubeconfig", str(api.kubeconfig)])


def dump(request: str, place: int, **position: Any) -> str:
    """What allranks.report.stacks writes."""
    where = json.dumps({"where": "train.py:7", "call": "all_reduce", "step": 12, "idle": 40.0, **position})
    return (
        f"allranks: rank {place} (pod penguins-worker-{place}-0): stacks, asked for because "
        f"{reason_for(stack_dump_id(request, 0))}\n"
        f'Thread MainThread (most recent call first):\n  File "/train.py", line {position.get("line", 7)} in w\n'
        f"allranks: position {where}\n"
    )


def request_of(api: JobApi) -> str:
    return str((api.jobs["penguins"]["metadata"].get("annotations") or {}).get(STACKS_ANNOTATION, ""))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """For the command, time stands still until this event is set."""
    event, seconds = threading.Event(), itertools.count(1)
    monkeypatch.setattr(
        stacks, "time", SimpleNamespace(monotonic=lambda: float(next(seconds)) if event.is_set() else 0.0)
    )
    return event


@contextmanager
def answering(
    asked: Callable[[], str], answer: Callable[[str], None], answered: threading.Event | None = None
) -> Iterator[None]:
    """Ranks that answer as soon as they are asked."""

    def wait() -> None:
        eventually(asked, what="a request")
        answer(asked())
        if answered:
            answered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def answer_of(api: JobApi, *places: int, **odd: Any) -> Callable[[str], None]:
    """Let ranks answer. `odd`: the position of the last one, which differs."""

    def answer(request: str) -> None:
        for place in places:
            position = odd if place == places[-1] else {}
            lines = ["epoch 1", *dump(request, place, **position).splitlines(), "epoch 2"]
            api.logs[f"penguins-worker-{place}-0"] += [f"{stamp(0)[:19]}.0Z {line}\n".encode() for line in lines]

    return answer


def test_the_rank_that_differs_comes_first_and_equal_stacks_are_printed_once(api: JobApi):
    odd = {"where": "train.py:120", "function": "evaluate", "call": "", "line": 120}
    with answering(lambda: request_of(api), answer_of(api, 0, 1, 2, **odd)):
        done = call(api, "penguins")
    assert done.exit_code == 0, done.output
    sentence, _, *rest = done.output.splitlines()
    assert sentence == (
        "no step for 40s: rank 2 (worker-2) is in evaluate(), train.py:120; "
        "ranks 0 and 1 wait for it in all_reduce, train.py:7"
    )
    heads = [line.partition(":")[0] for line in rest if line.startswith("rank ")]
    assert heads == ["rank 0 (worker-0), rank 1 (worker-1)", "rank 2 (worker-2)"]
    assert done.output.count('  File "/train.py", line 7 in w') == 1
    assert "epoch" not in done.output
    assert "position" not in done.output


def test_while_ranks_make_steps_the_first_line_says_only_where_they_are(api: JobApi):
    with answering(lambda: request_of(api), answer_of(api, 0, 1, 2, where="train.py:9", call="", idle=1.5)):
        done = call(api, "penguins")
    assert done.output.splitlines()[0] == ("ranks 0 and 1 wait in all_reduce, train.py:7; rank 2 is at train.py:9")


def test_a_rank_that_completed_is_the_one_for_which_the_others_wait(api: JobApi):
    api.pods[2]["status"] |= {"phase": "Succeeded", "containerStatuses": []}
    with answering(lambda: request_of(api), answer_of(api, 0, 1)):
        done = call(api, "penguins")
    assert done.exit_code == 0, done.output
    assert "rank 2 (worker-2) completed; ranks 0 and 1 wait for it in all_reduce, train.py:7" in done.output


@pytest.mark.parametrize("text", ["{", '{"idle": NaN}', '{"where": 7}', '{"where": "' + "x" * 300 + '"}', "[]"])
def test_a_position_that_is_none_is_ignored(text: str):
    title = "allranks: rank 3 (pod x): stacks, asked for because somebody requested them (0-1)"
    lines = [title, "Thread MainThread (most recent call first):", f"allranks: position {text}"]
    [found], _ = rank_stacks.answers("0-1", [("worker-0", [line.encode() for line in lines])], {"worker-0": 0})
    assert (found.rank, found.place, found.lines) == (3, None, lines[1:2])


def test_one_rank_in_json_has_the_form_of_the_rest_interface(api: JobApi):
    with answering(lambda: request_of(api), answer_of(api, 1)):
        done = call(api, "penguins", "--rank", "1", "-o", "json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["request"], found["waiting"], found["notes"]) == (0, request_of(api), [], [])
    [one] = found["dumps"]
    assert (found["groups"], one["place"]["call"]) == ([[0]], "all_reduce")
    assert (one["replica"], one["rank"], one["lines"][0]) == (
        "worker-1",
        1,
        "Thread MainThread (most recent call first):",
    )


def test_ranks_that_do_not_answer_are_named_after_the_timeout(api: JobApi, answered: threading.Event):
    with answering(lambda: request_of(api), answer_of(api, 0), answered):
        done = call(api, "penguins", "--timeout", "1s")
    assert done.exit_code == 1
    assert "rank 0 (worker-0)" in done.stdout
    assert "within 1 s, worker-1, worker-2 did not answer: a rank that does not report cannot be asked" in done.stderr
    assert "older" not in done.stderr


def test_if_no_rank_answers_the_operator_or_the_image_may_be_older(api: JobApi):
    done = call(api, "penguins", "--timeout", "0s")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the operator, or the allranks in the image of the ranks, may be older than this request" in done.stderr


def test_a_job_that_restarts_is_not_waited_for_in_vain(api: JobApi, answered: threading.Event):
    def restart(_request: str) -> None:
        job = api.jobs["penguins"]
        api.put({**job, "status": {**job["status"], "attempt": 1}})

    with answering(lambda: request_of(api), restart, answered):
        done = call(api, "penguins", "--timeout", "1s")
    assert done.exit_code == 1
    assert "penguins has restarted: the ranks of attempt 0 are gone; ask again" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["broken"], 1, "broken is Failed: there are no ranks to ask"),
        (["silent"], 1, "the ranks do not report, so they cannot be asked: call allranks.report in the program"),
        (["pengins"], 1, "pengins"),
        (["penguins", "--rank", "3"], 2, "penguins has no rank 3: its ranks are 0 to 2"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_is_changed(api: JobApi, arguments, status, text):
    done = call(api, *arguments)
    assert done.exit_code == status
    assert text in done.stderr
    assert not any(verb == "PATCH" for verb, _ in api.asked)


@pytest.mark.parametrize("plural", ["distributedtrainings", "pods"])
def test_a_missing_right_is_named(api: JobApi, plural: str):
    api.forbidden = {plural}
    done = call(api, "penguins", "--timeout", "1s")
    assert done.exit_code == 1
    assert f"me may not list {plural} in namespace team" in done.stderr


def test_a_run_of_this_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: threading.Event):
    monkeypatch.setattr(stacks, "POLL_SECONDS", 0.05)
    folder = a_run(tmp_path, "digits", "20260304-101500", "Running", {}, progress=progress(5, ranks=2))
    logs = folder / "logs"
    (logs / "digits-worker-1-0.log").write_text("begin\n")

    def answer(request: str) -> None:
        (logs / "digits-worker-0-0.log").write_text("begin\n" + dump(request, 0))

    arguments = ["runs", "stacks", "digits", "--root", str(tmp_path), "--timeout", "1s"]
    asked = answering(lambda: run_directories.stack_request(folder), answer, answered)
    with run_directories.in_use(folder), asked:
        done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 1
    assert "rank 0 (worker-0)" in done.stdout
    assert "worker-1 did not answer" in done.stderr
    ended = CliRunner().invoke(cli, arguments)
    assert "digits/20260304-101500 is Interrupted: there are no ranks to ask" in ended.stderr
