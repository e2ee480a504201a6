"""Uploads a directory to an object store or copies it to another directory, and writes a manifest with checksums last.

A reader that finds `allranks-manifest.json` finds all files that it lists. An upload that was interrupted continues
with the files that are not there yet.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mimetypes
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar, Protocol

from allranks.data.errors import TemporaryError, UnknownError, explain
from allranks.data.object_source import PACKAGES, filesystem
from allranks.data.tries import Tries
from allranks.errors import DataError

MANIFEST = "allranks-manifest.json"
PROVENANCE = "allranks-provenance.json"


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of an output."""

    name: str
    """Relative path with `/`."""
    size: int
    mtime: int
    """Nanoseconds."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Uploaded:
    files: int
    bytes: int
    sent: int
    """Files that were not there before."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The uploaded part of the files of a directory."""

    files: int
    bytes: int
    total_files: int
    total: int
    """Bytes."""


class Target(Protocol):
    """Where files go."""

    def size(self, name: str) -> int | None:
        """Return the size of a file at the destination in bytes; None without one."""
        ...

    def put(self, path: Path, name: str) -> None:
        """Write a file, which appears as a whole."""
        ...

    def remove(self, name: str) -> None: ...


class ObjectTarget:
    """`s3://BUCKET/PREFIX` and others of fsspec."""

    _TYPE_OPTIONS: ClassVar[Mapping[str, str]] = {"s3": "ContentType", "gs": "content_type"}
    """Scheme -> option of its client with the type of a file, which the client would guess from the name."""

    def __init__(self, uri: str) -> None:
        scheme, _, place = uri.partition("://")
        self._root, self._type_option = place.rstrip("/"), self._TYPE_OPTIONS.get(scheme, "")
        self._fs = filesystem(uri)

    def size(self, name: str) -> int | None:
        try:
            info = self._fs.info(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def put(self, path: Path, name: str) -> None:
        kind = mimetypes.guess_type(name)[0]
        options = {self._type_option: kind} if self._type_option and kind else {}
        with open_data(path) as file:
            # The opened file: its name may have become a link since.
            opened = Path(f"/proc/self/fd/{file.fileno()}")
            self._fs.put_file(str(opened if opened.exists() else path), f"{self._root}/{name}", **options)

    def remove(self, name: str) -> None:
        if self.size(name) is not None:
            self._fs.rm_file(f"{self._root}/{name}")


class DirectoryTarget:
    """A directory of this machine, or of a mounted claim."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def size(self, name: str) -> int | None:
        path = self._directory / name
        return path.stat().st_size if path.is_file() else None

    def put(self, path: Path, name: str) -> None:
        target = self._directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            with open_data(path) as source, open(temporary, "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)


def target_of(to: str) -> Target:
    """Return the target for `to`, an address or an absolute path. Raise DataError."""
    if to.startswith("/"):
        return DirectoryTarget(Path(to))
    if to.partition("://")[0] in PACKAGES:
        return ObjectTarget(to)
    raise DataError(f"{to}: nothing can upload there")


def upload(
    directory: Path,
    to: str,
    journal: Path,
    provenance: Mapping[str, Any],
    progress: Callable[[Progress], None] = lambda _: None,
    *,
    connect: Callable[[str], Target] = target_of,
    tries: Tries | None = None,
) -> Uploaded:
    """Upload all files of a directory. Raise DataError. `journal`: a file that remembers what was uploaded before."""
    try:
        files = list(scan(directory))
    except OSError as error:
        raise DataError(f"{to}: {error.filename or directory} cannot be read: {error.strerror or error}") from error
    if not files:
        raise DataError(f"{to}: there is nothing to upload: the program wrote no file into {directory}")
    if taken := next((file.name for file in files if file.name in (MANIFEST, PROVENANCE)), None):
        raise DataError(f"{to}: allranks writes {taken} itself: the program must use another name")

    patient = tries or Tries()

    def retry(act: Callable[[], Any]) -> Any:
        return patient.until_done(act, to)

    target: Target = retry(lambda: connect(to))
    # Another job may have replaced what an earlier one uploaded.
    owner = [to, provenance.get("uid")]
    recorded = _read_journal(journal, owner)
    missing = [
        file for file in files if recorded.get(file.name) != _identity(file) or not _is_there(target, file, retry)
    ]
    if missing:
        retry(lambda: target.remove(MANIFEST))  # it would list the files of an earlier upload
    whole = sum(file.size for file in files)
    sent, size = len(files) - len(missing), whole - sum(file.size for file in missing)
    progress(Progress(sent, size, len(files), whole))
    try:
        with open(journal, "a", encoding="utf-8") as notes:
            for file in missing:
                try:
                    retry(partial(_put, target, directory, file, to))
                except DataError as error:
                    raise type(error)(f"{error}; {sent} of {len(files)} files are there") from error
                notes.write(json.dumps({"owner": owner, "name": file.name, "identity": _identity(file)}) + "\n")
                notes.flush()
                sent, size = sent + 1, size + file.size
                progress(Progress(sent, size, len(files), whole))
        if changed := next(
            (file.name for file in files if _stat(directory / file.name) != (file.size, file.mtime)), ""
        ):
            raise DataError(f"{to}: {changed} was changed while it was uploaded")
        for name, content in ((PROVENANCE, provenance), (MANIFEST, _manifest(files, provenance))):
            _put_json(target, journal.with_name(f"{journal.stem}.{name}"), name, content, retry)
    except OSError as error:
        raise explain(error, to) from error
    return Uploaded(len(files), whole, len(missing))


def _put(target: Target, directory: Path, file: LocalFile, to: str) -> None:
    try:
        target.put(directory / file.name, file.name)
    except ReplacedError:
        raise DataError(f"{to}: {file.name} was removed or replaced while it was uploaded") from None


def scan(directory: Path) -> Iterator[LocalFile]:
    """Yield all regular files, sorted by name. Links to files count as files; links to directories are not followed.

    Raise OSError, also for a directory that is closed to this user."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(directory, onerror=refuse):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if not is_data(path):
                continue
            with open_data(path) as file:
                status = os.fstat(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            yield LocalFile(path.relative_to(directory).as_posix(), status.st_size, status.st_mtime_ns, digest)


def is_data(path: Path) -> bool:
    """Return whether it is a file, or a link to one. A link to a file of the kernel is none: /proc/self/environ has the
    credentials of the process that uploads."""
    return path.is_file() and not path.resolve().is_relative_to("/proc")


class ReplacedError(FileNotFoundError):
    """A file was removed, or is no data any more."""


def open_data(path: Path) -> BufferedReader:
    """Open a file for which `is_data` holds. Raise ReplacedError if it has become something else since, for example a
    link to a file of the kernel, and OSError."""
    try:  # another program may write the directory; opening a pipe would wait for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ReplacedError(error.errno, error.strerror, str(path)) from error
    file = os.fdopen(descriptor, "rb")
    try:
        opened = Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:  # a system without /proc has no such files
        opened = path
    if stat.S_ISREG(os.fstat(descriptor).st_mode) and not opened.is_relative_to("/proc"):
        return file
    file.close()
    raise ReplacedError(errno.ENOENT, "it is no file of data any more", str(path))


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _identity(file: LocalFile) -> list[Any]:
    return [file.size, file.sha256]


def _is_there(target: Target, file: LocalFile, retry: Callable[[Callable[[], Any]], Any]) -> bool:
    return bool(retry(lambda: target.size(file.name)) == file.size)


def _read_journal(path: Path, owner: list[Any]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            if line["owner"] == owner:
                out[line["name"]] = line["identity"]
        except (ValueError, KeyError, TypeError):
            continue  # the last line of a process that was killed
    return out


def _manifest(files: list[LocalFile], provenance: Mapping[str, Any]) -> dict[str, Any]:
    listed = [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in files]
    return {"job": provenance.get("job"), "files": listed}


def _put_json(
    target: Target, path: Path, name: str, content: Mapping[str, Any], retry: Callable[[Callable[[], Any]], Any]
) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    try:
        retry(lambda: target.put(path, name))
    finally:
        path.unlink(missing_ok=True)


# --- whether files can be written to a destination -------------------------------------------------------------------

# Asked before hours of training depend on it. Nothing is left there. On S3 a multipart upload is begun and aborted: it
# needs the same right as an upload and makes no object. Other stores get an empty object, which is removed; it stays if
# the credentials may not delete.

SECONDS = 20.0
"""A store that does not answer for this long is not waited for: the upload may find it well again."""
PROBE = "allranks-write-check"
"""Name of the object."""


def check_destination(to: str, seconds: float = SECONDS) -> str:
    """Check that files can be written to `to`. Raise DataError if not.

    Return the reason why that is not certain; empty if it is writable."""
    if to.startswith("/"):
        return _check_directory(Path(to))
    results: list[str | DataError] = []
    # The clients of the stores have timeouts and tries of their own, which add up to minutes.
    thread = threading.Thread(target=lambda: results.append(_result(to)), daemon=True)
    thread.start()
    thread.join(seconds)
    result = results[0] if results else f"{to}: no answer within {seconds:.0f} s"
    if isinstance(result, DataError):
        raise result
    return result


def _check_directory(directory: Path) -> str:
    """Check a directory, or the nearest one above it that exists: the upload makes the others."""
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if not existing.is_dir():
        raise DataError(f"{directory}: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise DataError(f"{directory}: this user may not write into {existing}")
    return ""


def _result(to: str) -> str | DataError:
    try:
        return _write(to)
    except Exception as error:
        reason = explain(error, to)
        if isinstance(error, FileNotFoundError):
            bucket = to.partition("://")[2].partition("/")[0]
            return DataError(f"{to}: there is no bucket {bucket}, or it is not visible with these credentials")
        return str(reason) if isinstance(reason, (TemporaryError, UnknownError)) else reason


def _write(to: str) -> str:
    """Write to the destination. Return a note on what is left there; usually empty."""
    files, root = filesystem(to), to.partition("://")[2].rstrip("/")
    if to.startswith("s3://"):
        _begin_upload(files, *f"{root}/{PROBE}".split("/", 1))
        return ""
    files.pipe_file(f"{root}/{PROBE}", b"")
    try:
        files.rm_file(f"{root}/{PROBE}")
    except FileNotFoundError:
        pass  # another job checks the same place
    except Exception as error:  # credentials that may not delete can upload
        return f"the empty object {PROBE}, which was written to find out, could not be deleted: {explain(error, to)}"
    return ""


def _begin_upload(files: Any, bucket: str, key: str) -> None:
    begun = files.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    # Without the right to abort it, it stays invisible until the bucket's rules remove it.
    with contextlib.suppress(PermissionError):
        files.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=begun["UploadId"])
