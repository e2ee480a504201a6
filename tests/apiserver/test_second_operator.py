"""Two operators that serve the same namespace, as after a mistake in the values of two releases."""

from __future__ import annotations

import asyncio
import random

import pytest

from allranks.api.job import KIND
from allranks.operator.status_writer import StatusWriter
from support import live
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job, phase


def test_two_operators_say_so_and_do_not_fight_over_pods(
    control_plane: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = StatusWriter.write

    async def write_later(writer: StatusWriter, *arguments: object) -> bool:
        await asyncio.sleep(random.uniform(0.0, 0.1))  # otherwise the same operator may be the faster one each time
        return await write(writer, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StatusWriter, "write", write_later)
    connection, api = live.connection(control_plane), control_plane.api
    counts = {"maxRestarts": 8, "backoffSeconds": 0, "rules": [{"exitCodes": [3], "action": "Restart"}]}
    with (
        live.operator(connection, namespace),
        live.operator(connection, namespace, helper_image="example.org/another:2", disruption_budgets=True),
        live.kubelet(connection, Program(seconds=0.5, code=3), namespace=namespace),
    ):
        names: list[str] = []

        def contested() -> bool:
            """Begin further jobs when all have ended, because one operator may have been the faster one each time."""
            if any(event["reason"] == "StatusContested" for event in api.list("Event", namespace)):
                return True
            if all(phase(control_plane, namespace, name) == "Failed" for name in names):
                for number in range(len(names), len(names) + 4):
                    names.append(f"demo-{number}")
                    api.create(job(names[-1], restart=counts), namespace)
            return False

        eventually(contested)
        eventually(lambda: all(phase(control_plane, namespace, name) == "Failed" for name in names))
        for name in names:
            status = api.get(KIND, namespace, name)["status"]
            assert status["attempt"] == 8, "each failure was decided once"
            assert status["restarts"]["counted"] == 8
            assert [past["attempt"] for past in status["history"]] == list(range(9))
    said = [
        text for text in caplog.messages if f"someone else writes the status of jobs in namespace {namespace}" in text
    ]
    assert 1 <= len(said) <= 2, "once for each operator"
    assert not [record for record in caplog.records if record.exc_info], "and nothing raises"
