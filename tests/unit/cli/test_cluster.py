"""Parts of the cluster commands that can be tested without a cluster: watches, logs, errors, tables, events."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allranks.cli.commands.submit import difference
from allranks.cli.format.duration import human, parse
from allranks.cli.format.events import group_events
from allranks.cli.format.table import Table, cell
from allranks.cli.options import joined
from allranks.errors import ClusterError
from allranks.kube.errors import Asked, refusal
from allranks.kube.lenient_codec import pods_of, status_of
from allranks.kube.pod_logs import Line, _time, merged
from allranks.kube.resilient_watch import Watch
from support.builders import table

# --- a watch ---------------------------------------------------------------------------------------------------------


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def listed(version: int, *items: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "List", "metadata": {"resourceVersion": str(version)}, "items": list(items)}


class Scripted:
    """A cluster whose answers are written down: a list is what `get` answers, a watch yields events or breaks."""

    def __init__(self, lists: list[dict[str, Any]], watches: list[list[Any]]) -> None:
        self.lists, self.watches = lists, watches
        self.asked: list[str] = []

    async def get(self, path: str, query: Any, accept: str) -> dict[str, Any]:
        self.asked.append("list")
        return self.lists.pop(0)

    async def watch(self, path: str, query: dict[str, Any], accept: str) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(f"watch from {query['resourceVersion']}")
        if not self.watches:
            await asyncio.sleep(60)
        for event in self.watches.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


def event(kind: str, what: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": what}


def watched(cluster: Scripted, count: int) -> tuple[list[tuple[str, str]], list[str]]:
    """(the first changes, messages about the connection)"""
    messages: list[str] = []

    async def read() -> list[tuple[str, str]]:
        watch = Watch(cluster, "/jobs", {}, told=messages.append)  # type: ignore[arg-type]
        await watch.listed()
        out = []
        async with aclosing(watch.changes()) as changes:
            async for change in changes:
                out.append((change.kind, change.item["metadata"]["name"]))
                if len(out) == count:
                    break
        return out

    return asyncio.run(asyncio.wait_for(read(), 60)), messages


def test_an_interrupted_watch_resumes_at_its_resource_version():
    cut = ClusterError("there broke the connection off", reason="Cut")
    cluster = Scripted(
        [listed(5, item("a", 3))],
        [
            [event("MODIFIED", item("a", 6)), event("BOOKMARK", item("", 9))],
            [event("ADDED", item("b", 10)), cut],
            [event("DELETED", item("a", 11))],
        ],
    )
    assert watched(cluster, 3) == (
        [("changed", "a"), ("added", "b"), ("deleted", "a")],
        ["there broke the connection off; trying again"],
    )
    assert cluster.asked == ["list", "watch from 5", "watch from 9", "watch from 10"]


@pytest.mark.parametrize(
    "answer",
    [[event("ERROR", {"kind": "Status", "code": 410})], [ClusterError("too old resource version", 410, "Expired")]],
    ids=["as an event", "as an answer"],
)
def test_an_expired_resource_version_is_listed_again_and_yields_only_differences(answer):
    cluster = Scripted(
        [listed(5, item("a", 3), item("b", 4), item("c", 5)), listed(20, item("a", 3), item("b", 15), item("d", 18))],
        [answer, [event("MODIFIED", item("a", 21))]],
    )
    changes, messages = watched(cluster, 4)
    assert changes == [("deleted", "c"), ("changed", "b"), ("added", "d"), ("changed", "a")]
    assert messages == []
    assert cluster.asked == ["list", "watch from 5", "list", "watch from 20"]


def test_a_forbidden_watch_ends():
    cluster = Scripted([listed(5)], [[ClusterError("joe may not watch", 403, "Forbidden")]])
    with pytest.raises(ClusterError, match="joe may not watch"):
        watched(cluster, 1)


# --- logs ------------------------------------------------------------------------------------------------------------


@table(
    ("UTC with nanoseconds", b"2026-03-04T10:00:00.123456789Z", b"2026-03-04T10:00:00.123456789Z"),
    ("zeros left out", b"2026-03-04T10:00:00.5Z", b"2026-03-04T10:00:00.500000000Z"),
    ("whole seconds", b"2026-03-04T10:00:00Z", b"2026-03-04T10:00:00.000000000Z"),
    ("a node's own zone", b"2026-03-04T12:00:00.25+02:00", b"2026-03-04T10:00:00.250000000Z"),
    ("the kubelet's own words", b"unable", None),
    ("no date", b"2026-13-44T99:00:00.25+02:00", None),
)
def test_timestamps_of_lines_compare_as_bytes(case):
    stamp, time = case
    assert _time(stamp) == time


def test_logs_are_merged_by_time_and_lines_without_time_keep_their_place():
    async def source(*batches: list[tuple[bytes, bytes]]) -> AsyncIterator[list[Line]]:
        for batch in batches:
            yield [Line(*line) for line in batch]

    async def read() -> list[tuple[int, bytes]]:
        sources = [
            source([(b"1", b"a"), (b"4", b"d")], [(b"", b"d2"), (b"6", b"f")]),
            source(),
            source([(b"2", b"b")], [(b"3", b"c"), (b"5", b"e")]),
        ]
        return [(place, line.text) async for place, line in merged(sources)]

    assert asyncio.run(read()) == [(0, b"a"), (2, b"b"), (2, b"c"), (0, b"d"), (0, b"d2"), (2, b"e"), (0, b"f")]


# --- API errors ------------------------------------------------------------------------------------------------------

ASKED = Asked("GET", "/apis/allranks.dev/v1alpha1/namespaces/team/distributedtrainings", "https://api:6443", "prod")


def answered(code: int, message: str, **fields: Any) -> str:
    return str(refusal(ASKED, code, json.dumps({"kind": "Status", "message": message, **fields}).encode()))


def test_a_cluster_without_the_crd_says_how_to_install_it():
    assert str(refusal(ASKED, 404, b"404 page not found\n")) == (
        "https://api:6443 (context prod) does not know DistributedTraining: its admin installs allranks there, with "
        "the Helm chart in charts/allranks or kubectl apply --server-side -f crds/distributedtrainings.yaml"
    )


@table(
    ("a rule", "spec.image", "Invalid value: cannot change while the job lives", "spec.image: cannot change while the"),
    ("a bound", "spec.x", "Invalid value: -1: spec.x in body should be at least 0", "spec.x: -1 should be at least 0"),
    ("a text", "spec.f", 'Unsupported value: "a": supported values: "b"', 'spec.f: Unsupported value: "a": supported'),
)
def test_invalid_fields_are_named(case):
    field, message, error = case
    causes = {"causes": [{"field": field, "message": message}]}
    assert answered(422, "is invalid", details=causes).startswith(error)


def test_messages_of_admission_have_no_control_characters():
    assert answered(403, "exceeded quota: \x1b[31mgpus\x1b[0m") == "exceeded quota: gpus"


# --- small parts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (3600, "60m"),
        (11_000, "3h3m"),
        (200_000, "2d7h"),
        (-5, "0s"),
    ],
)
def test_ages_are_printed_as_kubectl_prints_them(seconds, text):
    assert human(seconds) == text


def test_later_rows_keep_the_column_widths():
    rows = Table(["Name", "Phase"])
    assert list(rows.lines([["penguins", "Running"]])) == ["NAME       PHASE", "penguins   Running"]
    assert list(rows.lines([["a", None]])) == ["a"]
    assert cell("two\nlines\x07") == "two lines"


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1m30s", 90), ("2h", 7200), ("1.5m", 90), ("0", 0)])
def test_durations_are_parsed(text, seconds):
    assert parse(text) == seconds


def test_words_are_joined():
    assert [joined(words, "or") for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a or b", "a, b or c"]


def test_events_of_many_pods_are_grouped_newest_last():
    then = datetime(2026, 3, 4, tzinfo=UTC)

    def happened(name: str, message: str, after: int, kind: str = "Pod", **fields: Any) -> dict[str, Any]:
        stamp = (then + timedelta(seconds=after)).isoformat()
        about = {"kind": kind, "name": name}
        return {"involvedObject": about, "reason": "R", "type": "Normal", "message": message} | {
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            **fields,
        }

    groups = group_events(
        [
            happened("job", "worker-1 failed: exit code 1", 30, kind="DistributedTraining"),
            happened("job-worker-0-0", "assigned team/job-worker-0-0 to node-1", 5),
            happened("job-worker-1-0", "assigned team/job-worker-1-0 to node-2", 9, count=3),
            happened("job", "restarted", 40, kind="DistributedTraining", metadata={"resourceVersion": "100"}),
            happened(
                "job", "worker-1 failed: exit code 2", 40, "DistributedTraining", metadata={"resourceVersion": "99"}
            ),
        ]
    )
    assert [(one.objects, one.count, one.message) for one in groups] == [
        ("2 pods", 4, "assigned team/job-worker-1-0 to node-2"),
        ("job", 1, "worker-1 failed: exit code 1"),
        ("job", 1, "worker-1 failed: exit code 2"),
        ("job", 1, "restarted"),
    ]


def test_unknown_status_fields_of_a_newer_operator_are_ignored():
    newer = {"phase": "Running", "ready": "2/2", "mood": "good", "restarts": {"counted": 2, "planned": 1}}
    newer |= {"lastFailure": {"pod": "p", "time": "2026-03-04T10:00:00Z", "weather": "cosmic rays"}, "goodput": 7}
    status = status_of({"status": newer})
    assert (status.phase, status.ready, status.restarts.counted) == ("Running", "2/2", 2)
    assert status.last_failure is not None
    assert status.goodput is None
    assert status_of({}).phase == "Pending"


def test_only_pods_owned_by_the_job_are_used():
    def pod(name: str, **fields: Any) -> dict[str, Any]:
        stamp = "2026-03-04T10:00:00Z"
        return {"metadata": {"name": name, "uid": name, "creationTimestamp": stamp, **fields}}

    owner = {"kind": "DistributedTraining", "name": "job", "uid": "u", "controller": True}
    job = {"metadata": {"name": "job", "uid": "u"}, "spec": {}}
    there = [pod("mine", ownerReferences=[owner]), pod("other"), pod("old", ownerReferences=[{**owner, "uid": "x"}])]
    assert [pod.name for pod in pods_of(job, there)] == ["mine"]


def test_difference_removes_fields_of_jobs_but_not_of_other_objects():
    there = {"kind": "DistributedTraining", "spec": {"a": 1, "b": {"c": 1, "d": 2}}, "metadata": {}}
    wanted = {"kind": "DistributedTraining", "spec": {"b": {"c": 1}}, "metadata": {}}
    assert difference(there, wanted) == {"spec": {"a": None, "b": {"d": None}}}
    assert difference(there | {"kind": "ConfigMap"}, wanted | {"kind": "ConfigMap"}) == {}
    assert difference(there, there) == {}


def test_a_missing_client_library_says_what_to_install():
    program = (
        "import sys\nsys.modules['kubernetes'] = None\nsys.argv = ['allranks', 'get']\n"
        "from allranks.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the commands for clusters need further Python packages (")
    assert done.stderr.endswith("): pip install 'allranks[cli]'\n")


def test_as_a_kubectl_plugin_usage_names_kubectl():
    program = (
        "import sys\nsys.argv = ['/bin/kubectl-allranks', 'get', '--help']\nfrom allranks.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: kubectl allranks get ")
