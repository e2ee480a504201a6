"""The helpers work as every user that an image or a cluster may choose, also on a read-only root file system.

The volumes are played: directories as the kubelet makes them. Users, mounts and programs are real.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.inpod import unpack
from allranks.pod_bundle import copy
from unit.inpod.test_install_packages import wheel

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run programs of other users")
SECONDS = 120
POD = """
set -eu
cd "$1"
mount --bind . .
cd "$PWD"
mount --bind "$2" python
[ "$3" != yes ] || mount -o remount,bind,ro /
user=$4 group=$5 python=$PWD/python/bin/$6
as() { setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs "$python" "$@"; }
as helper/install_packages.py packages penguins
as helper/copy_checkpoint.py source checkpoints --name first --copier 1
export PYTHONPATH=$PWD/code:$PWD/packages/site:$PWD/helper/python
as helper/watch.py -- "$python" code/train.py
"""
TRAIN = """
import os
import pathlib
import penguins
import allranks.report
root_is_writable = os.access("/", os.W_OK)
saved = pathlib.Path(os.environ["ALLRANKS_CHECKPOINT_DIR"])
(saved / "step-2").write_text((saved / "step-1").read_text() + "2")
print(f"user {os.getuid()}, penguins {penguins.version}, root {root_is_writable}, home {os.environ.get('HOME')}")
"""


@pytest.fixture
def volumes() -> Iterator[Path]:
    """The volumes of a pod, with what the helper of another user has written."""
    place = Path(tempfile.mkdtemp())  # pytest's own directories are closed to other users
    place.chmod(0o755)
    for name in ("python", "helper", "code", "packages", "source", "checkpoints", "wheels"):
        (place / name).mkdir()
        (place / name).chmod(0o777)
    copy(place / "helper")
    wheel(place / "wheels", "penguins", "1.0")
    (place / "source" / "step-1").write_text("1")
    (place / "source" / "step-1").chmod(0o644)
    (place / "checkpoints").chmod(0o777)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        member = tarfile.TarInfo("train.py")
        member.size = len(TRAIN)
        archive.addfile(member, io.BytesIO(TRAIN.encode()))
    (place / "code.tar.gz").write_bytes(gzip.compress(content.getvalue()))
    unpack.unpack(place / "code.tar.gz", hashlib.sha256(content.getvalue()).hexdigest(), place / "code")
    yield place
    shutil.rmtree(place)


USERS = [(0, 0), (1000, 1000), (1000690000, 0)]
"""Root, the first user of a system, and a user of OpenShift, whom no file names."""


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize(("user", "group"), USERS)
def test_code_packages_checkpoints_and_the_program_work(volumes: Path, user: int, group: int, read_only: bool) -> None:
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "ALLRANKS_CHECKPOINT_DIR": str(volumes / "checkpoints")}
    env["LD_LIBRARY_PATH"] = str(volumes / "python" / "lib")  # a user may not read the Python of the tests
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(volumes / "wheels"), "PIP_CONFIG_FILE": "/dev/null"}
    if user == 1000:
        env["HOME"] = "/home/nowhere"
    python = Path(os.path.realpath(sys.executable)).name
    arguments = [str(volumes), sys.base_prefix, "yes" if read_only else "no", str(user), str(group), python]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", POD, "pod", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    writable = user == 0 and not read_only
    assert done.stdout.splitlines()[-1] == f"user {user}, penguins 1.0, root {writable}, home {env.get('HOME')}"
    saved = volumes / "checkpoints" / "step-2"
    assert (saved.read_text(), saved.stat().st_uid) == ("12", user)
