"""Settings from the environment and from flags, and messages about invalid ones."""

from __future__ import annotations

import json
import logging
import queue
from dataclasses import dataclass

import pytest
from click.testing import CliRunner

from allranks.cli.commands.operator import operator
from allranks.operator import log_config
from allranks.operator.settings import Settings


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLRANKS_NAMESPACES", "a, b,")
    monkeypatch.setenv("ALLRANKS_LEADER_ELECTION", "true")
    monkeypatch.setenv("ALLRANKS_PORT", "9090")
    settings = Settings()
    assert (settings.namespaces, settings.leader_election, settings.port) == (("a", "b"), True, 9090)


def test_a_flag_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLRANKS_PORT", "9090")
    assert Settings(port=1).port == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "x"], "port (--port or ALLRANKS_PORT): Input should be a valid integer"),
        (
            ["--lease-seconds", "1"],
            "lease_seconds (--lease-seconds or ALLRANKS_LEASE_SECONDS): Input should be greater",
        ),
        (["--log-level", "loud"], "Invalid value for '--log-level'"),
        (["--kubeconfig", "/nowhere/config"], "kubeconfig /nowhere/config: there is no such file"),
    ],
)
def test_an_invalid_setting_is_reported_in_one_sentence(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(operator, arguments)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_every_setting_has_a_flag_with_its_description() -> None:
    text = " ".join(CliRunner().invoke(operator, ["--help"], terminal_width=400).output.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert " ".join(str(field.description).split())[:60] in text, name


@pytest.fixture
def quiet_root():
    """Restores the root logger."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    for name in ("kopf", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.usefixtures("quiet_root")
def test_a_json_log_line_contains_the_job_and_its_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    log_config.configure("info", "json")
    logging.getLogger("allranks.jobs").warning("message %s", "one", extra={"job": "ns/demo", "attempt": 2})
    line = json.loads(capsys.readouterr().err)
    assert {key: line[key] for key in ("level", "logger", "message", "job", "attempt")} == {
        "level": "WARNING",
        "logger": "allranks.jobs",
        "message": "message one",
        "job": "ns/demo",
        "attempt": 2,
    }


@pytest.mark.usefixtures("quiet_root")
def test_a_record_of_a_library_with_objects_that_are_no_json_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass
    class Settings:
        queue: object

    log_config.configure("debug", "json")
    logging.getLogger("some.library").debug("Handler is invoked.", extra={"settings": Settings(queue.SimpleQueue())})
    assert json.loads(capsys.readouterr().err)["message"] == "Handler is invoked."


@pytest.mark.usefixtures("quiet_root")
def test_text_logs_contain_the_job_and_its_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    log_config.configure("debug", "text")
    logging.getLogger("allranks.jobs").info("text", extra={"job": "ns/demo", "attempt": 2})
    assert capsys.readouterr().err.rstrip().endswith("info    text [job=ns/demo attempt=2]")
