"""Datasets and models of the Hugging Face hub: its client resolves revisions, files are read with ranges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from allranks.data.errors import need
from allranks.data.http_source import read_range
from allranks.data.source import Listing, RemoteFile, checked
from allranks.errors import DataError

_KINDS = {"datasets": "dataset", "models": "model"}


class HubSource:
    """`hf://datasets/OWNER/NAME[/DIRECTORY]` or `hf://models/OWNER/NAME`."""

    branches = True

    def __init__(self, uri: str) -> None:
        need(uri, "huggingface_hub")
        from huggingface_hub import HfApi

        self.uri = uri
        kind, _, rest = uri.removeprefix("hf://").partition("/")
        if kind not in _KINDS:
            kind, rest = "models", uri.removeprefix("hf://")
        owner, name, *below = rest.strip("/").split("/")
        self._kind, self._repository, self._below = _KINDS[kind], f"{owner}/{name}", "/".join(below)
        self._api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        self._paths: dict[str, str] = {}

    def resolve(self, revision: str | None) -> Listing:
        info: Any = self._api.repo_info(
            self._repository, repo_type=self._kind, revision=revision, files_metadata=True, timeout=60
        )
        files = [file for file in info.siblings or () if self._is_below(file.rfilename)]
        if not files:
            raise DataError(f"{self.uri}: there are no files")
        if not info.sha:
            raise DataError(f"{self.uri}: the hub does not say which commit it is")
        return Listing(info.sha, checked(self.uri, map(self._file, files)))

    def _is_below(self, name: str) -> bool:
        return not self._below or name == self._below or name.startswith(self._below + "/")

    def _file(self, sibling: Any) -> RemoteFile:
        name = sibling.rfilename
        if self._below:
            name = name.removeprefix(self._below + "/") if name != self._below else name.rsplit("/", 1)[-1]
        self._paths[name] = sibling.rfilename
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        return RemoteFile(name, sibling.size, sibling.blob_id or "", sha256)

    def read(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[bytes]:
        from huggingface_hub import get_token, hf_hub_url

        url = hf_hub_url(
            self._repository,
            self._paths[file.name],
            repo_type=self._kind,
            revision=listing.revision,
            endpoint=self._api.endpoint,
        )
        token = get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # The commit determines the content: the ETag of the server that stores it is another one.
        return read_range(url, headers, RemoteFile(file.name, file.size, "", file.sha256), start)
