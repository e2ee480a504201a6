"""The init containers that fetch inputs in the pods of ranks: their manifests are run, with a directory for a node."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.api.data import InputStatus
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts.data_store import DataStore, Evictable
from allranks.core.facts.model import Exit, Pod
from allranks.core.objects import pods
from allranks.core.transfers import input_cache
from allranks.core.transfers import manifests as transfers
from allranks.core.transfers.pods import received, with_transfers
from allranks.data import pod
from allranks.data.errors import DiskFullError, TemporaryError
from allranks.data.fetch import Result
from allranks.errors import DataError
from support.builders import CLUSTER, at, job, observed
from support.data_servers import Behaviour
from unit.core.test_code_in_pods import trainer

SECONDS = 300.0
ON_NODES = replace(CLUSTER, data=DataStore("", "allranks/data:1", 100 << 20, "/nvme"))


def wants(**fields: Any) -> Job:
    return job(inputs=[{"name": "data", "path": "/data", **fields}])


class Machines:
    """The nodes of a cluster, as directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started = 0

    def environ(self, container: dict[str, Any], node: str, **more: object) -> tuple[dict[str, str], Path]:
        """(variables of the container, file of its termination message)"""
        request = json.loads(next(each["value"] for each in container["env"] if each["name"] == pod.REQUEST))
        request |= more
        if "cache" in request:
            request["cache"] = str(self.root / node)
        self.started += 1
        result = self.root / f"result-{self.started}.json"
        text = json.dumps(request)
        return {**os.environ, "HOME": str(self.root), pod.REQUEST: text, pod.RESULT: str(result)}, result

    def start(self, container: dict[str, Any], node: str, **more: object) -> tuple[subprocess.Popen[bytes], Path]:
        environ, result = self.environ(container, node, **more)
        command = [sys.executable, *container["command"][1:]]
        return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL), result

    def run(self, container: dict[str, Any], node: str = "a", **more: object) -> tuple[int, Any]:
        """(exit status, what the container said), in this process."""
        environ, result = self.environ(container, node, **more)
        return pod.main(environ), json.loads(result.read_text())

    def found(self, of: Job) -> Status:
        """The status after the pod that looks the revision up."""
        [each] = of.spec.inputs or ()
        store = ON_NODES.data
        assert store
        [container] = transfers.fetch_pod(of, each, ON_NODES, store, None, at(0))["spec"]["containers"]
        code, said = self.run(container)
        assert code == 0
        done = Pod("job-fetch-data", "u", "", -1, -1, phase="Succeeded", exit=Exit(0, at(1), "", json.dumps(said)))
        before = Status(inputs=[InputStatus(name="data")])
        inputs, errors = received(with_transfers(observed(of, before, [done], platform=ON_NODES)))
        assert errors == []
        assert inputs[0].location == "Node"
        return Status(inputs=inputs)

    def files(self, of: Job, status: Status, node: str) -> Path:
        """What the training container mounts."""
        made = pods.objects(of, status, ON_NODES).pods[0]
        [mount] = [each for each in trainer(made)["volumeMounts"] if each["name"] == input_cache.VOLUME]
        return self.root / node / str(mount["subPath"])


def init(of: Job, status: Status, evictable: Evictable | None = None) -> dict[str, Any]:
    store = ON_NODES.data
    assert store
    platform = replace(ON_NODES, data=replace(store, evictable=evictable))
    [container] = pods.objects(of, status, platform).pods[0]["spec"]["initContainers"]
    return dict(container)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_the_pods_of_a_node_fetch_once_and_those_of_another_node_once_more(
    machines: Machines, web: Behaviour, url: str
) -> None:
    web.files["/big"] = b"x" * 1000
    of = wants(**{"from": f"{url}/big"})
    status = machines.found(of)
    web.gate = threading.Event()
    running = [machines.start(init(of, status), node) for node in ("a", "a", "a", "b", "b")]
    web.gate.set()
    assert [process.wait(SECONDS) for process, _ in running] == [0] * 5
    cached = [json.loads(result.read_text())["fetched"]["cached"] for _, result in running]
    assert (sorted(cached[:3]), sorted(cached[3:])) == ([False, True, True], [False, True])
    assert [(machines.files(of, status, node) / "big").read_bytes() for node in "ab"] == [b"x" * 1000] * 2
    # A pod of the next attempt needs no connection.
    del web.files["/big"]
    assert machines.run(init(of, status), "b")[0] == 0


def test_ranks_of_any_user_can_read_what_was_fetched_and_none_but_root_can_change_it(
    machines: Machines, web: Behaviour, url: str
) -> None:
    web.files["/f"] = b"penguins"
    of = wants(**{"from": f"{url}/f"})
    status = machines.found(of)
    before = os.umask(0o022)  # that of containers
    try:
        assert machines.run(init(of, status))[0] == 0
    finally:
        os.umask(before)
    directory = machines.files(of, status, "a")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory.parent, directory, directory / "f")}
    assert modes == {directory.parent.name: 0o755, "files": 0o755, "f": 0o444}


def test_data_that_changed_since_its_revision_was_found_is_a_final_error(
    machines: Machines, web: Behaviour, url: str
) -> None:
    web.files["/f"] = b"penguins"
    of = wants(**{"from": f"{url}/f"})
    status = machines.found(of)
    web.files["/f"] = b"gulls"
    code, said = machines.run(init(of, status))
    assert (code, said["final"]) == (1, True)
    assert "the data was changed: its revision is " in said["error"]
    assert list(machines.root.glob("a/*/entry.json")) == []


def test_a_wrong_sum_is_a_final_error_and_the_ranks_do_not_start(machines: Machines, web: Behaviour, url: str) -> None:
    web.files["/f"] = b"penguins"
    of = wants(**{"from": f"{url}/f", "sha256": "ab" * 32})
    code, said = machines.run(init(of, machines.found(of)))
    assert (code, said["final"]) == (1, True)
    assert "the SHA-256 of the file is" in said["error"]


def test_data_with_a_wanted_sum_may_have_another_revision_by_now(machines: Machines, web: Behaviour, url: str) -> None:
    """A file that was stored again has a new ETag."""
    web.files["/f"] = b"penguins"
    of = wants(**{"from": f"{url}/f", "sha256": hashlib.sha256(b"penguins").hexdigest()})
    status = machines.found(of)
    older = Status(inputs=[replace(status.inputs[0], revision="etag:before")])
    assert machines.run(init(of, older))[0] == 0
    assert (machines.files(of, older, "a") / "f").read_bytes() == b"penguins"


def test_a_file_whose_server_sends_no_revision_needs_a_sum(machines: Machines, web: Behaviour, url: str) -> None:
    web.files["/f"] = b"penguins"
    web.etags = False
    of = wants(**{"from": f"{url}/f"})
    [each], store = of.spec.inputs or (), ON_NODES.data
    assert store
    [container] = transfers.fetch_pod(of, each, ON_NODES, store, None, at(0))["spec"]["containers"]
    code, said = machines.run(container)
    assert code == 0
    assert "its server sends neither an ETag nor a time" in said["error"]
    assert machines.found(wants(**{"from": f"{url}/f", "sha256": "ab" * 32})).inputs[0].state == "Ready"


@pytest.mark.parametrize(
    ("error", "final"), [(DiskFullError("full"), False), (DataError("the credentials have expired"), True)]
)
def test_the_container_ends_with_1_after_every_error_and_says_whether_it_may_pass(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, error: DataError, final: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pod, "fetch", fail)
    status = Status(inputs=[InputStatus(name="data", state="Ready", revision="r", location="Node")])
    environ, result = machines.environ(init(wants(**{"from": "https://h/f"}), status), "a")
    assert pod.main(environ) == 1
    assert json.loads(result.read_text()) == {"error": str(error), "final": final}


def test_a_lost_connection_is_tried_again_for_minutes_before_the_pod_fails() -> None:
    now, tries = [0.0], []

    def act() -> Result:
        tries.append(now[0])
        raise TemporaryError("the connection failed")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(TemporaryError):
        pod.patiently(act, lambda: now[0], sleep)
    assert tries == [each * pod.PAUSE_SECONDS for each in range(int(pod.PATIENCE_SECONDS / pod.PAUSE_SECONDS) + 1)]


@pytest.mark.parametrize(
    ("used", "since", "evicted"),
    [
        ((), 1_000, True),
        (("KEY",), 1_000, False),  # an unfinished job reads it
        ((), 10, False),  # a pod that was created later may read it
        (None, 1_000, False),
    ],
)
def test_a_pod_evicts_from_its_node_only_what_no_other_pod_can_read(
    machines: Machines, web: Behaviour, url: str, used: tuple[str, ...] | None, since: int, evicted: bool
) -> None:
    web.files |= {"/old": b"x" * 100, "/new": b"y" * 100}
    old, new = wants(**{"from": f"{url}/old"}), wants(**{"from": f"{url}/new"})
    status = machines.found(old)
    assert machines.run(init(old, status))[0] == 0
    entry = machines.files(old, status, "a").parent
    os.utime(entry / "entry.json", (500, 500))
    keys = tuple(entry.name for _ in used) if used is not None else None
    allowed = None if keys is None else Evictable(keys, since)
    assert machines.run(init(new, machines.found(new), allowed), limit=150)[0] == 0
    assert entry.exists() == (not evicted)
    assert machines.files(new, machines.found(new), "a").is_dir()
