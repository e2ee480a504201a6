"""Stacks on demand: REST and page, with an API server in memory, and with a run of this machine."""

from __future__ import annotations

import html
import json
from datetime import UTC, datetime, timedelta

import pytest

from allranks.core.facts.rank_reports import STACKS_ANNOTATION, new_stack_request, stack_dump_id
from allranks.local import run_directories
from allranks.report.client import reason_for
from support.live import eventually
from support.ui_samples import HOSTILE, a_job, a_run, progress, stamp
from support.ui_server import UiServer

PATH = "/api/v1/jobs/team/penguins/stacks"


def dump(request: str, who: str = "rank 0", function: str = "wait") -> str:
    """What allranks.report.stacks writes."""
    return (
        f"allranks: {who} (pod penguins-worker-0-0): stacks, asked for because "
        f"{reason_for(stack_dump_id(request, 0))}\n"
        f'Thread MainThread (most recent call first):\n  File "/app/train.py", line 7 in {function}\n'
        f"allranks: position {json.dumps({'where': 'train.py:7', 'call': function, 'step': 3, 'idle': 30})}\n"
    )


def stamped(text: str, ago: float = 0) -> list[bytes]:
    return [f"{stamp(ago)[:19]}.000000000Z {line}\n".encode() for line in text.splitlines()]


def ask(server, **headers):
    return server.request("POST", PATH, {}, **headers)


def request_of(api) -> str:
    return api.jobs["penguins"]["metadata"]["annotations"][STACKS_ANNOTATION]


def test_the_ranks_are_asked_and_their_answers_are_read_from_their_logs(server, api):
    api.logs = {f"penguins-worker-{place}-0": stamped("line\n") for place in range(3)}
    before = server.get(PATH).json
    assert (before["request"], before["dumps"], before["over"]) == ("", [], True)
    answer = ask(server)
    assert (answer.status, answer.json["message"]) == (202, "the ranks of penguins are asked for their stacks")
    request = answer.json["request"]
    assert request == request_of(api)
    waiting = server.get(f"{PATH}?request={request}").json
    assert (waiting["waiting"], waiting["over"]) == (["worker-0", "worker-1", "worker-2"], False)
    for place in range(3):
        api.logs[f"penguins-worker-{place}-0"] += stamped(dump(request, f"rank {place}") + "epoch 3\n")
    assert eventually(lambda: server.get(PATH).json["request"] == request)  # the newest, when the watch has brought it
    found = server.get(PATH).json
    assert (found["waiting"], found["over"], found["notes"]) == ([], True, [])
    assert [(one["replica"], one["rank"], one["lines"][1].strip()) for one in found["dumps"]] == [
        (f"worker-{place}", place, 'File "/app/train.py", line 7 in wait') for place in range(3)
    ]
    assert "somebody requested them" in found["dumps"][0]["title"]
    assert found["groups"] == [[0, 1, 2]]
    assert found["sentence"] == "no step for 30s: all 3 ranks are at step 3: they wait in wait, train.py:7"


def test_dumps_of_another_request_or_of_a_hang_are_no_answers(server, api):
    request = ask(server).json["request"]
    other = new_stack_request(0, datetime.now(UTC), 1)
    hang = dump(request).replace(reason_for(stack_dump_id(request, 0)), reason_for("0-3"))
    api.logs = {"penguins-worker-0-0": stamped(hang + dump(other))}
    assert server.get(f"{PATH}?request={request}").json["dumps"] == []


def test_a_dump_that_is_being_written_is_no_answer_yet(server, api):
    request = ask(server).json["request"]
    head, *stacks = stamped(dump(request))
    api.logs = {f"penguins-worker-{place}-0": stamped(dump(request)) for place in (0, 1)} | {
        "penguins-worker-2-0": [head]
    }
    found = server.get(f"{PATH}?request={request}").json
    assert ([one["replica"] for one in found["dumps"]], found["waiting"]) == (["worker-0", "worker-1"], ["worker-2"])
    assert not found["over"]
    api.logs["penguins-worker-2-0"] += stacks
    found = server.get(f"{PATH}?request={request}").json
    assert (len(found["dumps"]), found["waiting"], found["over"]) == (3, [], True)


def test_a_pod_without_a_process_that_has_stacks_has_answered(server, api):
    request = ask(server).json["request"]
    reason = reason_for(stack_dump_id(request, 0))
    line = f"allranks: no process of pod x can show its stacks, asked for because {reason}\n"
    api.logs = {f"penguins-worker-{place}-0": stamped(line) for place in range(3)}
    assert len(server.get(f"{PATH}?request={request}").json["dumps"]) == 3


def test_ranks_that_do_not_answer_are_named(server, api):
    api.logs = {f"penguins-worker-{place}-0": [] for place in range(3)}
    late = new_stack_request(0, datetime.now(UTC) - timedelta(seconds=300), 1)
    api.logs["penguins-worker-0-0"] = stamped(dump(late), 290)
    found = server.get(f"{PATH}?request={late}").json
    assert ([one["replica"] for one in found["dumps"]], found["over"]) == (["worker-0"], True)
    assert found["notes"] == [
        "worker-1, worker-2 did not answer: a rank that does not report cannot be asked, and one in which native code "
        "holds Python's interpreter lock cannot answer"
    ]


@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("broken", {}, "broken is Failed: there are no ranks to ask"),
        ("waiting", {"phase": "Queued", "runningTime": None}, "waiting is Queued: its ranks do not run yet"),
        ("silent", {"phase": "Running"}, "the ranks do not report, so they cannot be asked: call allranks.report"),
    ],
)
def test_ranks_that_cannot_be_asked(server, api, name, status, detail):
    server.get("/api/v1/jobs")
    if status:
        api.put(a_job(name, **status))
        assert eventually(lambda: server.get(f"/api/v1/jobs/team/{name}").status == 200)
    answer = server.request("POST", f"/api/v1/jobs/team/{name}/stacks", {})
    assert answer.status == 409
    assert answer.json["detail"].startswith(detail)
    page = server.get(f"/jobs/team/{name}/stacks").text
    assert detail in html.unescape(page)
    assert "<form" not in page.split('id="live"')[1]


def test_without_the_right_to_change_the_job_a_sentence_names_it(server, api):
    server.get("/api/v1/jobs")
    api.forbidden = {"distributedtrainings"}
    answer = ask(server)
    assert answer.status == 403
    assert answer.json["detail"].startswith("me may not patch distributedtrainings in namespace team")


def test_only_the_job_that_the_page_showed_is_asked(server, api):
    assert server.request("POST", f"{PATH}?uid=another", {}).status == 409
    assert STACKS_ANNOTATION not in (api.jobs["penguins"]["metadata"].get("annotations") or {})


def test_the_page_asks_and_shows_hostile_answers_as_text(server, api):
    api.logs = {f"penguins-worker-{place}-0": [] for place in range(3)}
    form = {"content_type": "application/x-www-form-urlencoded"}
    answer = server.request("POST", "/jobs/team/penguins/stacks", "uid=uid-penguins", **form)
    assert answer.status == 303
    address = answer.headers["location"]
    page = server.get(address).text
    assert 'data-refresh="1500"' in page
    assert "waiting for 3 ranks" in page
    for place in range(3):
        api.logs[f"penguins-worker-{place}-0"] = stamped(dump(request_of(api), f"rank {place}", HOSTILE))
    page = server.get(address).text
    assert "data-refresh" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "3 processes have answered" in page
    assert "rank 0, rank 1, rank 2 <small>the same stacks" in page
    assert "all 3 ranks are at step 3" in page


def test_a_run_of_this_machine_is_asked_by_a_file(tmp_path):
    folder = a_run(tmp_path, "digits", "20260304-101500", "Running", {}, progress=progress(5, ranks=2))
    with run_directories.in_use(folder), UiServer(tmp_path / "none", tmp_path) as server:
        path = "/api/v1/runs/digits/20260304-101500/stacks"
        answer = server.request("POST", path, {})
        assert answer.status == 202, answer.text
        request = run_directories.stack_request(folder)
        assert request == answer.json["request"]
        (folder / "logs" / "digits-worker-0-0.log").write_text("begin\n" + dump(request))
        (folder / "logs" / "digits-worker-1-0.log").write_text("begin\n")
        found = server.get(path).json
        assert [one["replica"] for one in found["dumps"]] == ["worker-0"]
        assert found["waiting"] == ["worker-1"]


def test_a_run_that_has_ended_cannot_be_asked(tmp_path):
    a_run(tmp_path, "digits", "20260304-101500", "Running", {}, progress=progress(5, ranks=2))
    with UiServer(tmp_path / "none", tmp_path) as server:
        answer = server.request("POST", "/api/v1/runs/digits/20260304-101500/stacks", {})
    assert (answer.status, answer.json["detail"]) == (409, "digits is Interrupted: there are no ranks to ask")
