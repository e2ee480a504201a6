"""Fetches one input into the cache: resolve its revision, wait for other fetches, download, check, publish."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from allranks.cache_key import pin_of
from allranks.data.archives import unpack_archives
from allranks.data.cache import Cache, Entry, Staging, tree_sum
from allranks.data.checkpoint_source import CheckpointSource
from allranks.data.download import Download
from allranks.data.errors import ChangedError, explain
from allranks.data.git_source import GitSource
from allranks.data.http_source import HttpSource
from allranks.data.hub_source import HubSource
from allranks.data.object_source import ObjectSource
from allranks.data.source import UNKNOWN, Listing, Source, TreeSource
from allranks.data.tries import Tries
from allranks.errors import DataError

AnySource = Source | TreeSource
LONGEST_REVISION = 128
"""Characters: the length that the status of a job has for it."""
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class InputSpec(NamedTuple):
    """The address, revision and sum of an input in a job. With both, a branch or commit is looked up, and the sum
    decides."""

    uri: str
    revision: str | None = None
    sha256: str | None = None
    unpack: bool = False
    """Archives are replaced by the files in them."""
    newest: bool = False
    """Of several uploaded checkpoints the newest one is fetched."""
    may_be_empty: bool = False
    """Nothing is there before the first upload."""

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> InputSpec:
        """Return the input of the request of a transfer."""
        return cls(uri=request["uri"], **{name: request[name] for name in cls._fields[1:] if name in request})

    def pin(self, revision: str | None = None) -> str:
        """Return the pin of the cache, with the revision at the source if the input names none."""
        return pin_of(revision or self.revision, self.sha256, self.unpack)


class Result(NamedTuple):
    entry: Entry
    cached: bool
    """True if it was in the cache before."""


class Report(Protocol):
    """Receives progress, from any thread."""

    def resolved(self, revision: str, total: int) -> None:
        """Receive the revision. `total`: bytes to fetch, 0 if unknown."""

    def added(self, count: int) -> None:
        """Receive the number of new bytes."""


class NoReport:
    def resolved(self, revision: str, total: int) -> None: ...

    def added(self, count: int) -> None: ...


def connect(uri: str) -> AnySource:
    """Return the source of `uri`. Raise DataError if a package is missing, or nothing can fetch it."""
    scheme = uri.partition("://")[0]
    if scheme in ("http", "https"):
        return HttpSource(uri)
    if scheme in ("s3", "gs", "az", "file"):
        return ObjectSource(uri)
    if scheme == "hf":
        return HubSource(uri)
    if scheme in ("git+https", "git+http", "git+file"):
        return GitSource(uri)
    raise DataError(f"{uri}: nothing can fetch {scheme}://")


def fetch(
    spec: InputSpec,
    cache: Cache,
    report: Report | None = None,
    *,
    connect: Callable[[str], AnySource] = connect,
    tries: Tries | None = None,
) -> Result:
    """Fetch an input into the cache. Raise DataError.

    A revision or sum that the cache has needs no network.
    """
    uri, report, tries = spec.uri, report or NoReport(), tries or Tries()
    pin = spec.pin()
    if pin and (cached := _cached(cache, uri, pin)):
        return Result(cached, cached=True)
    source = tries.until_done(lambda: _source(spec, connect), uri)
    listing = _resolve(source, spec, tries)
    pin = spec.pin(listing.revision)
    if cached := _cached(cache, uri, pin):
        return Result(cached, cached=True)
    report.resolved(listing.revision, listing.size)
    with _disk_errors(uri), cache.exclusive(uri, pin) as staging:
        if staging.published and (cached := cache.read(staging.target.name)):  # by another process
            return Result(cached, cached=True)
        cache.make_room(uri, listing.size, min(staging.bytes, listing.size))
        staging.make()
        sums = _fill(source, listing, staging, report, tries)
        entry = _checked(spec, pin, listing, staging, sums)
        _check_unchanged(source, spec, listing, tries)
        if spec.unpack:
            entry = _unpacked(uri, entry, staging, cache)
        staging.publish(entry)
    return Result(entry, cached=False)


def _source(spec: InputSpec, connect: Callable[[str], AnySource]) -> AnySource:
    source = connect(spec.uri)
    return CheckpointSource(source, spec.may_be_empty) if spec.newest and isinstance(source, ObjectSource) else source


def look_up(spec: InputSpec, tries: Tries | None = None) -> Listing:
    """Return the files of an input that the program reads itself, at the wanted or the current revision. Raise
    DataError."""
    tries = tries or Tries()
    source = tries.until_done(lambda: _source(spec, connect), spec.uri)
    return _resolve(source, spec, tries)


def pin(spec: InputSpec, tries: Tries | None = None) -> Listing:
    """Return the files of an input that several pods fetch later, each for itself.

    Raise DataError, also if nothing shows whether they fetch the same data."""
    listing = look_up(spec._replace(revision=None) if spec.sha256 else spec, tries)
    if listing.revision.startswith(UNKNOWN) and not spec.sha256:
        raise DataError(
            f"{spec.uri}: its server sends neither an ETag nor a time, so pods that fetch it may get different data: "
            "set sha256"
        )
    return listing


def _cached(cache: Cache, uri: str, pin: str) -> Entry | None:
    lease = cache.lease(uri, pin)
    if lease is None:
        return None
    lease.close()
    return lease.entry


def _resolve(source: AnySource, spec: InputSpec, tries: Tries) -> Listing:
    listing = _shortened(tries.until_done(lambda: source.resolve(spec.revision), spec.uri))
    if spec.revision and not source.branches and not spec.sha256 and listing.revision != spec.revision:
        raise DataError(
            f"{spec.uri}: the data was changed: its revision is {listing.revision}, and the job wants {spec.revision}"
        )
    return listing


def _shortened(listing: Listing) -> Listing:
    """Return the listing with a revision that fits into the status of a job, also if a server has a longer ETag."""
    if len(listing.revision) <= LONGEST_REVISION:
        return listing
    return replace(listing, revision=f"long:{hashlib.sha256(listing.revision.encode()).hexdigest()}")


def _fill(source: AnySource, listing: Listing, staging: Staging, report: Report, tries: Tries) -> dict[str, str]:
    """Fetch all files into the staging directory. Return name -> SHA-256."""
    if isinstance(source, GitSource):
        staging.discard()  # git cannot resume
        staging.make()
        tries.until_done(lambda: source.fetch_all(listing, staging.files), source.uri)
        return dict(_sums(staging.files, report))
    assert not hasattr(source, "fetch_all")
    return Download(source, listing, staging.directory, report.added, tries).run()


def _checked(spec: InputSpec, pin: str, listing: Listing, staging: Staging, sums: dict[str, str]) -> Entry:
    """Return the entry of the fetched files. Raise DataError if their sum differs from the sum in the job."""
    actual = tree_sum(sums)
    if spec.sha256 and actual != spec.sha256:
        staging.discard()
        subject = "the file" if len(sums) == 1 else f"the list of its {len(sums)} files"
        raise DataError(f"{spec.uri}: the SHA-256 of {subject} is {actual}, and the job wants {spec.sha256}")
    _remove_others(staging.files, set(sums))
    size = sum((staging.files / name).stat().st_size for name in sums)
    return Entry(spec.uri, pin, listing.revision, actual, size, len(sums))


def _remove_others(directory: Path, names: set[str]) -> None:
    """Remove files that an earlier fetch left and the source does not have any more."""
    for folder, _, files in os.walk(directory):
        for file in files:
            path = Path(folder) / file
            if path.relative_to(directory).as_posix() not in names:
                path.unlink()


def _unpacked(uri: str, entry: Entry, staging: Staging, cache: Cache) -> Entry:
    """Replace the archives among the fetched files by their contents, which may have as many bytes as the cache has
    room for besides the archives."""
    unpack_archives(staging.files, staging.directory / "unpacked", uri, cache.limit - entry.bytes)
    sizes = [(Path(folder) / name).stat().st_size for folder, _, names in os.walk(staging.files) for name in names]
    cache.make_room(uri, sum(sizes), sum(sizes))
    return replace(entry, bytes=sum(sizes), files=len(sizes))


def _check_unchanged(source: AnySource, spec: InputSpec, listing: Listing, tries: Tries) -> None:
    """Raise ChangedError if a store without commits changed during the fetch: its files may not belong together."""
    if source.branches or listing.revision.startswith(UNKNOWN) or spec.sha256:
        return
    after = _shortened(tries.until_done(lambda: source.resolve(None), spec.uri))
    if after.revision != listing.revision:
        raise ChangedError(f"{spec.uri}: the data was changed while it was fetched: run again")


def _sums(directory: Path, report: Report) -> Iterator[tuple[str, str]]:
    for folder, _, files in os.walk(directory):
        for file in files:
            path = Path(folder) / file
            with open(path, "rb") as opened:
                digest = hashlib.file_digest(opened, "sha256")
                os.fsync(opened.fileno())
            report.added(path.stat().st_size)
            yield path.relative_to(directory).as_posix(), digest.hexdigest()


@contextlib.contextmanager
def _disk_errors(uri: str) -> Iterator[None]:
    """Turn errors of the cache's directory into DataError."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_WRITABLE and error.filename:
            raise DataError(f"{uri}: the cache of inputs cannot be written: {error}") from error
        raise explain(error, uri) from error
