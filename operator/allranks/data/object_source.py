"""Objects of S3, Google Cloud Storage and Azure, by fsspec."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from allranks.data.errors import need
from allranks.data.source import Listing, RemoteFile, checked, listing_revision
from allranks.errors import DataError

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
"""Scheme -> package. A local run also reads `file://`, a directory that takes the place of a store."""
RANGE = 8 << 20
"""Bytes of one request."""
_TAGS = ("ETag", "md5Hash", "generation", "etag", "mtime", "last_modified", "LastModified")
"""The first one that a file system has. Google's etag also changes with the metadata of an object."""


class NothingThere(DataError):
    """There is no object at the address."""


def filesystem(uri: str) -> Any:
    """Return the fsspec file system for `uri`. Credentials come from the environment and the usual configuration
    files."""
    scheme = uri.partition("://")[0]
    need(uri, "fsspec", *([PACKAGES[scheme]] if scheme in PACKAGES else []))
    import fsspec

    if scheme == "gs":
        # Otherwise gcsfs asks for the type of the bucket by gRPC, and logs a warning before each request if it may not.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        if "GCSFS_DEBUG" not in os.environ:
            logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # the errors that it logs are raised as well
    # Listings must not come from a cache: they decide about the revision.
    try:
        files = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
    except KeyError as error:
        if scheme != "gs":
            raise
        # gcsfs looks for a refresh token in what is no key.
        hint = 'set FSSPEC_GS to {"token": KEY}, where KEY is the JSON key of a service account'
        raise DataError(f"{uri}: the credentials cannot be read: {hint}") from error
    if scheme == "az":
        _shorten_retries(files)
    return files


def _shorten_retries(fs: Any) -> None:
    """Shorten the retries of Azure's client, which waits for up to 3 minutes before it says that a server cannot be
    reached.

    Transfers have tries of their own. adlfs has no option for it."""
    with contextlib.suppress(AttributeError):
        policy = fs.service_client._config.retry_policy
        policy.total_retries, policy.initial_backoff, policy.increment_base = 2, 1, 2


class ObjectSource:
    """`s3://BUCKET/PREFIX`: one object, or all objects below the prefix."""

    branches = False

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._root = uri.partition("://")[2].rstrip("/")
        self._fs = filesystem(uri)
        self._paths: dict[str, str] = {}

    def resolve(self, revision: str | None) -> Listing:
        objects: Mapping[str, Mapping[str, Any]] | list[str] = self._fs.find(self._root, detail=True)
        if isinstance(objects, list):  # adlfs, for one object
            objects = {path: self._fs.info(path) for path in objects}
        files = checked(self.uri, (self._file(path, info) for path, info in objects.items() if not path.endswith("/")))
        if not files:
            raise NothingThere(f"{self.uri}: there is no such object, and none below it")
        return Listing(listing_revision(files), files)

    def _file(self, path: str, info: Mapping[str, Any]) -> RemoteFile:
        root, plain = self._root.lstrip("/"), path.lstrip("/")
        name = plain[len(root) + 1 :] if plain.startswith(root + "/") else plain.rsplit("/", 1)[-1]
        self._paths[name] = path if path.startswith(self._root) else plain
        return RemoteFile(name, int(info["size"]), next((str(info[key]) for key in _TAGS if info.get(key)), ""))

    def read(self, listing: Listing, file: RemoteFile, start: int) -> Iterator[bytes]:
        size = file.size or 0
        while start < size:
            data = self._fs.cat_file(self._paths[file.name], start=start, end=min(start + RANGE, size))
            if not data:
                raise ConnectionError(f"{file.name} ends after {start} of {size} bytes")
            start += len(data)
            yield data
