"""What a process loads of the results of a job: only what ranks signed with its own key, or plain values."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from allranks.core.facts import naming
from allranks.errors import AllranksError, ClusterError, RankFailed, ResultError
from allranks.inpod import call_function, plain_value
from allranks.sdk import results
from allranks.sdk.documents import FUNCTION_ANNOTATION
from allranks.sdk.result_key import ResultKey, attach
from allranks.sdk.trust import Trust
from support.builders import UID, manifest

KEY = ResultKey()
OWN, OTHER = Trust(KEY.value), Trust()
LOADED: list[str] = []


def run_code() -> None:
    LOADED.append("code ran")


class Evil:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self) -> Any:
        return run_code, ()


class Model:
    """A value that only a pickle can restore."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model)

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def nothing_is_loaded() -> None:
    LOADED.clear()


class Namespace:
    """A namespace with one job, and the ConfigMaps that somebody wrote."""

    def __init__(self, folder: Path, *, key: ResultKey | None = KEY, attached: bool = True) -> None:
        self.job = manifest(name="demo")
        self.job["metadata"] |= {"uid": UID, "annotations": {FUNCTION_ANNOTATION: "train"}}
        if attached:
            attach(self.job, key)
        self.config_maps: dict[str, Any] = {}
        self.environ = {"ALLRANKS_JOB_UID": UID, "ALLRANKS_ATTEMPT": "0"}
        if attached:
            file = folder / "key"
            if key:
                file.write_bytes(key.value)
            self.environ[call_function.KEY_FILE] = str(file)

    def sent(self, value: Any, rank: int = 0, kind: str = "returned", **environ: str) -> bytes:
        """What a rank sends, as its program makes it."""
        described: dict[str, Any] = {
            "outcome": kind,
            "type": type(value).__name__,
            "message": "",
            "traceback": "at 1\n",
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(Path(call_function.__file__).parent))
            for name in (call_function.KEY_FILE, "ALLRANKS_JOB_UID", "ALLRANKS_ATTEMPT"):
                patch.delenv(name, raising=False)
            for name, text in (self.environ | environ).items():
                patch.setenv(name, text)
            sink = call_function.Reported(False, None, False)
            content = sink._value(described, value, rank) if kind == "returned" else sink._error(described, value)
            return call_function.signed(content, kind, rank)

    def store(self, content: bytes, rank: int = 0, kind: str = "returned") -> None:
        labels = {naming.RANK_LABEL: str(rank)}
        owner = {"controller": True, "uid": UID, "kind": "DistributedTraining", "name": "demo"}
        name = naming.outcome_value_name("demo", UID, 0, rank)
        self.config_maps[name] = {
            "metadata": {
                "name": name, "labels": labels, "ownerReferences": [owner],
                "annotations": {naming.POD_ANNOTATION: "demo-worker-0-0"},
            },
            "binaryData": {naming.OUTCOME_CONTENT: base64.b64encode(content).decode()},
        }  # fmt: skip

    async def get(self, path: str, query: Any = None) -> Any:
        """As a client of the API server."""
        if query:
            return {"items": list(self.config_maps.values())}
        try:
            return self.config_maps[path.rpartition("/")[2]]
        except KeyError:
            raise ClusterError("not found", 404, "NotFound") from None

    def value(self, trust: Trust) -> Any:
        return asyncio.run(results.value(self, self.job, trust))  # type: ignore[arg-type]

    def failure(self, trust: Trust) -> AllranksError:
        failure = {"attempt": 0, "rank": 0, "pod": "demo-worker-0-0", "exitCode": 1, "reason": "Error"}
        job = {**self.job, "status": {"phase": "Failed", "lastFailure": failure}}
        return asyncio.run(results.failure(self, job, trust))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [Model(), {"loss": 0.5}])
def test_the_process_that_submitted_a_job_gets_every_value(tmp_path: Path, value: Any) -> None:
    namespace = Namespace(tmp_path)
    namespace.store(namespace.sent(value))
    assert namespace.value(OWN) == value


def forged_contents(namespace: Namespace) -> dict[str, bytes]:
    plain = plain_value.encoded(1.0)
    assert plain is not None
    described = call_function.line({"outcome": "returned", "type": "float"})
    genuine = namespace.sent(Model())
    return {
        "unsigned": described + pickle.dumps(Evil()),
        "plain without a signature": call_function.line({"outcome": "returned", "format": "plain"}) + plain,
        "another value under the signature": genuine.partition(b"\n")[0] + b"\n" + pickle.dumps(Evil()),
        "the signature of another rank": namespace.sent(Evil(), rank=1),
        "of another attempt": namespace.sent(Evil(), ALLRANKS_ATTEMPT="1"),
        "of another job": namespace.sent(Evil(), ALLRANKS_JOB_UID="other"),
        "of an exception": call_function.signed(described + pickle.dumps(Evil()), "raised", 0),
    }


@pytest.mark.parametrize("case", list(range(7)))
def test_a_value_that_no_rank_of_the_own_job_signed_is_not_used(tmp_path: Path, case: int) -> None:
    namespace = Namespace(tmp_path)
    namespace.store(list(forged_contents(namespace).values())[case])
    with pytest.raises(
        ResultError, match=r"is not used: it has no valid signature of a rank of demo .*allow_pickle=True"
    ):
        namespace.value(OWN)
    assert not LOADED


def test_another_process_gets_plain_values_and_loads_a_pickle_only_on_request(tmp_path: Path) -> None:
    namespace = Namespace(tmp_path)
    namespace.store(namespace.sent(({"loss": [0.5]}, 3)))
    assert namespace.value(OTHER) == ({"loss": [0.5]}, 3)
    namespace.store(namespace.sent(Evil()))
    with pytest.raises(ResultError) as raised:
        namespace.value(OTHER)
    assert str(raised.value) == (
        "the job succeeded, but the Evil that rank 0 returned is not loaded: it is a pickle, which runs code when it "
        "is loaded, and another process submitted demo: call result(allow_pickle=True) if you trust everybody who may "
        "create ConfigMaps in namespace team"
    )
    assert not LOADED
    namespace.value(Trust(allow_pickle=True))
    assert LOADED == ["code ran"]


def test_the_pickle_of_an_older_job_without_a_key_is_not_loaded_and_the_reason_is_said(tmp_path: Path) -> None:
    namespace = Namespace(tmp_path, attached=False)
    content = namespace.sent({"loss": 0.5})
    assert content.endswith(pickle.dumps({"loss": 0.5})[-10:]), "an older client expects a pickle"
    namespace.store(content)
    with pytest.raises(
        ResultError, match=r"the ranks of demo have no key to sign with: call result\(allow_pickle=True\)"
    ):
        namespace.value(OTHER)
    assert namespace.value(Trust(allow_pickle=True)) == {"loss": 0.5}


def test_a_job_without_a_key_returns_plain_values(tmp_path: Path) -> None:
    namespace = Namespace(tmp_path, key=None)
    namespace.store(namespace.sent([0.5]))
    assert namespace.value(OTHER) == [0.5]


def test_the_exception_of_the_own_job_is_loaded_and_any_other_is_only_text(tmp_path: Path) -> None:
    namespace = Namespace(tmp_path)
    namespace.store(namespace.sent(LookupError("no data"), kind="raised"))
    own, other = namespace.failure(OWN), namespace.failure(OTHER)
    assert isinstance(own.__cause__, LookupError)
    assert isinstance(other, RankFailed)
    assert other.__cause__ is None
    assert "at 1" in str(other)
    assert "the exception itself, LookupError, is not loaded: it is a pickle" in str(other)
    namespace.store(call_function.line({"outcome": "raised", "type": "E", "traceback": "at 2"}) + pickle.dumps(Evil()))
    assert "no valid signature" in str(namespace.failure(OWN))
    assert not LOADED


def test_the_key_is_in_the_secret_that_the_pods_mount_and_in_no_text(tmp_path: Path) -> None:
    job = manifest()
    attach(job, KEY)
    [volume] = job["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == KEY.manifest()["metadata"]["name"]
    assert base64.b64decode(KEY.manifest()["data"]["key"]) == KEY.value
    assert os.fsdecode(KEY.value.hex()) not in repr(KEY) + str(job)
