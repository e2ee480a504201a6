"""The code of the job in a pod, which a supervisor replaces before it starts the program of a further attempt.

`allranks inject` unpacks the first code and records its files. Only recorded files are replaced and removed: what the
program or a volume added to the directory stays. Needs the standard library and `allranks.report`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Callable, Mapping  # noqa: UP035 (the Python of the image)

RECORD = Path(__file__).resolve().parent / "code.json"
FETCH_SECONDS = 15.0
"""Less than the operator waits for the start of an attempt in its pods."""
TRY_SECONDS = 8.0
PAUSE_SECONDS = 0.3
ANSWER_BYTES = 2 * 2**20
"""A ConfigMap holds 1 MiB, which is 1.4 MB in base64."""


class Unavailable(Exception):
    """The code cannot be had in this pod. The message is the end of a sentence for the user."""


class JobCode:
    """`sha256` is the hash of the code that is in the directory."""

    def __init__(self, record: Mapping[str, object], url: str, token_file: str) -> None:
        self.sha256 = str(record["sha256"])
        self._directory, files = Path(str(record["path"])), record["files"]
        self._files = [str(name) for name in files] if isinstance(files, list) else []
        self._url, self._token_file = url.rpartition("/")[0] + "/code", token_file

    @classmethod
    def of_pod(cls, env: Mapping[str, str]) -> JobCode | None:
        """Return the code that was unpacked in this pod; None without a record of it."""
        try:
            record = json.loads(RECORD.read_bytes())
            return cls(record, env["ALLRANKS_REPORT_URL"], env["ALLRANKS_REPORT_TOKEN_FILE"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def replace(self, sha256: str, stopped: Callable[[], bool]) -> bool:
        """Fetch other code and put it in place. No program may run. Return False if the job has other code by now, or
        if `stopped`. Raise Unavailable."""
        archive = self._fetch(sha256, stopped)
        if archive is None:
            return False
        try:
            self._switch(archive, sha256)
        except ImportError as error:
            raise Unavailable(f"the image's Python cannot unpack it: {error}") from error
        except OSError as error:
            raise Unavailable(f"it cannot be written: {error.strerror or error}") from error
        return True

    def _fetch(self, sha256: str, stopped: Callable[[], bool]) -> bytes | None:
        from allranks.report.transport import AttemptOver, Rejected, SendFailed, Transport

        transport = Transport(self._url, self._token_file, ANSWER_BYTES)
        deadline = time.monotonic() + FETCH_SECONDS
        try:
            while not stopped():
                try:
                    answer = transport.post({"sha256": sha256}, TRY_SECONDS)
                    return base64.b64decode(str(answer["archive"]), validate=True)
                except AttemptOver:
                    return None
                except (Rejected, KeyError, binascii.Error) as error:
                    raise Unavailable(f"the operator does not provide it: {error}") from error
                except SendFailed as error:
                    if time.monotonic() >= deadline:
                        raise Unavailable(f"it cannot be fetched: {error}") from error
                time.sleep(PAUSE_SECONDS)
            return None
        finally:
            transport.close()

    def _switch(self, archive: bytes, sha256: str) -> None:
        """Unpack beside the present files, compare the hash, and then move the files.

        Raise Unavailable, OSError and ImportError."""
        import tempfile

        from unpack import Unusable, unpack  # type: ignore[import-not-found]  # in the same directory

        with tempfile.TemporaryDirectory(prefix=".allranks-code-", dir=self._directory) as beside:
            packed, unpacked = Path(beside) / "packed", Path(beside) / "unpacked"
            packed.write_bytes(archive)
            try:
                unpack(packed, sha256, unpacked)
            except Unusable as error:
                raise Unavailable(str(error)) from error
            files = _files_in(unpacked)
            for name in set(self._files) - set(files):
                _remove(self._directory, name)
            for name in files:
                _move(unpacked / name, self._directory / name)
        self._files, self.sha256 = files, sha256


def record(sha256: str, path: Path, directory: Path) -> None:
    """Record the code that was unpacked into `path`, in the directory of the helpers. Raise OSError."""
    text = json.dumps({"sha256": sha256, "path": str(path), "files": _files_in(path)})
    (directory / RECORD.name).write_text(text, encoding="utf-8")


def _files_in(directory: Path) -> list[str]:
    """Return the names of all files, relative to the directory."""
    return [
        str((Path(folder) / name).relative_to(directory)) for folder, _, names in os.walk(directory) for name in names
    ]


def _move(source: Path, target: Path) -> None:
    """Replace a file, unless it has the same content and mode: then what Python compiled of it stays valid."""
    import filecmp

    with contextlib.suppress(OSError):
        same_mode = source.stat().st_mode == target.lstat().st_mode
        if same_mode and filecmp.cmp(source, target, shallow=False):
            return
    _make(target.parent)
    source.replace(target)
    _forget_compiled(target)


def _make(folder: Path) -> None:
    """Make a folder that all users of the pod may change, like the folders of the first code. A file of that name is
    removed."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.unlink(missing_ok=True)
    folder.mkdir()
    folder.chmod(0o777)


def _remove(directory: Path, name: str) -> None:
    """Remove a file that the next code does not have, and folders that are empty then."""
    path = directory / name
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()
    _forget_compiled(path)
    for folder in path.parents:
        if folder == directory:
            return
        with contextlib.suppress(OSError):
            (folder / "__pycache__").rmdir()
        with contextlib.suppress(OSError):
            folder.rmdir()


def _forget_compiled(path: Path) -> None:
    """Remove what Python compiled: it compares sizes and whole seconds only."""
    if path.suffix == ".py":
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            with contextlib.suppress(OSError):
                compiled.unlink()
