"""Pods of several users share the claim: what the ranks write, the pod that uploads can read and remove. The kubelet's
part, the groups of volumes and the directories of subPaths, is played here; users and groups are real."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.api.data import InputStatus
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts.model import Pod
from allranks.core.objects import pods
from allranks.core.transfers import manifests as transfers
from allranks.data import pod
from support.builders import UID, at, job
from support.data_servers import Behaviour
from unit.data.test_pod import PLATFORM, SECONDS, STORE, Claim

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run programs of other users")
DATA_USER = (65532, 65532)
"""User and group of the image of transfers."""
OF_IMAGE = (1000, 1000)
"""Those of the image of the ranks, which no manifest names."""
OUTPUT = {"name": "model", "path": "/out", "to": "claim://results"}
BECOMES = """
import encodings.idna, json, os, pathlib, shutil, sys
from allranks.data import pod  # before the change of the user, who may not be allowed to read Python's own directory
groups, group, user = json.loads(sys.argv.pop(1))
os.setgroups(groups)
os.setgid(group)
os.setuid(user)
"""
WRITES = """
os.umask(0o077)  # as programs that write a temporary file and rename it
out = pathlib.Path(sys.argv[1])
(out / "layers").mkdir()
(out / "layers" / "net").write_text("weights")
"""


@pytest.fixture
def claim() -> Iterator[Claim]:
    """A new volume, which only root may change."""
    place = Path(tempfile.mkdtemp())  # pytest's own directories are closed to other users
    place.chmod(0o755)
    made = Claim(place / "claim")
    shutil.rmtree(made.root / "inputs")
    made.root.chmod(0o755)
    yield made
    shutil.rmtree(place)


class Identity:
    """The user and the groups of a container, as the kubelet chooses them."""

    def __init__(self, spec: dict[str, Any], of_image: tuple[int, int]) -> None:
        container = next(each for each in spec["containers"] if each["name"] == "trainer")
        self.security = spec.get("securityContext") or {}
        own = {**self.security, **container["securityContext"]}
        self.user = own.get("runAsUser", of_image[0])
        self.group = own.get("runAsGroup", of_image[1] if self.user == of_image[0] else 0)
        self.others = [*own.get("supplementalGroups", []), *([own["fsGroup"]] if "fsGroup" in own else [])]
        assert self.user or not own.get("runAsNonRoot")

    def run(self, program: str, *arguments: str, environ: dict[str, str] | None = None) -> int:
        """The exit status of a Python program with this user and these groups."""
        identity = json.dumps([self.others, self.group, self.user])
        command = [sys.executable, "-c", BECOMES + program, identity, *arguments]
        return subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, timeout=SECONDS, check=False).returncode


def mount(claim: Claim, made: dict[str, Any], of_image: tuple[int, int]) -> Identity:
    """What the kubelet does with the claim before it starts a pod (pkg/volume/volume_linux.go, subpath_linux.go)."""
    found, root = Identity(made["spec"], of_image), claim.root
    group = found.security.get("fsGroup")
    fits = root.stat().st_gid == group and root.stat().st_mode & stat.S_ISGID
    if group is not None and not (fits and found.security.get("fsGroupChangePolicy") == "OnRootMismatch"):
        for path in (root, *root.rglob("*")):
            os.chown(path, -1, group)
            path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))
    container = next(each for each in made["spec"]["containers"] if each["name"] == "trainer")
    for each in container["volumeMounts"]:
        if each["name"] == transfers.VOLUME:
            path = root
            for part in Path(each["subPath"]).parts:
                path = path / part
                if not path.exists():
                    path.mkdir()
                    path.chmod(root.stat().st_mode)
    return found


def transfer(claim: Claim, made: dict[str, Any]) -> tuple[int, str]:
    """(exit status, termination message) of a pod that fetches or uploads."""
    results, target = claim.root.parent / "results", claim.root / "allranks-target"
    for path in (results, target):
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
    result = results / f"{made['metadata']['name']}.json"
    result.unlink(missing_ok=True)
    found = mount(claim, made, DATA_USER)
    environ = claim.environ(made) | {pod.RESULT: str(result), "PYTHONDONTWRITEBYTECODE": "1"}
    status = found.run("sys.exit(pod.main(os.environ))", environ=environ)
    return status, result.read_text()


def rank(of: Job) -> dict[str, Any]:
    return pods.objects(of, Status(), PLATFORM).pods[0]


def writes(claim: Claim, of: Job) -> None:
    """A rank writes its output."""
    found = mount(claim, rank(of), OF_IMAGE)
    folder = claim.root / "outputs" / of.metadata.uid / "model"
    assert found.run(WRITES, str(folder)) == 0


def fetch(claim: Claim, url: str, **template: Any) -> tuple[int, str]:
    """Another job's input."""
    of = job(inputs=[{"name": "data", "from": url, "path": "/data"}], **template)
    return transfer(claim, transfers.fetch_pod(of, (of.spec.inputs or [])[0], PLATFORM, STORE, None, at(0)))


def upload(claim: Claim, of: Job, user: tuple[int, int] | None = OF_IMAGE) -> tuple[int, str]:
    observed = Pod("job-worker-0-0", "uid", "worker", 0, 0, phase="Succeeded", user=user)
    made = transfers.upload_pod(of, (of.spec.outputs or [])[0], Status(), PLATFORM, STORE, [observed])
    return transfer(claim, made)


def test_the_pod_that_uploads_has_the_user_of_the_image_of_the_ranks(claim: Claim, web: Behaviour, url: str) -> None:
    """Its files may be closed to all others, and it removes them from the claim."""
    web.files["/train.csv"] = b"penguins"
    assert fetch(claim, f"{url}/train.csv")[0] == 0  # gives the claim its group
    of = job(outputs=[OUTPUT])
    writes(claim, of)
    code, message = upload(claim, of)
    assert (code, json.loads(message)) == (0, {"uploaded": {"bytes": 7, "files": 1}})
    assert (claim.root / "allranks-target" / "layers" / "net").read_text() == "weights"
    assert list((claim.root / "outputs" / UID / "model").iterdir()) == []


def test_what_only_its_owner_may_read_cannot_be_uploaded_without_the_user_of_its_owner(
    claim: Claim, web: Behaviour, url: str
) -> None:
    web.files["/train.csv"] = b"penguins"
    fetch(claim, f"{url}/train.csv")
    of = job(outputs=[OUTPUT])
    writes(claim, of)
    _, message = upload(claim, of, user=None)
    assert "cannot be read" in json.loads(message)["error"]


def test_a_job_with_a_group_of_its_own_and_one_without_share_the_claim(claim: Claim, web: Behaviour, url: str) -> None:
    """A kubelet gives the whole claim to the group of each pod that it starts."""
    web.files |= {"/train.csv": b"penguins", "/more.csv": b"birds"}
    of = job(outputs=[OUTPUT], template={"spec": {"securityContext": {"fsGroup": 2000}}})
    begun = mount(claim, rank(of), OF_IMAGE)
    assert fetch(claim, f"{url}/train.csv")[0] == 0  # takes the claim from the rank that runs
    folder = claim.root / "outputs" / UID / "model"
    assert begun.run(WRITES, str(folder)) == 0
    assert upload(claim, of)[0] == 0
    assert fetch(claim, f"{url}/more.csv")[0] == 0


def test_the_pod_that_fetches_has_the_group_of_the_job(claim: Claim, web: Behaviour, url: str) -> None:
    web.files["/train.csv"] = b"penguins"
    template = {"spec": {"securityContext": {"fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch"}}}
    code, message = fetch(claim, f"{url}/train.csv", template=template)
    assert code == 0
    of = job(inputs=[{"name": "data", "from": f"{url}/train.csv", "path": "/data"}], template=template)
    ready = InputStatus(name="data", state="Ready", revision=json.loads(message)["fetched"]["revision"])
    made = pods.objects(of, Status(inputs=[ready]), PLATFORM).pods[0]
    found = mount(claim, made, OF_IMAGE)
    [file] = claim.root.glob("inputs/*/files/train.csv")
    assert claim.root.stat().st_gid == 2000
    assert found.run("open(sys.argv[1]).close()", str(file)) == 0
