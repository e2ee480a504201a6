"""Containers like those of a restricted pod, without a cluster: runc starts an image of buildah with any user ID, a
read-only root, no capabilities, and only /tmp writable. The network is that of this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

HOSTNAME = "rank-0"


@dataclass(frozen=True)
class Mount:
    """A bind mount."""

    source: Path
    target: str
    writable: bool = False


@dataclass
class Image:
    """An image and its mounted file system."""

    name: str
    config: Mapping[str, Any]
    """The config of the image specification: User, Env, Entrypoint, Cmd, WorkingDir, Labels."""
    root: Path
    scratch: Path
    """The folder of the bundles."""

    def run(self, *args: str, timeout: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs `args` to the end or the timeout; stdout contains both outputs."""
        with self.start(*args, **options) as process:
            try:
                said, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.terminate()  # runc forwards it; `start` does the rest
                raise
        return subprocess.CompletedProcess(args, process.returncode, said)

    @contextmanager
    def start(
        self,
        *args: str,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Mount] = (),
    ) -> Iterator[subprocess.Popen[str]]:
        """A container that runs `args` (empty: the command of the image); deleted at the end."""
        name = f"allranks-test-{uuid4().hex[:12]}"
        bundle = self.scratch / name
        bundle.mkdir(parents=True)
        (bundle / "hosts").write_text(f"127.0.0.1 localhost {HOSTNAME}\n")
        document = self._bundle(list(args) or self.command, user or self.config["User"], env or {}, mounts, bundle)
        (bundle / "config.json").write_text(json.dumps(document))
        process = subprocess.Popen(
            ["runc", "run", "--bundle", bundle, name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            subprocess.run(["runc", "delete", "--force", name], capture_output=True, timeout=300, check=False)
            try:
                process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate(timeout=300)

    @property
    def command(self) -> list[str]:
        return [*(self.config.get("Entrypoint") or []), *(self.config.get("Cmd") or [])]

    def _bundle(
        self, args: list[str], user: str, env: Mapping[str, str], mounts: Sequence[Mount], bundle: Path
    ) -> dict[str, Any]:
        uid, _, gid = user.partition(":")
        variables = dict(pair.split("=", 1) for pair in self.config.get("Env") or []) | dict(env)
        volatile = ["nosuid", "nodev"]
        own = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*volatile, "ro"]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": [*volatile, "mode=1777"]},
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["newinstance", "ptmxmode=0666"],
            },
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*volatile, "mode=1777"]},
            _bound(Mount(bundle / "hosts", "/etc/hosts")),
        ]
        return {
            "ociVersion": "1.0.2",
            "hostname": HOSTNAME,
            "root": {"path": str(self.root), "readonly": True},
            "process": {
                "terminal": False,
                "user": {"uid": int(uid), "gid": int(gid or 0)},
                "args": args,
                "env": [f"{key}={value}" for key, value in variables.items()],
                "cwd": self.config.get("WorkingDir") or "/",
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "mounts": [*own, *(_bound(mount) for mount in mounts)],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
        }


def _bound(mount: Mount) -> dict[str, Any]:
    access = "rw" if mount.writable else "ro"
    return {
        "destination": mount.target,
        "type": "bind",
        "source": str(mount.source),
        "options": ["bind", access, "nosuid", "nodev"],
    }


@contextmanager
def mounted(name: str, scratch: Path) -> Iterator[Image]:
    """Mounts an image; unmounts it at the end."""
    container = _buildah("from", "--pull-never", name)
    try:
        document = json.loads(_buildah("inspect", "--type", "image", name))
        root = Path(_buildah("mount", container))
        try:
            yield Image(name, document["OCIv1"]["config"], root, scratch)
        finally:
            _buildah("umount", container)
    finally:
        _buildah("rm", container)


def _buildah(*args: str) -> str:
    done = subprocess.run(["buildah", *args], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_users = count(1_000_650_001)


def any_user() -> str:
    """A user and group ID that no image contains, as on OpenShift."""
    return f"{next(_users)}:0"
