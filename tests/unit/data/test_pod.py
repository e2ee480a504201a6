"""The program of the pods that fetch and upload: their manifests are run as processes, against real servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.api.data import InputStatus, OutputStatus
from allranks.api.status import Status
from allranks.cache_key import cache_key
from allranks.core.facts.data_store import CacheUse, DataStore
from allranks.core.facts.model import Exit, Pod
from allranks.core.transfers import manifests
from allranks.core.transfers import pods as transfers
from allranks.data import pod
from allranks.data.errors import ChangedError, DiskFullError, TemporaryError
from allranks.data.upload import MANIFEST
from allranks.errors import DataError
from support.builders import CLUSTER, UID, at, job, observed
from support.data_servers import Behaviour

STORE = DataStore("allranks-data", "allranks/data:1", 100 << 20)
PLATFORM = replace(CLUSTER, data=STORE)
SECONDS = 300.0


class Claim:
    """The volume of the pods, as a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "inputs").mkdir(parents=True)

    def environ(self, made: dict[str, Any], **more: object) -> dict[str, str]:
        """The variables of the container, with the directories of this machine for the mounts of the pod."""
        [container] = made["spec"]["containers"]
        request = json.loads(next(each["value"] for each in container["env"] if each["name"] == pod.REQUEST)) | more
        for mount in container["volumeMounts"]:
            own = str(self.root / mount.get("subPath", mount["name"]))
            for field in ("cache", "directory", "to", "source"):
                if str(request.get(field)).startswith(mount["mountPath"]):
                    request[field] = request[field].replace(mount["mountPath"], own, 1)
        result = str(self.root / f"{made['metadata']['name']}.json")
        return {**os.environ, "HOME": str(self.root), pod.REQUEST: json.dumps(request), pod.RESULT: result}

    def start(self, made: dict[str, Any], **more: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, *made["spec"]["containers"][0]["command"][1:]]
        return subprocess.Popen(command, env=self.environ(made, **more), stdout=subprocess.DEVNULL)

    def run(self, made: dict[str, Any], **more: object) -> tuple[int, str]:
        """(exit status, termination message)"""
        status = self.start(made, **more).wait(SECONDS)
        return status, self.message(made)

    def message(self, made: dict[str, Any]) -> str:
        return (self.root / f"{made['metadata']['name']}.json").read_text()


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    return Claim(tmp_path / "claim")


def fetching(used: tuple[str, ...] | None = (), **fields: Any) -> dict[str, Any]:
    of = job(inputs=[{"name": "data", "path": "/data", **fields}])
    use = None if used is None else CacheUse(used)
    return manifests.fetch_pod(of, (of.spec.inputs or [])[0], PLATFORM, STORE, use, at(0))


def uploading(**fields: Any) -> dict[str, Any]:
    of = job(outputs=[{"name": "model", "path": "/out", **fields}])
    return manifests.upload_pod(of, (of.spec.outputs or [])[0], Status(), PLATFORM, STORE)


def status_after(message: str, **fields: Any) -> InputStatus:
    """What the operator makes of the end of such a pod."""
    of = job(inputs=[{"name": "data", "path": "/data", **fields}])
    done = Pod("job-fetch-data", "uid", "", -1, -1, phase="Succeeded", exit=Exit(0, at(1), "Completed", message))
    look = observed(of, Status(inputs=[InputStatus(name="data")]), [done], platform=PLATFORM)
    inputs, errors = transfers.received(transfers.with_transfers(look))
    assert errors == []
    return inputs[0]


def test_a_pod_fetches_what_ranks_then_mount(claim: Claim, s3: Any) -> None:
    s3.put_object(Bucket="data", Key="birds/a.csv", Body=b"penguins")
    fields = {"from": "s3://data/birds"}
    code, message = claim.run(fetching(**fields))
    assert code == 0
    ready = status_after(message, **fields)
    assert (ready.state, ready.bytes, ready.cached) == ("Ready", 8, False)
    key = cache_key("s3://data/birds", ready.revision or "")
    assert (claim.root / "inputs" / key / "files" / "a.csv").read_bytes() == b"penguins"
    code, message = claim.run(fetching(**fields))
    assert (code, status_after(message, **fields).cached) == (0, True)


def test_a_pod_looks_up_the_revision_of_an_input_that_is_streamed(claim: Claim, s3: Any) -> None:
    s3.put_object(Bucket="data", Key="birds/a.csv", Body=b"penguins")
    fields = {"from": "s3://data/birds"}
    _, copied = claim.run(fetching(**fields))
    of = job(inputs=[{"name": "data", "mode": "Stream", **fields}])
    made = manifests.fetch_pod(of, (of.spec.inputs or [])[0], PLATFORM, STORE, None, at(0))
    made["metadata"]["name"] = "stream"
    code, message = claim.run(made)
    assert code == 0
    found = json.loads(copied)["fetched"]
    assert json.loads(message)["fetched"] == {"revision": found["revision"], "bytes": 8}
    s3.put_object(Bucket="data", Key="birds/a.csv", Body=b"gulls")
    code, message = claim.run(made, revision=found["revision"])
    assert code == 0
    assert "s3://data/birds: the data was changed: its revision is " in json.loads(message)["error"]


def test_the_log_of_a_pod_says_what_is_tried_again(claim: Claim) -> None:
    made = fetching(**{"from": "http://127.0.0.1:1/big"})
    command = [sys.executable, *made["spec"]["containers"][0]["command"][1:]]
    with subprocess.Popen(command, env=claim.environ(made), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
        finally:
            process.kill()
    assert line.startswith("http://127.0.0.1:1/big: the server cannot be reached: ")
    assert re.search(r"; up to 5 more tries follow, for about \d+ (s|min)$", line.rstrip())


def test_two_pods_fetch_the_same_data_once(claim: Claim, web: Behaviour, url: str) -> None:
    web.files["/big"] = b"x" * 1000
    web.gate = threading.Event()
    fields = {"from": f"{url}/big"}
    made = [fetching(**fields), fetching(**fields)]
    made[1]["metadata"]["name"] = "other"
    running = [claim.start(each) for each in made]
    web.gate.set()
    assert [each.wait(SECONDS) for each in running] == [0, 0]
    found = sorted(bool(status_after(claim.message(each), **fields).cached) for each in made)
    assert found == [False, True]


def test_a_pod_that_was_killed_is_continued_by_the_next_one(claim: Claim, web: Behaviour, url: str) -> None:
    web.files["/big"] = b"x" * 1000
    web.gate = threading.Event()
    made = fetching(**{"from": f"{url}/big"})
    process = claim.start(made)
    try:
        while all(wanted == "bytes=0-0" for _, wanted in web.requests):
            assert process.poll() is None
    finally:
        process.kill()
        process.wait(SECONDS)
    assert list((claim.root / "inputs").glob("*/entry.json")) == []
    web.gate.set()
    code, message = claim.run(made)
    assert (code, json.loads(message)["fetched"]["bytes"]) == (0, 1000)


def test_another_sum_is_an_error_that_no_other_try_changes(claim: Claim, web: Behaviour, url: str) -> None:
    web.files["/f"] = b"penguins"
    code, message = claim.run(fetching(**{"from": f"{url}/f", "sha256": "ab" * 32}))
    assert code == 0
    assert "the SHA-256 of the file is" in json.loads(message)["error"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(TemporaryError("reset"), 1), (ChangedError("changed"), 1), (DiskFullError("full"), 1), (DataError("denied"), 0)],
)
def test_only_an_error_that_may_pass_makes_the_kubelet_start_the_container_again(
    claim: Claim, monkeypatch: pytest.MonkeyPatch, error: DataError, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pod, "fetch", fail)
    environ = claim.environ(fetching(**{"from": "https://h/f"}))
    assert pod.main(environ) == code
    assert json.loads(Path(environ[pod.RESULT]).read_text()) == {"error": str(error)}


@pytest.mark.parametrize(("used", "evicted"), [((), True), (("KEY",), False), (None, False)])
def test_a_fetch_evicts_only_what_no_job_uses(
    claim: Claim, web: Behaviour, url: str, used: tuple[str, ...] | None, evicted: bool
) -> None:
    web.files |= {"/old": b"x" * 100, "/new": b"y" * 100}
    old = {"from": f"{url}/old"}
    _, message = claim.run(fetching(**old))
    key = cache_key(old["from"], status_after(message, **old).revision or "")
    entry = claim.root / "inputs" / key
    os.utime(entry / "entry.json", (1, 1))
    keys = tuple(key if each == "KEY" else each for each in used) if used is not None else None
    code, _ = claim.run(fetching(keys, **{"from": f"{url}/new"}), limit=150)
    assert (code, entry.exists()) == (0, not evicted)


def test_a_fetch_does_not_evict_what_was_used_since_its_pod_was_created(claim: Claim, web: Behaviour, url: str) -> None:
    """Another job may read it whose status the operator had not read."""
    web.files |= {"/old": b"x" * 100, "/new": b"y" * 100}
    _, message = claim.run(fetching(**{"from": f"{url}/old"}))
    key = cache_key(f"{url}/old", status_after(message, **{"from": f"{url}/old"}).revision or "")
    assert claim.run(fetching(**{"from": f"{url}/new"}), limit=150, since=0)[0] == 0
    assert (claim.root / "inputs" / key).exists()


def outputs(claim: Claim, **files: bytes) -> Path:
    directory = claim.root / "outputs" / UID / "model"
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def test_a_pod_uploads_once_even_if_its_result_was_lost(claim: Claim, s3: Any) -> None:
    directory = outputs(claim, weights=b"1234")
    (directory / "sub").mkdir()
    (directory / "sub" / "more").write_bytes(b"56")
    made = uploading(to="s3://data/models/a")
    code, message = claim.run(made)
    assert (code, json.loads(message)) == (0, {"uploaded": {"bytes": 6, "files": 2}})
    assert s3.get_object(Bucket="data", Key="models/a/sub/more")["Body"].read() == b"56"
    assert list(directory.iterdir()) == []  # the claim has room again
    s3.delete_object(Bucket="data", Key="models/a/weights")
    assert claim.run(made) == (code, message)
    names = {each["Key"] for each in s3.list_objects_v2(Bucket="data")["Contents"]}
    assert f"models/a/{MANIFEST}" in names
    assert "models/a/weights" not in names  # nothing was uploaded again


def test_an_upload_that_was_interrupted_continues(claim: Claim, s3: Any) -> None:
    """The journal is beside the directory, so the next pod has it."""
    outputs(claim, a=b"1", b=b"2")
    s3.put_object(Bucket="data", Key="m/a", Body=b"1")
    owner = ["s3://data/m", UID]
    sums = {"a": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"}
    line = {"owner": owner, "name": "a", "identity": [1, sums["a"]]}
    (claim.root / "outputs" / UID / "model.jsonl").write_text(json.dumps(line) + "\n")
    before = s3.head_object(Bucket="data", Key="m/a")["LastModified"]
    code, message = claim.run(uploading(to="s3://data/m"))
    assert (code, json.loads(message)["uploaded"]["files"]) == (0, 2)
    assert s3.head_object(Bucket="data", Key="m/a")["LastModified"] == before
    assert s3.get_object(Bucket="data", Key="m/b")["Body"].read() == b"2"


def saving(step: int, seconds: float) -> dict[str, Any]:
    """The pod that uploads a checkpoint."""
    output = {"name": "model", "path": "/checkpoints", "to": "s3://data/m", "when": "Checkpoint"}
    of = job(outputs=[output], checkpoint={"claim": "own"}, progress={})
    status = Status(outputs=[OutputStatus(name="model", state="Uploading", step=step, checkpoint_time=at(seconds))])
    return manifests.upload_pod(of, (of.spec.outputs or [])[0], status, PLATFORM, STORE)


def test_a_pod_uploads_a_checkpoint_while_the_program_goes_on(claim: Claim, s3: Any) -> None:
    outputs(claim)
    folder = claim.root / "checkpoint" / "checkpoint-100"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"1234")
    (claim.root / "checkpoint" / "checkpoint-200").mkdir()
    (claim.root / "checkpoint" / "checkpoint-200" / "half").write_bytes(b"5")
    code, message = claim.run(saving(100, 60))
    mark = int(at(60).timestamp())
    assert (code, json.loads(message)) == (0, {"uploaded": {"bytes": 4, "files": 1}, "step": 100, "mark": mark})
    keys = {each["Key"] for each in s3.list_objects_v2(Bucket="data")["Contents"]}
    names = ["allranks-manifest.json", "allranks-provenance.json", "checkpoint-100/weights"]
    assert keys == {f"m/step-100/{name}" for name in names}
    assert (folder / "weights").read_bytes() == b"1234"  # the program may need it
    assert list((claim.root / "outputs" / UID / "model").iterdir()) == []
    # Another checkpoint of the same step, of a later attempt.
    (folder / "weights").write_bytes(b"12345")
    assert claim.run(saving(100, 60)) == (code, message)
    code, message = claim.run(saving(100, 600))
    assert (code, json.loads(message)["uploaded"]["bytes"]) == (0, 5)
    body = s3.get_object(Bucket="data", Key="m/step-100/checkpoint-100/weights")["Body"].read()
    assert body == b"12345"


def test_an_upload_of_a_checkpoint_that_was_killed_continues_although_the_program_has_deleted_it(
    claim: Claim, s3: Any
) -> None:
    """The copy is complete, and one of its files is there."""
    directory = outputs(claim)
    mark = int(at(60).timestamp())
    for name in ("a", "b"):
        (directory / name).write_bytes(name.encode())
    directory.with_name("model.copied.json").write_text(json.dumps({"step": 100, "mark": mark}))
    (claim.root / "checkpoint").mkdir()
    s3.put_object(Bucket="data", Key="m/step-100/a", Body=b"a")
    identity = [1, "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"]
    line = {"owner": ["s3://data/m/step-100", UID], "name": "a", "identity": identity}
    (claim.root / "outputs" / UID / "model.jsonl").write_text(json.dumps(line) + "\n")
    before = s3.head_object(Bucket="data", Key="m/step-100/a")["LastModified"]
    code, message = claim.run(saving(100, 60))
    assert (code, json.loads(message)["uploaded"]["files"]) == (0, 2)
    assert s3.head_object(Bucket="data", Key="m/step-100/a")["LastModified"] == before
    assert s3.get_object(Bucket="data", Key=f"m/step-100/{MANIFEST}")


def test_a_pod_copies_to_another_claim(claim: Claim) -> None:
    outputs(claim, weights=b"1234")
    code, _ = claim.run(uploading(to="claim://results/models/a"))
    assert code == 0
    assert (claim.root / "models" / "a" / "weights").read_bytes() == b"1234"


def test_an_output_without_files_is_an_error_that_names_its_destination(claim: Claim) -> None:
    outputs(claim)
    code, message = claim.run(uploading(to="claim://results/a"))
    assert code == 0
    assert json.loads(message)["error"].startswith("claim://results/a: there is nothing to upload")


def test_the_pod_that_checks_a_destination_says_whether_files_can_be_written(claim, s3) -> None:
    for bucket, said in (("data", {"checked": ""}), ("nowhere", "s3://nowhere/m: there is no bucket nowhere")):
        of = job(outputs=[{"name": "model", "path": "/out", "to": f"s3://{bucket}/m"}])
        made = manifests.check_pod(of, (of.spec.outputs or [])[0], PLATFORM, STORE)
        code, message = claim.run(made)
        found = json.loads(message)
        assert code == 0
        assert found == said if bucket == "data" else found["error"].startswith(str(said))
