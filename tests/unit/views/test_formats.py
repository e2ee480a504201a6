"""Tables, events, durations and lists of words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allranks.text import joined
from allranks.views.format.duration import human, parse
from allranks.views.format.events import group_events
from allranks.views.format.table import Table, cell
from allranks.views.report import plots


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


def test_labels_of_the_y_axis_differ():
    values = [3.9020, 3.9011]
    plot = plots.curve("eval", "eval_loss", "", [list(enumerate(values))], 1.0)
    words = [words for _, words in plot.y_labels]
    assert len(words) == len(set(words)) >= 3
