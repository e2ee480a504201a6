"""One MLflow run for a job, with a module that stands for MLflow: its client as far as the helper uses it."""

from __future__ import annotations

import os
import re
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from allranks.report import mlflow as helper


class Server:
    """Runs with their tags, in the order of their creation."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.looks = 0

    def create_run(self, experiment: str, tags: dict[str, str], run_name: str | None) -> Any:
        info = SimpleNamespace(run_id=f"run-{len(self.runs)}", experiment=experiment, name=run_name)
        self.runs.append(SimpleNamespace(info=info, tags=tags))
        return self.runs[-1]

    def search_runs(self, experiments: list[str], query: str, max_results: int, order_by: list[str]) -> list[Any]:
        match = re.fullmatch(r"tags\.`(\S+)` = '(\S+)'", query)
        assert match
        assert order_by == ["start_time ASC"]
        chosen = [run for run in self.runs if run.tags.get(match[1]) == match[2] and run.info.experiment in experiments]
        return chosen[:max_results]

    def get_experiment_by_name(self, name: str) -> Any:
        self.looks += 1
        return name if self.looks > 2 else None


class Client:
    """What `JobRun` extends. An earlier attempt has logged three steps of `loss`, and a parameter."""

    def __init__(self) -> None:
        self.logged: list[Any] = []

    def log_metric(self, run_id: str, key: str, value: float, timestamp: int | None, step: int | None) -> None:
        self.logged.append((run_id, key, value, step))

    def log_param(self, run_id: str, key: str, value: Any) -> Any:
        self.logged.append((run_id, key, value))
        return value

    def log_batch(
        self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), synchronous: bool | None = None
    ) -> None:
        self.logged += [(run_id, item.key, item.value, item.step) for item in metrics]
        self.logged += [(run_id, item.key, item.value) for item in params]
        self.logged += [(run_id, "tag", item.key, item.value) for item in tags]

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [SimpleNamespace(step=step, timestamp=1) for step in (1, 2, 3) if key == "loss"]

    def get_run(self, run_id: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(params={"lr": "0.1"}))


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client in the second attempt, whose program has started the run of the job."""
    kind = type("Client", (Client,), {})
    monkeypatch.setenv("MLFLOW_RUN_ID", "uid-1")
    monkeypatch.setenv("ALLRANKS_ATTEMPT", "1")
    entities = ModuleType("mlflow.entities")
    entities.RunTag = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    fluent = SimpleNamespace(start_run=lambda: None, set_experiment=str, MlflowClient=kind)
    helper.share_run(fluent)
    fluent.start_run()
    monkeypatch.delenv("MLFLOW_RUN_ID")
    return kind()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server, mlflow, fluent = Server(), ModuleType("mlflow"), ModuleType("mlflow.tracking.fluent")
    mlflow.MlflowClient = lambda: server  # type: ignore[attr-defined]
    fluent._get_experiment_id = lambda: "7"  # type: ignore[attr-defined]
    for name, module in {"mlflow": mlflow, "mlflow.tracking": ModuleType("tracking"), fluent.__name__: fluent}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(helper, "SEARCH_SECONDS", 0.01)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALLRANKS_JOB", "penguins")
    monkeypatch.setenv("ALLRANKS_JOB_UID", "uid-1")
    return server


def test_all_ranks_and_attempts_have_the_run_that_rank_0_creates(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    answers: list[str | None] = []
    waiting = threading.Thread(target=lambda: answers.append(helper.job_run_id(60)))
    waiting.start()
    server.create_run("7", {helper.TAG: "uid-2"}, "another job")
    server.create_run("8", {helper.TAG: "uid-1"}, "another experiment")
    run = server.create_run("7", {helper.TAG: "uid-1"}, "penguins")
    waiting.join()
    monkeypatch.setenv("RANK", "0")
    assert [*answers, helper.job_run_id()] == [run.info.run_id] * 2
    assert len(server.runs) == 3


def test_rank_0_creates_one_run_with_the_name_of_the_job(server: Server):
    assert helper.job_run_id() == helper.job_run_id() == "run-0"
    [run] = server.runs
    assert (run.info.name, run.tags) == ("penguins", {helper.TAG: "uid-1"})


def test_a_run_that_rank_0_does_not_create_is_said(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(TimeoutError, match=r"rank 0 has created no MLflow run with the tag allranks\.job_uid"):
        helper.job_run_id(timeout=0)


def test_outside_a_job_mlflow_begins_a_run_of_its_own(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALLRANKS_JOB_UID")
    assert (helper.job_run_id(), server.runs) == (None, [])


@pytest.mark.parametrize("run_id", ["uid-1", "a run of the user", None])
def test_a_program_that_is_not_changed_continues_the_run_of_the_job_if_the_variable_has_its_uid(
    server: Server, monkeypatch: pytest.MonkeyPatch, run_id: str | None
):
    if run_id:
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    started: list[str | None] = []

    def start_run() -> None:  # MLflow takes the variable once
        started.append(os.environ.pop("MLFLOW_RUN_ID", None))

    fluent = SimpleNamespace(start_run=start_run, set_experiment=lambda name: name, MlflowClient=Client)
    helper.share_run(fluent)
    fluent.start_run()
    fluent.start_run()
    assert started == ["run-0" if run_id == "uid-1" else run_id, None]
    assert len(server.runs) == (run_id == "uid-1")


@pytest.mark.parametrize(("rank", "looks"), [("0", 0), ("1", 3)])
def test_only_rank_0_creates_the_experiment(server: Server, monkeypatch: pytest.MonkeyPatch, rank: str, looks: int):
    monkeypatch.setenv("MLFLOW_RUN_ID", "uid-1")
    monkeypatch.setenv("RANK", rank)
    fluent = SimpleNamespace(
        start_run=lambda: None, set_experiment=lambda experiment_name: experiment_name, MlflowClient=Client
    )
    helper.share_run(fluent)
    assert fluent.set_experiment(experiment_name="penguins") == "penguins"
    assert server.looks == looks


def metrics(*steps: int) -> list[Any]:
    return [SimpleNamespace(key="loss", value=0.5, step=step) for step in steps]


def test_steps_that_an_earlier_attempt_has_logged_are_not_logged_again(client: Any):
    for step in (2, 3, 4, 4):
        client.log_metric("run-0", "loss", 0.5, None, step)
    client.log_batch("run-0", metrics(3, 5))
    assert client.logged == [("run-0", "loss", 0.5, step) for step in (4, 4, 5)]


def test_values_without_a_step_other_metrics_and_other_runs_are_logged(client: Any):
    client.log_metric("run-0", "loss", 0.5, None, 0)
    client.log_metric("run-0", "accuracy", 0.5, None, 1)
    client.log_metric("run-9", "loss", 0.5, None, 1)
    assert len(client.logged) == 3


@pytest.mark.parametrize(("rank", "tag"), [("0", "lr.attempt-1"), ("2", "lr.attempt-1.rank-2")])
def test_the_second_value_of_a_parameter_is_a_tag(client: Any, monkeypatch: pytest.MonkeyPatch, rank: str, tag: str):
    monkeypatch.setenv("RANK", rank)
    assert client.log_param("run-0", "lr", 0.2) == 0.2
    assert client.log_param("run-0", "lr", 0.1) == 0.1
    client.log_batch("run-0", params=[SimpleNamespace(key=key, value="7") for key in ("lr", "seed")])
    assert client.logged == [
        ("run-0", "tag", tag, "0.2"),
        ("run-0", "lr", 0.1),
        ("run-0", "seed", "7"),
        ("run-0", "tag", tag, "7"),
    ]


def test_in_the_first_attempt_of_rank_0_mlflow_refuses_a_second_value_itself(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ALLRANKS_ATTEMPT", "0")
    client.log_param("run-0", "lr", 0.2)
    assert client.logged == [("run-0", "lr", 0.2)]
