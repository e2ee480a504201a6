"""Volumes as directories. Nothing is mounted: a mount path in the manifest is replaced by its directory."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks.core.facts.model import Manifest
from allranks.local.environment import expand
from allranks.local.errors import LocalRunError

NATIVE_PATHS = frozenset({"/dev/shm"})
"""Mount paths that exist on this machine."""

_BEFORE = r"""(?<![^\s"'`=:,;(<>&|])"""
_AFTER = r"""(?=$|[/\s"'`:,;)<>&|])"""


@dataclass(frozen=True)
class Mounts:
    """The mount paths of one container and their directories."""

    directories: Mapping[str, Path] = field(default_factory=dict)

    def rewrite(self, text: str) -> str:
        """Return `text` with every path at or below a mount path replaced. A path inside another word is not
        replaced."""
        if not self.directories:
            return text
        # Longest first: a mount below another mount has its own directory.
        paths = sorted(self.directories, key=len, reverse=True)
        pattern = _BEFORE + "(" + "|".join(map(re.escape, paths)) + ")" + _AFTER
        return re.sub(pattern, lambda match: str(self.directories[match[1]]), text)


class Volumes:
    """The directories of volumes: mapped by the user, one for each claim, or one for each pod."""

    def __init__(self, root: Path, mapped: Mapping[str, Path], claims: dict[str, Path]) -> None:
        self.mapped = mapped
        self.claims = claims
        self.names: set[str] = set()
        """All volumes and claims of the job's pods."""
        self.config_maps: dict[str, Mapping[str, str]] = {}
        """Name -> data of the ConfigMaps that the job itself creates."""
        self._root = root
        self._files: dict[tuple[str, str], Mapping[str, bytes]] = {}

    def add_files(self, manifest: Manifest) -> None:
        """Add a ConfigMap or Secret that the job itself creates, so that pods can mount it."""
        data = {key: str(value).encode() for key, value in (manifest.get("data") or {}).items()}
        if manifest["kind"] == "Secret":
            data = {key: base64.b64decode(value) for key, value in data.items()}
            data |= {key: str(value).encode() for key, value in (manifest.get("stringData") or {}).items()}
        else:
            self.config_maps[manifest["metadata"]["name"]] = manifest.get("data") or {}
        self._files[manifest["kind"], manifest["metadata"]["name"]] = data

    def own_directory(self, pod: str) -> Path:
        """Return the directory that is removed with the pod."""
        return self._root / "pods" / pod

    def locate(self, pod: str, volume: Mapping[str, Any]) -> Path | str:
        """Return the directory of a volume, which may not exist yet; or a message that says why there is none."""
        name: str = volume["name"]
        claim: str = (volume.get("persistentVolumeClaim") or {}).get("claimName") or ""
        self.names |= {name, claim} - {""}
        for directory_name in (name, claim):
            if directory_name in self.mapped:
                return self.mapped[directory_name].absolute()
        if claim:
            return self.claims.setdefault(claim, self._root / "volumes" / claim)
        if "emptyDir" in volume or "ephemeral" in volume:
            return self.own_directory(pod) / name
        kind = next((key for key in volume if key != "name"), "nothing")
        if self._content(volume) is not None or (volume.get(kind) or {}).get("optional"):
            return self.own_directory(pod) / name
        return f"volume {name} ({kind}) is not on this machine: give its directory with --volume {name}=DIR"

    def make(self, pod: str, volume: Mapping[str, Any]) -> None:
        """Create the directory and its files. Raise LocalRunError."""
        directory = self.locate(pod, volume)
        if isinstance(directory, str):
            return
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for key, content in (self._content(volume) or {}).items():
                path = directory / key
                path.write_bytes(content)
                mode = (volume.get("secret") or volume.get("configMap") or {}).get("defaultMode")
                path.chmod(0o600 if "secret" in volume else 0o644 if mode is None else mode)
        except OSError as error:
            raise LocalRunError.from_os(error, f"the directory {directory} cannot be created") from error

    def make_folders(self, folders: Iterable[Path]) -> None:
        """Create sub-paths, as a kubelet does. Raise LocalRunError."""
        for folder in folders:
            try:
                if not folder.exists():  # it may be a single file of a config map
                    folder.mkdir(parents=True)
            except OSError as error:
                raise LocalRunError.from_os(error, f"the directory {folder} cannot be created") from error

    def remove(self, pod: str) -> None:
        """Remove the directories of a deleted pod."""
        shutil.rmtree(self.own_directory(pod), ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: other pods exist
            (self._root / "pods").rmdir()

    def _content(self, volume: Mapping[str, Any]) -> Mapping[str, bytes] | None:
        if "configMap" in volume:
            return self._files.get(("ConfigMap", (volume["configMap"] or {}).get("name", "")))
        if "secret" in volume:
            return self._files.get(("Secret", (volume["secret"] or {}).get("secretName", "")))
        return None


def mounts(container: Manifest, located: Mapping[str, Path], variables: Mapping[str, str]) -> tuple[Mounts, list[str]]:
    """Return the container's mounts with sub-paths, and a message for each invalid one. `located`: volume ->
    directory."""
    directories: dict[str, Path] = {}
    problems: list[str] = []
    for mount in container.get("volumeMounts") or ():
        path = os.path.normpath(mount["mountPath"])
        if path in NATIVE_PATHS:
            continue
        if mount["name"] not in located:
            problems.append(f"container {container['name']} mounts volume {mount['name']}, which the pod does not have")
            continue
        below = mount.get("subPath") or expand(mount.get("subPathExpr") or "", variables)
        directories[path] = located[mount["name"]] / below
    return Mounts(directories), problems
