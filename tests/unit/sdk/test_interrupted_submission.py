"""Interrupts at each request of a submission, by an API server that holds the request until the client is interrupted.

The job does not exist, or it exists with its code and the key of its results, which it owns, and a message names it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import allranks
from allranks.cli.main import cli
from allranks.client import submission
from support.builders import manifest
from support.slow_api import CONFIG_MAPS, JOBS, SECRETS, SlowApi, Step

IMAGE = "registry.example.org/train:1"
SECONDS = 300.0


def train() -> None:
    import torch  # type: ignore[import-not-found]

    torch.zeros(1)


class World:
    """A project with a manifest and its code, and an API server that is slow at one step."""

    def __init__(self, folder: Path, api: SlowApi, capsys: Any) -> None:
        self.folder, self.api, self._capsys = folder, api, capsys
        (folder / "src").mkdir()
        (folder / "src" / "train.py").write_text("print(1)\n")
        self.options: dict[str, Any] = {"ranks": 2, "image": IMAGE, "kubeconfig": str(api.kubeconfig)}

    def said(self) -> str:
        """What was printed for people."""
        return str(self._capsys.readouterr().err)

    def is_complete(self) -> bool:
        """Whether the only job owns its code, and a key if it has one. There is none of the three otherwise."""
        if not self.api.jobs:
            assert not self.api.config_maps
            assert not self.api.secrets
            return False
        [job] = self.api.jobs.values()
        for secret in self.api.secrets.values():
            assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
        ([job], [code]) = self.api.jobs.values(), self.api.config_maps.values()
        assert job["spec"]["code"]["configMap"] == code["metadata"]["name"]
        assert [owner["uid"] for owner in code["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
        return True


def submit(world: World) -> None:
    _interrupt_when_reached(world)
    with pytest.raises(KeyboardInterrupt):
        allranks.submit(train, **world.options)


def command(world: World) -> None:
    file = world.folder / "job.yaml"
    second = manifest(name="second")
    file.write_text(yaml.safe_dump_all([manifest(code="src"), second]))
    _interrupt_when_reached(world)
    done = CliRunner().invoke(cli, ["submit", str(file), "--kubeconfig", str(world.api.kubeconfig)])
    assert done.exit_code == 130, done.output
    print(done.stderr, file=sys.stderr)


def _interrupt_when_reached(world: World) -> None:
    def interrupt() -> None:
        assert world.api.reached.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


CALLS = [submit, command]
ADVICE = {
    submit: "train-x7k2p continues: allranks.job('train-x7k2p', namespace='team').result() waits for it",
    command: "distributedtraining.allranks.dev/job created; it continues: allranks logs -f job follows it",
}
STEPS = [
    (Step("POST", CONFIG_MAPS), False),
    (Step("POST", CONFIG_MAPS, "after"), False),
    (Step("POST", JOBS), True),
    (Step("POST", JOBS, "after"), True),
    (Step("PATCH", CONFIG_MAPS), True),
    (Step("GET", CONFIG_MAPS), True),
]


@pytest.fixture(autouse=True)
def python_handles_interrupts():
    """As in a program of its own: other tests leave other handlers, and may run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def slow(tmp_path, capsys, monkeypatch):
    """A world whose server is slow at this step. It is released when the client has been interrupted."""
    servers: list[SlowApi] = []

    def make(step: Step) -> World:
        api = SlowApi(tmp_path, step).__enter__()
        servers.append(api)
        wait = submission._wait

        async def released(task: Any) -> None:
            api.release()
            await wait(task)

        monkeypatch.setattr(submission, "_wait", released)
        return World(tmp_path, api, capsys)

    yield make
    for api in servers:
        api.__exit__()


@pytest.mark.parametrize(("step", "complete"), STEPS, ids=[f"{s.verb} {s.plural} {s.how}" for s, _ in STEPS])
@pytest.mark.parametrize("call", CALLS, ids=[call.__name__ for call in CALLS])
def test_an_interrupted_submission_leaves_a_complete_job_that_is_named_or_nothing(slow, call, step, complete):
    world = slow(step)
    call(world)
    said = world.said()
    assert world.is_complete() == complete, world.api.asked
    assert (ADVICE[call] in said) == complete, said
    if call is command:
        assert said.rstrip().endswith("distributedtraining.allranks.dev/second was not sent")
        assert ("distributedtraining.allranks.dev/job was not stored" in said) != complete
    elif not complete:
        assert said == ""


@pytest.mark.parametrize(
    ("step", "complete"),
    [
        (Step("POST", SECRETS), False),
        (Step("POST", SECRETS, "after"), False),
        (Step("PATCH", SECRETS), True),
        (Step("PATCH", SECRETS, "after"), True),
    ],
)
def test_an_interrupt_while_the_key_of_the_results_is_stored_leaves_a_complete_job_or_nothing(slow, step, complete):
    world = slow(step)
    submit(world)
    assert world.is_complete() == complete, world.api.asked
    assert (ADVICE[submit] in world.said()) == complete


def test_a_user_without_the_right_to_create_secrets_submits_and_reads_why_pickles_need_trust(slow):
    world = slow(Step("POST", SECRETS, "forbidden"))
    job = allranks.submit(train, **world.options)
    assert world.is_complete()
    assert not world.api.secrets
    assert "volumes" not in job.manifest["spec"]["template"]["spec"]
    assert "loads a pickle only with allow_pickle=True: " in world.said()


@pytest.mark.parametrize("call", CALLS, ids=[call.__name__ for call in CALLS])
def test_a_second_interrupt_does_not_wait_and_says_that_the_job_may_exist(slow, call, monkeypatch):
    world = slow(Step("POST", JOBS))

    async def interrupted_again(task: Any) -> None:
        assert not task.done()
        # Not in this function, which must not raise KeyboardInterrupt itself.
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await asyncio.wait([task])

    monkeypatch.setattr(submission, "_wait", interrupted_again)
    call(world)
    said = world.said()
    assert "The job train-* may exist, but no answer arrived: " in said or call is command
    assert "distributedtraining.allranks.dev/job may be stored: no answer arrived" in said or call is not command
    world.api.release()
    assert world.api.config_maps  # the job may need it


def test_a_lost_answer_keeps_the_code_and_says_that_the_job_may_exist(slow):
    world = slow(Step("POST", JOBS, "lost"))
    with pytest.raises(allranks.ClusterError, match=r"closed the connection .* The job train-\* may exist"):
        allranks.submit(train, **world.options)
    assert (len(world.api.jobs), len(world.api.config_maps)) == (1, 1)


def test_the_command_keeps_the_code_of_a_job_whose_answer_is_lost(slow):
    world = slow(Step("POST", JOBS, "lost"))
    file = world.folder / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(code="src")))
    done = CliRunner().invoke(cli, ["submit", str(file), "--kubeconfig", str(world.api.kubeconfig)])
    assert done.exit_code == 1
    assert "distributedtraining.allranks.dev/job: it may be stored nevertheless" in done.stderr
    assert (len(world.api.jobs), len(world.api.config_maps)) == (1, 1)


def test_a_rejected_job_leaves_no_code(slow):
    world = slow(Step("POST", JOBS, "forbidden"))
    with pytest.raises(allranks.ClusterError, match="distributedtrainings: no"):
        allranks.submit(train, **world.options)
    assert not world.is_complete()


def test_a_job_that_cannot_own_its_code_is_named(slow):
    world = slow(Step("PATCH", CONFIG_MAPS, "forbidden"))
    with pytest.raises(
        allranks.ClusterError, match=r"train-x7k2p was created and continues; its code will not be deleted"
    ):
        allranks.submit(train, **world.options)
    assert (len(world.api.jobs), len(world.api.config_maps)) == (1, 1)


def test_an_interrupt_that_comes_after_the_submission_names_the_job(slow, monkeypatch):
    """As if the key was pressed while the result was on its way to the main thread."""
    import concurrent.futures

    world = slow(Step("DELETE", JOBS))
    result = concurrent.futures.Future.result
    asked: list[Any] = []

    def interrupted(self: Any, timeout: float | None = None) -> Any:
        value = result(self, timeout)
        if not asked and threading.current_thread() is threading.main_thread():
            asked.append(value)
            raise KeyboardInterrupt
        return value

    monkeypatch.setattr(concurrent.futures.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        allranks.submit(train, **world.options)
    assert world.is_complete()
    assert ADVICE[submit] in world.said()
