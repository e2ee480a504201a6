"""Images of files, such as programs that Go has built, for the nodes of tools/cluster.sh."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path

from .cluster import Cluster

USER = 65532


def load(cluster: Cluster, folder: Path, image: str, *programs: Path) -> None:
    """Gives an image with these programs in /bin to every node. `folder` is for its archive, for a while."""
    load_files(cluster, folder, image, {f"bin/{program.name}": program for program in programs})


def load_files(cluster: Cluster, folder: Path, image: str, files: Mapping[str, Path]) -> None:
    """The same with files at any place of the image."""
    archive = folder / "image.tar"
    write(archive, image, files)
    done = cluster.script("load", str(archive))
    assert done.returncode == 0, done.stderr
    archive.unlink()  # hundreds of megabytes


def write(archive: Path, image: str, files: Mapping[str, Path]) -> None:
    """A docker-archive with the files and a world-writable /tmp, without which argoexec ends with 64."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for name, file in files.items():
            tar.add(file, name)
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    machine = platform.machine()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "User": str(USER)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for name, content in (("manifest.json", manifest), ("config.json", config)):
            text = json.dumps(content).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        tar.add(layer, "layer.tar")
    layer.unlink()
