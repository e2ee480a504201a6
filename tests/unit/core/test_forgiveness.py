"""Nodes that a user forgives."""

from __future__ import annotations

from allranks.api.status import PastAttempt, Status
from allranks.core.facts.forgiveness import FORGIVEN_ANNOTATION, as_text, forgiven_nodes, newly_forgiven
from support.builders import at, failure, job, table


def of(text: str):
    made = job()
    return made.model_copy(
        update={"metadata": made.metadata.model_copy(update={"annotations": {FORGIVEN_ANNOTATION: text}})}
    )


def test_the_annotation_is_read_as_it_is_written():
    nodes = {"gpu-7": at(0), "gpu-8": at(60)}
    assert forgiven_nodes(as_text(nodes)) == nodes


@table(("empty", ""), ("no time", "gpu-7"), ("no date", "gpu-7=now"), ("no zone", "gpu-7=2026-03-04T10:00:00"))
def test_other_text_forgives_nothing(case):
    [text] = case
    assert forgiven_nodes(text) == {}


@table(
    ("after the failure", {"gpu-7": at(70)}, ["gpu-7"]),
    ("before the failure", {"gpu-7": at(50)}, []),
    ("another node", {"gpu-8": at(70)}, []),
)
def test_a_node_is_forgiven_for_what_happened_until_then(case):
    nodes, forgiven = case
    past = PastAttempt(
        end_time=at(61), reason="Error", failure=failure(because="DeviceError", node="gpu-7", time=at(60))
    )
    assert newly_forgiven(of(as_text(nodes)), Status(history=[past], avoided_nodes=["gpu-7"])) == forgiven
