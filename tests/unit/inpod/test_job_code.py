"""Code that a supervisor fetches before it starts the next attempt: real processes, and a fake operator over HTTP."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allranks.cli.main import cli
from allranks.code.bundle import EMPTY, Bundle
from support.fake_operator import FakeOperator

from .test_supervisor import STOP, ended, operator, quick, start  # noqa: F401 (fixtures)

PRINT = """
import os, model
print("attempt", os.environ["ALLRANKS_ATTEMPT"], "runs", model.NAME, flush=True)
os._exit(7)
"""


def bundle(**files: str) -> Bundle:
    made = EMPTY
    for name, text in files.items():
        made = made.with_file(name.replace("__", "/") + ".py", text.encode())
    return made


FIRST = bundle(train=PRINT, model="NAME = 'first'\n", old__gone="")
SECOND = bundle(train=PRINT, model="NAME = 'later'\n", new__there="")


def serves(code: Bundle, archive: bytes | None = None) -> Any:
    def answer(request: dict[str, Any]) -> tuple[int, Any]:
        if request != {"sha256": code.sha256}:
            return 409, {}
        return 200, {"archive": base64.b64encode(archive or code.archive).decode()}

    return answer


class Pod:
    """Its volumes, as the init container leaves them."""

    def __init__(self, helpers: Path, folder: Path) -> None:
        self.helpers, self.code = Path(shutil.copytree(helpers, folder / "helpers")), folder / "workspace"
        (folder / "code.tar.gz").write_bytes(FIRST.archive)
        words = ["--code", str(folder / "code.tar.gz"), "--sha256", FIRST.sha256, "--to", str(self.code)]
        patient = (self.helpers / "order_channel.py").read_text()
        done = CliRunner().invoke(cli, ["inject", str(self.helpers), *words])
        assert done.exit_code == 0, done.output
        (self.helpers / "order_channel.py").write_text(patient)

    @property
    def files(self) -> set[str]:
        return {str(path.relative_to(self.code)) for path in self.code.rglob("*.py")}


@pytest.fixture
def pod(quick: Path, tmp_path: Path) -> Pod:  # noqa: F811
    return Pod(quick, tmp_path)


def begin(start: Any, operator: FakeOperator, pod: Pod) -> subprocess.Popen[bytes]:  # noqa: F811
    """Attempt 2 has ended, and no process is left."""
    process: subprocess.Popen[bytes] = start(sys.executable, str(pod.code / "train.py"), folder=pod.helpers)
    assert operator.wait(state="Ended")["code"] == FIRST.sha256
    operator.say(STOP)
    operator.wait(state="Down")
    return process


def start_with(code: Bundle) -> dict[str, Any]:
    return {"order": "Start", "attempt": 3, "env": {"ALLRANKS_ATTEMPT": "3"}, "code": code.sha256}


def test_the_next_attempt_runs_the_code_that_the_operator_has(start, operator, pod):  # noqa: F811
    operator.code = serves(SECOND)
    (pod.code / "result.txt").write_text("of the program")
    (pod.code / "old" / "data").mkdir()
    (pod.code / "old" / "data" / "kept").write_text("x")
    process = begin(start, operator, pod)
    operator.say(start_with(SECOND))
    state = operator.wait(state="Ended", attempt=3)
    assert state["code"] == SECOND.sha256
    assert pod.files == {"train.py", "model.py", "new/there.py"}
    assert (pod.code / "result.txt").exists()
    assert (pod.code / "old" / "data" / "kept").exists()
    assert not list(pod.code.glob(".allranks*"))
    operator.say({"order": "Exit"})
    assert ended(process)[1] == b"attempt 2 runs first\nattempt 3 runs later\n"


def test_code_with_another_hash_never_runs_and_nor_does_the_old_code(start, operator, pod):  # noqa: F811
    operator.code = serves(SECOND, FIRST.archive)
    process = begin(start, operator, pod)
    operator.say(start_with(SECOND))
    code, output, errors = ended(process)
    assert (code, output) == (7, b"attempt 2 runs first\n")
    assert f"allranks: code {SECOND.sha256[:12]}: the code in the ConfigMap is not".encode() in errors
    assert hashlib.sha256(FIRST.tar).hexdigest() in errors.decode()


def test_a_pod_ends_with_the_reason_if_the_operator_has_no_such_code(start, operator, pod):  # noqa: F811
    operator.code = lambda request: (400, {"error": "the ConfigMap code-b does not exist"})
    process = begin(start, operator, pod)
    operator.say(start_with(SECOND))
    code, output, errors = ended(process)
    assert (code, output) == (7, b"attempt 2 runs first\n")
    assert b"the ConfigMap code-b does not exist" in errors


def test_a_pod_waits_for_the_next_order_if_the_job_has_newer_code(start, operator, pod):  # noqa: F811
    asked = []
    operator.code = lambda request: (asked.append(request), (409, {}))[1]
    process = begin(start, operator, pod)
    operator.say(start_with(SECOND))
    operator.wait_for_polls(len(operator.states) + 2)
    assert asked
    assert process.poll() is None
    operator.code = serves(SECOND)
    operator.say({**STOP, "attempt": 4})
    operator.wait(state="Down", attempt=4)
    operator.say({**start_with(SECOND), "attempt": 4, "env": {"ALLRANKS_ATTEMPT": "4"}})
    operator.wait(state="Ended", attempt=4)


def test_code_is_fetched_again_after_an_answer_that_says_later(start, operator, pod):  # noqa: F811
    answers = [(503, {}), (500, {})]
    served = serves(SECOND)
    operator.code = lambda request: answers.pop(0) if answers else served(request)
    begin(start, operator, pod)
    operator.say(start_with(SECOND))
    assert operator.wait(state="Ended", attempt=3)["code"] == SECOND.sha256
    assert answers == []


def test_a_pod_without_a_record_of_its_code_says_that_it_cannot_replace_it(start, operator, quick):  # noqa: F811
    process = start("false", folder=quick)
    assert operator.wait(state="Ended")["code"] is None
    operator.say(STOP)
    operator.wait(state="Down")
    operator.say(start_with(SECOND))
    assert ended(process)[0] == 1
