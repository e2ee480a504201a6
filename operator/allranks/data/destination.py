"""Whether files can be written to the destination of an output: asked before hours of training depend on it.

Nothing is left there. On S3 a multipart upload is begun and aborted, which needs the same right as an upload and makes
no object. Other stores get an empty object, which is removed; it stays if the credentials may not delete.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from allranks.data.errors import TemporaryError, UnknownError, explain
from allranks.data.object_source import filesystem
from allranks.errors import DataError

SECONDS = 20.0
"""A store that does not answer for this long is not waited for: the upload may find it well again."""
PROBE = "allranks-write-check"
"""Name of the object."""


def check(to: str, seconds: float = SECONDS) -> str:
    """Raises DataError if nothing can be written there. Returns why that is not certain; empty if it is writable."""
    if to.startswith("/"):
        return _check_directory(Path(to))
    found: list[str | DataError] = []
    # The clients of the stores have timeouts and tries of their own, which add up to minutes.
    thread = threading.Thread(target=lambda: found.append(_result(to)), daemon=True)
    thread.start()
    thread.join(seconds)
    result = found[0] if found else f"{to}: no answer within {seconds:.0f} s"
    if isinstance(result, DataError):
        raise result
    return result


def _check_directory(directory: Path) -> str:
    """The upload makes directories that do not exist."""
    there = next(each for each in (directory, *directory.parents) if each.exists())
    if not there.is_dir():
        raise DataError(f"{directory}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise DataError(f"{directory}: this user may not write into {there}")
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
    """What it has left there; usually empty."""
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
