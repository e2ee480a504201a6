"""The newest of the checkpoints that allranks has uploaded to an object store (`when: Checkpoint` of an output).

Each is a folder `step-STEP` with a manifest, which is written last: a folder without one is not complete. Other
programs store checkpoints in their own ways, so without such folders all objects below the address are the checkpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from allranks.data.object_source import NothingThere, ObjectSource
from allranks.data.source import Listing, RemoteFile, listing_revision
from allranks.data.upload import MANIFEST, PROVENANCE
from allranks.errors import DataError

_FOLDER = re.compile(r"(step-(\d{1,18}))/.+")


class CheckpointSource:
    """The files of one checkpoint. Its revision begins with the name of its folder, so that all pods fetch the same
    one, also if another job uploads newer ones meanwhile."""

    branches = False

    def __init__(self, source: ObjectSource, may_be_empty: bool) -> None:
        self.uri = source.uri
        self._source, self._may_be_empty = source, may_be_empty
        self._folder: str | None = None

    def resolve(self, revision: str | None) -> Listing:
        try:
            everything = self._source.resolve(None)
        except NothingThere:
            if not self._may_be_empty:
                raise
            everything = Listing("", ())
        files = {file.name: file for file in everything.files}
        if not self._folder:
            named = re.match(r"(step-\d+):", revision or "")
            self._folder = f"{named[1]}/" if named else self._newest(files)
        chosen = () if self._folder is None else tuple(self._files_of(self._folder, files))
        beginning = f"{self._folder.rstrip('/')}:" if self._folder else ""
        return Listing(beginning + listing_revision(chosen), chosen)

    def _newest(self, files: dict[str, RemoteFile]) -> str | None:
        """Return the folder, with `/`; empty without such folders, None if an upload is the first one and not
        complete."""
        folders = {int(match[2]): match[1] for name in files if (match := _FOLDER.fullmatch(name))}
        complete = [step for step, folder in folders.items() if f"{folder}/{MANIFEST}" in files]
        if complete:
            return f"{folders[max(complete)]}/"
        if not folders:
            return ""
        if self._may_be_empty:
            return None
        folder = folders[max(folders)]
        raise DataError(
            f"{self.uri}: {folder} has no {MANIFEST}, so its upload is not complete: name the folder, "
            f"{self.uri.rstrip('/')}/{folder}, to take it as it is"
        )

    def _files_of(self, folder: str, files: dict[str, RemoteFile]) -> Iterator[RemoteFile]:
        """Yield the files that the manifest lists, with their sums; without a manifest all of them."""
        manifest = files.get(folder + MANIFEST)
        if manifest is None:
            yield from (
                replace(file, name=name.removeprefix(folder))
                for name, file in files.items()
                if name.startswith(folder) and name != folder + PROVENANCE
            )
            return
        for listed in self._listed(manifest):
            name = str(listed["name"])
            file = files.get(folder + name)
            if file is None or file.size != listed["size"]:
                raise DataError(f"{self.uri}: {folder}{name} is not the file that {folder}{MANIFEST} lists")
            yield replace(file, name=name, sha256=str(listed["sha256"]))

    def _listed(self, manifest: RemoteFile) -> list[dict[str, Any]]:
        try:
            text = b"".join(self._source.read(Listing("", ()), manifest, 0))
            return sorted(json.loads(text)["files"], key=lambda listed: listed["name"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.uri}: {manifest.name} cannot be read: {error}") from error

    def read(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[bytes]:
        return self._source.read(listing, replace(file, name=f"{self._folder}{file.name}"), start)
