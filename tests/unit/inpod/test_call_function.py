"""A function in a pod: what it returns or raises reaches the ConfigMaps of the job, through the real report server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from allranks import pod_bundle
from allranks.errors import CannotRun, RankFailed, ResultError
from allranks.inpod import call_function
from allranks.inpod.call_function import UNUSABLE
from allranks.operator.outcome_store import OutcomeStore
from allranks.sdk import outcome, payload
from allranks.telemetry.connections import Limits
from allranks.telemetry.messages import Answer, ReportSource
from allranks.telemetry.server import Server
from support.config_maps import ConfigMaps

SENDER = ReportSource(("team", "demo"), "0123456789", "demo-worker-0-0", "pod-0", "worker", 0, 0, 0, "node-a")
FAST = Limits(hold_seconds=0.0, wait_seconds=0.0, lingering_seconds=0.1)


class Operator:
    """The report server and the store of an operator, on a loop in a thread."""

    def __init__(self) -> None:
        self.api, self.refusals = ConfigMaps(), 0
        """How many messages are refused with 503 first."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._start())

    async def _start(self) -> None:
        async def identify(token: str) -> ReportSource | None:
            return SENDER if token == "right" else None

        store = OutcomeStore(self.api, lambda _: 0)  # type: ignore[arg-type]

        async def receive(sender: ReportSource, body: bytes) -> Answer:
            if self.refusals:
                self.refusals -= 1
                return Answer(503, {"error": "not the leader"}, 0.1)
            return await store.receive(sender, body)

        self._server = Server(identify, lambda *_: Answer(500, {}), outcome=receive, address="127.0.0.1", limits=FAST)
        await self._server.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}/v1/report"

    def stop(self) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def stored(self, name: str) -> outcome.Stored | None:
        content = self.api.items[f"demo-01234567-{name}"]["binaryData"]["outcome"]
        return outcome.read_content(base64.b64decode(content))

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


@pytest.fixture
def operator() -> Iterator[Operator]:
    running = Operator()
    yield running
    running.stop()


@pytest.fixture
def pod(operator: Operator, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls a function as the program of a rank, with nothing but the helper files of a pod."""
    pod_bundle.copy(tmp_path / "allranks")
    (tmp_path / "token").write_text("right")
    helper = str(tmp_path / "allranks" / "call_function.py")

    def call(
        function: Any, *args: Any, data: bytes = b"", every_rank: bool = False, more: Sequence[str] = (), **env: str
    ) -> Any:
        file = tmp_path / "code" / ".allranks" / "function.pickle"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data or payload.dumps(function, args, {}))
        for name, content in payload.cloudpickle_files().items():
            module = file.parent / "python" / name
            module.parent.mkdir(parents=True, exist_ok=True)
            module.write_bytes(content)
        variables = {
            "PATH": os.environ["PATH"],
            "ALLRANKS_REPORT_URL": operator.url,
            "ALLRANKS_REPORT_TOKEN_FILE": str(tmp_path / "token"),
        }
        return subprocess.run(
            # Without site-packages: an image may not have cloudpickle.
            [sys.executable, "-S", helper, str(file), "--report", *(["--every-rank"] if every_rank else []), *more],
            env={name: value for name, value in (variables | env).items() if value},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return call


def double(value: Any) -> Any:
    return 2 * value


def test_the_value_of_rank_0_arrives_and_those_of_the_others_are_not_sent(operator: Operator, pod: Any) -> None:
    assert pod(double, 21).returncode == 0
    assert pod(double, 22, RANK="1").returncode == 0
    assert list(operator.api.items) == ["demo-01234567-value-0-0"]
    assert outcome.value_of(operator.stored("value-0-0")) == 42
    assert pod(double, 22, RANK="1", every_rank=True).returncode == 0
    assert outcome.value_of(operator.stored("value-0-1"), 1) == 44


def test_a_value_of_a_megabyte_arrives_in_parts_also_if_the_operator_is_away_at_first(
    operator: Operator, pod: Any
) -> None:
    operator.refusals = 2
    done = pod(double, b"abc" * 170_000)
    assert (done.returncode, done.stderr) == (0, "")
    assert outcome.value_of(operator.stored("value-0-0")) == b"abc" * 340_000


def test_an_exception_arrives_with_the_lines_of_a_file_that_the_pod_does_not_have(
    operator: Operator, pod: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "only_here.py"
    module.write_text("def fails(what):\n    raise LookupError(f'no {what}')  # a comment\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    data = payload.dumps(only_here.fails, ("data",), {})
    module.unlink()
    done = pod(None, data=data)
    assert done.returncode == 1
    assert "LookupError: no data" in done.stderr
    failure = {"attempt": 0, "rank": 0, "pod": "demo-worker-0-0", "node": "node-a", "exitCode": 1, "reason": "Error"}
    job = {"metadata": {"name": "demo"}, "status": {"phase": "Failed", "lastFailure": failure}}
    error = outcome.failure_of(job, operator.stored("error-0-0-0"))
    assert isinstance(error, RankFailed)
    assert (error.rank, error.node, error.exit_code) == (0, "node-a", 1)
    assert isinstance(error.__cause__, LookupError)
    assert "raise LookupError(f'no {what}')  # a comment" in error.traceback


def test_a_value_that_is_too_large_is_left_with_the_checkpoints(operator: Operator, pod: Any, tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    where = {"ALLRANKS_JOB": "demo", "ALLRANKS_JOB_UID": "0123456789", "ALLRANKS_CHECKPOINT_DIR": str(place)}
    assert pod(double, b"x" * 600_000, **where).returncode == 0
    file = place / "results" / "demo-01234567" / "attempt-0" / "rank-0.pickle"
    with pytest.raises(ResultError, match=r"returned a bytes of 1,200,0\d\d bytes, and at most 1,048,576 are sent"):
        outcome.value_of(operator.stored("value-0-0"))
    with pytest.raises(ResultError, match=rf"it is the pickle {file} in the place .*\(claim penguins\)"):
        outcome.value_of(operator.stored("value-0-0"), claim="claim penguins")
    assert file.stat().st_size > 1_200_000


def test_a_value_that_is_too_large_without_checkpoints_is_a_clear_error(operator: Operator, pod: Any) -> None:
    assert pod(double, b"x" * 600_000).returncode == 0
    with pytest.raises(ResultError, match="save it in the function, and return its path; with checkpoint= or outputs="):
        outcome.value_of(operator.stored("value-0-0"))


def test_a_value_that_is_too_large_is_left_in_the_output_of_a_job_without_checkpoints(
    operator: Operator, pod: Any, tmp_path: Path
) -> None:
    place = tmp_path / "outputs" / "model"
    where = {"ALLRANKS_JOB": "demo", "ALLRANKS_JOB_UID": "0123456789"}
    assert pod(double, b"x" * 600_000, more=["--output", str(place)], **where).returncode == 0
    file = place / "results" / "demo-01234567" / "attempt-0" / "rank-0.pickle"
    stored = operator.stored("value-0-0")
    assert stored is not None
    assert stored.described["file"] == str(file)
    assert stored.described["inOutput"] == "results/demo-01234567/attempt-0/rank-0.pickle"
    assert stored.described["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    checkpoints = {"ALLRANKS_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    assert pod(double, b"y" * 600_000, more=["--output", str(place)], **where, **checkpoints).returncode == 0
    assert (tmp_path / "checkpoints" / "results").is_dir()
    assert b"y" not in file.read_bytes()[-1000:]


def test_an_output_for_results_has_values_of_every_size(operator: Operator, pod: Any, tmp_path: Path) -> None:
    assert pod(double, 21, more=["--output", str(tmp_path / "out"), "--keep"]).returncode == 0
    assert outcome.value_of(operator.stored("value-0-0")) == 42
    [file] = (tmp_path / "out").rglob("*.pickle")
    assert pickle.loads(file.read_bytes()) == 42


def test_an_output_that_cannot_be_written_is_named(operator: Operator, pod: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert pod(double, b"x" * 600_000, more=["--output", str(tmp_path / "file")]).returncode == 0
    with pytest.raises(ResultError, match="could not be written to the place of the job's checkpoints or outputs: "):
        outcome.value_of(operator.stored("value-0-0"))


def test_another_version_of_python_ends_the_rank_before_the_function_starts(operator: Operator, pod: Any) -> None:
    done = pod(None, data=sent_by("3.7"))
    assert done.returncode == UNUSABLE
    assert "allranks: the function was sent by Python 3.7, and the ranks run Python" in done.stderr
    job = {"metadata": {"name": "demo"}, "status": {"phase": "Failed", "lastFailure": {"pod": "demo-worker-0-0"}}}
    error = outcome.failure_of(job, operator.stored("error-0-0-0"))
    assert isinstance(error, CannotRun)
    assert "use the same version on both sides" in str(error)


def sent_by(version: str) -> bytes:
    header, _, pickled = payload.dumps(double, (1,), {}).partition(b"\n")
    return json.dumps({**json.loads(header), "python": version}).encode() + b"\n" + pickled


def script_for(interpreter: str) -> str:
    start = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return f"#!{interpreter}\nimport os, sys\nprint('launched', flush=True)\n{start}\n"


OTHER = "#!/bin/sh\necho launched\nexec " + sys.executable + ' "$@"\n'
THIS_VERSION = "{}.{}".format(*sys.version_info[:2])


@pytest.fixture
def launched(operator: Operator, tmp_path: Path) -> Callable[[str, bytes], subprocess.CompletedProcess[str]]:
    """Starts a function as the helper of a pod does, with a launcher that prints a line."""
    pod_bundle.copy(tmp_path / "allranks")

    def start(launcher: str, data: bytes) -> subprocess.CompletedProcess[str]:
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "launch"
        program.write_text(launcher)
        program.chmod(0o755)
        file = tmp_path / "function.pickle"
        file.write_bytes(data)
        (tmp_path / "token").write_text("right")
        helpers = tmp_path / "allranks"
        return subprocess.run(
            [sys.executable, helpers / "watch.py", "--", "launch", helpers / "call_function.py", file, "--report"],
            env={
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "ALLRANKS_REPORT_URL": operator.url,
                "ALLRANKS_REPORT_TOKEN_FILE": str(tmp_path / "token"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return start


def test_a_function_of_another_version_ends_before_its_launcher_starts(operator: Operator, launched: Any) -> None:
    """The launcher would wait for the pods that still start."""
    done = launched(script_for(sys.executable), sent_by("3.7"))
    assert (done.returncode, done.stdout) == (UNUSABLE, "")
    assert done.stderr.count("the function was sent by Python 3.7, and the ranks run Python") == 1
    stored = operator.stored("error-0-0-0")
    assert stored
    assert stored.described["outcome"] == "unusable"


def test_a_launcher_that_may_run_another_python_is_started(launched: Any) -> None:
    done = launched(OTHER, sent_by("3.7"))
    assert (done.returncode, done.stdout) == (UNUSABLE, "launched\n")
    assert "use the same version on both sides, either an image with Python 3.7, or Python" in done.stderr


@pytest.mark.parametrize("data", [sent_by(THIS_VERSION), b"", b"no header", b"[]\n", b"{}\n"])
def test_the_launcher_is_started_in_every_other_case(launched: Any, data: bytes) -> None:
    done = launched(script_for(sys.executable), data)
    assert done.stdout == "launched\n"
    assert (done.returncode == 0) == (data == sent_by(THIS_VERSION))


WITHOUT_PAYLOAD = [[], ["true"], ["call_function.py"], ["torchrun", "call_function.py"]]
WITHOUT_PAYLOAD += [["python3", "call_function.py", "no-such-file"]]


@pytest.mark.parametrize("words", WITHOUT_PAYLOAD)
def test_a_command_without_a_payload_is_left_as_it_is(words: list[str]) -> None:
    assert call_function.without_launcher(words) == words


def test_a_traceback_of_any_length_is_stored_with_its_end(operator: Operator, pod: Any) -> None:
    def fails() -> None:
        raise ValueError("\N{GRINNING FACE}" * 100_000 + "the end")

    assert pod(fails).returncode == 1
    stored = operator.stored("error-0-0-0")
    assert stored
    assert stored.described["traceback"].rstrip().endswith("the end")


def test_without_a_report_server_the_training_succeeds_and_says_what_is_missing(pod: Any) -> None:
    done = pod(double, 1, ALLRANKS_REPORT_URL="")
    assert done.returncode == 0
    assert "what rank 0 returned could not be sent: the operator of this cluster receives no reports" in done.stderr


def test_what_the_operator_does_not_store_is_in_the_log(operator: Operator, pod: Any) -> None:
    from allranks.kube.errors import Refused

    operator.api.errors = [Refused("exceeded quota", 403, "Forbidden")]
    done = pod(double, 1)
    assert done.returncode == 0
    assert "could not be sent: the API server rejected its ConfigMap: exceeded quota" in done.stderr
