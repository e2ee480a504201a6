"""The checkpoints in a directory: which are there, which are complete, and from which a program continues.

A checkpoint is what has its step in its name: `step-8.pt`, `checkpoint-500/`, or several files. A program that reports
the path of a checkpoint gets a manifest, written when all files are there: `.allranks-checkpoints/NAME.json` beside the
checkpoint, with their sizes, and later their hashes. Needs the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any, NamedTuple

from allranks.report.state import ATTEMPT, RANK, number_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

MOST = 5
"""The newest checkpoints of a directory: these are reported to the operator."""
MOST_ENTRIES = 10_000
LONGEST_PATH = 256
LARGEST_STEP = 2**31 - 1
"""A larger number in a name is a time, for example."""
MANIFESTS = ".allranks-checkpoints"
SET_ASIDE = ".allranks-set-aside"
DIRECTORY, RESUME_STEP = "ALLRANKS_CHECKPOINT_DIR", "ALLRANKS_RESUME_STEP"
KEEP = "ALLRANKS_CHECKPOINT_KEEP"
INTERVAL_SECONDS, REPEAT_SECONDS = 5.0, 60.0
AT_EXIT_SECONDS = 1.0
_NUMBERED = re.compile(
    r"(?:^|[^a-z0-9])(?:checkpoint|ckpt|chkpt|cp|steps?|iter|iteration|global_?step)[-_=.]?(\d{1,18})(?!\d)",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?<!\d)20\d\d([-_.]?)(0[1-9]|1[0-2])\1(0[1-9]|[12]\d|3[01])(?!\d)")
"""In a name: a date is no step."""
_UNFINISHED = (".tmp", ".temp", ".partial", ".incomplete", ".lock")
"""Ends of the names of files that are renamed when they are complete."""


class Stored(NamedTuple):
    """A checkpoint in a directory."""

    step: int
    path: str
    """The file or folder; of several files, the beginning that their names have in common."""
    names: tuple[str, ...]
    written_at: float
    complete: bool | None
    """Whether all files have the sizes in the manifest; None without a manifest."""
    verified: bool | None
    """Whether the files had the hashes in the manifest when they were compared; None if they were not."""
    bytes: int | None = None
    """Size of its files; None for a folder without a manifest."""


def steps_in(path: Path) -> set[int]:
    """Return the steps in a name: checkpoint-500, step=500.ckpt, and 500 if it is a folder."""
    steps = {int(digits) for digits in _NUMBERED.findall(_DATE.sub("", path.name))}
    return steps | ({int(path.name)} if re.fullmatch(r"\d{1,18}", path.name) and path.is_dir() else set())


def stored(directory: str | os.PathLike[str]) -> list[Stored]:
    """Return the checkpoints in a directory, the oldest first. Raise OSError."""
    folder = Path(directory)
    manifests = _read_manifests(folder)
    by_step: dict[int, list[Path]] = {}
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MOST_ENTRIES)]
    for name in sorted(names):
        if name.startswith(".") or name.endswith(_UNFINISHED):
            continue
        path = folder / name
        steps = {manifests[name]["step"]} if name in manifests else steps_in(path)
        if steps and max(steps) <= LARGEST_STEP:
            by_step.setdefault(max(steps), []).append(path)
    checkpoints = []
    for step, paths in by_step.items():
        with contextlib.suppress(OSError):  # the program may delete old ones meanwhile
            checkpoints.append(_describe(step, paths, manifests))
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)


def _describe(step: int, paths: list[Path], manifests: Mapping[str, Any]) -> Stored:
    names = [path.name for path in paths]
    common = names[0] if len(names) == 1 else _beginning(names[0], names[-1]) or names[0]
    stats = [path.stat() for path in paths]
    written_at = max(stat.st_mtime for stat in stats)
    of_path = [manifests[name] for name in names if name in manifests]
    complete = all(_has_sizes(paths[0].parent, manifest) for manifest in of_path) if of_path else None
    results = [manifest.get("verified") for manifest in of_path]
    verified = False if False in results else True if results and all(results) else None
    path = str(paths[0].with_name(common))
    sizes = None if any(S_ISDIR(stat.st_mode) for stat in stats) else sum(stat.st_size for stat in stats)
    if of_path:
        sizes = sum(file["size"] for manifest in of_path for file in manifest["files"].values())
    return Stored(step, path, tuple(names), written_at, complete, verified if complete else None, sizes)


def _beginning(first: str, last: str) -> str:
    """Return what sorted names have in common, up to a separator: `ckpt-8` of TensorFlow's files."""
    size = next((n for n, (a, b) in enumerate(zip(first, last)) if a != b), min(len(first), len(last)))  # noqa: B905
    return first[:size].rstrip("._-")


def resume_from(directory: str | os.PathLike[str] | None = None) -> str | None:
    """Return the path of the newest complete checkpoint; None if there is none.

    `directory`: ALLRANKS_CHECKPOINT_DIR. After a checkpoint that could not be read, ALLRANKS_RESUME_STEP is the step of
    the one before. If the program reports paths, a checkpoint without a manifest is not complete.
    """
    folder = directory or os.environ.get(DIRECTORY)
    if not folder or not Path(folder).is_dir():
        return None
    limit = os.environ.get(RESUME_STEP, "")
    checkpoints = [c for c in stored(folder) if c.complete is not False and c.verified is not False]
    if any(checkpoint.complete for checkpoint in checkpoints):
        checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint.complete]
    if limit.isdecimal():
        checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint.step <= int(limit)]
    return checkpoints[-1].path if checkpoints else None


# --- manifests --------------------------------------------------------------------------------------------------------


def write_manifest(path: str | os.PathLike[str], step: int | None) -> Path | None:
    """Write the manifest of a checkpoint with the sizes of its files; return its path. Raise OSError.

    None without a step.
    """
    checkpoint = Path(path)
    if step is None:
        steps = steps_in(checkpoint)
        if not steps:
            return None
        step = max(steps)
    files = {name: {"size": (checkpoint.parent / name).stat().st_size} for name in _files(checkpoint)}
    if not files:
        raise FileNotFoundError(f"{checkpoint} does not exist or is empty")
    folder = checkpoint.parent / MANIFESTS
    folder.mkdir(exist_ok=True)
    for other in folder.glob("*.json"):
        if not (checkpoint.parent / other.name[: -len(".json")]).exists():
            other.unlink()
    manifest = folder / f"{checkpoint.name}.json"
    _write(manifest, {"step": int(step), "files": files})
    return manifest


_background: threading.Thread | None = None
_in_use: set[str] | None = None
"""The checkpoints from which this process may have resumed; None before its first one."""


def record(path: str | os.PathLike[str], step: int | None) -> None:
    """Write the manifest of a checkpoint in the first rank. Raise OSError.

    In the background, add the hashes, and delete old checkpoints if the job says how many to keep. A checkpoint that is
    stored while the one before is read for its hashes gets none.
    """
    global _background, _in_use
    if not is_first_rank():
        return
    if _in_use is None:
        resumed = resume_from(Path(path).parent)
        _in_use = {resumed} if resumed else set()
    manifest = write_manifest(path, step)
    if manifest is not None and (_background is None or not _background.is_alive()):
        _background = threading.Thread(target=_finish, args=(manifest,), name="allranks-manifest", daemon=True)
        _background.start()


def _finish(manifest: Path) -> None:
    _add_hashes(manifest)
    keep = os.environ.get(KEEP, "")
    if keep.isdecimal() and int(keep):
        with contextlib.suppress(OSError):
            prune(manifest.parent.parent, int(keep), _in_use or ())


def prune(directory: Path, keep: int, in_use: Collection[str]) -> None:
    """Delete all but the newest complete checkpoints. Raise OSError.

    Those without a manifest stay, as the program has not reported them with their paths.
    """
    complete = [checkpoint for checkpoint in stored(directory) if checkpoint.complete]
    for checkpoint in complete[:-keep]:
        if checkpoint.path in in_use:
            continue
        for name in checkpoint.names:
            (directory / MANIFESTS / f"{name}.json").unlink(missing_ok=True)
        for name in checkpoint.names:
            path = directory / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _add_hashes(manifest: Path) -> None:
    """Add the hashes of the files, unless the checkpoint is deleted or replaced meanwhile."""
    with contextlib.suppress(OSError, ValueError):
        before = manifest.read_bytes()
        content, folder = json.loads(before), manifest.parent.parent
        for name, file in content["files"].items():
            file["sha256"] = _hash(folder / name)
        if _has_sizes(folder, content) and manifest.read_bytes() == before:
            _write(manifest, content)


def verify(directory: str | Path, name: str) -> bool | None:
    """Compare the files of a checkpoint with the hashes in its manifest, and record the result. None without hashes.

    Raise OSError.
    """
    folder = Path(directory)
    content = _read_manifests(folder).get(name)
    if content is None or not all("sha256" in file for file in content["files"].values()):
        return None
    same = _has_sizes(folder, content) and all(
        _hash(folder / file) == entry["sha256"] for file, entry in content["files"].items()
    )
    _write(folder / MANIFESTS / f"{name}.json", {**content, "verified": same})
    return same


def _read_manifests(folder: Path) -> dict[str, Any]:
    """Return name of a checkpoint -> its manifest. What is no manifest is left out."""
    manifests = {}
    for path in (folder / MANIFESTS).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(path.read_text(encoding="utf-8"))
            if type(content["step"]) is int and all(type(f["size"]) is int for f in content["files"].values()):
                manifests[path.name[: -len(".json")]] = content
    return manifests


def _has_sizes(folder: Path, manifest: Mapping[str, Any]) -> bool:
    try:
        return all((folder / name).stat().st_size == file["size"] for name, file in manifest["files"].items())
    except OSError:
        return False


def _files(checkpoint: Path) -> Iterator[str]:
    """Yield the paths of the files of a checkpoint, relative to the directory that it is in."""
    if checkpoint.is_file():
        yield checkpoint.name
    for folder, _, names in os.walk(checkpoint):
        for name in names:
            yield (Path(folder) / name).relative_to(checkpoint.parent).as_posix()


def _hash(path: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _write(path: Path, content: object) -> None:
    """Write a file, which appears as a whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# --- the thread that tells the operator -------------------------------------------------------------------------------

_watch: Watch | None = None
_MARK = "ALLRANKS_CHECKPOINTS_WATCHED_BY"
_SETTINGS = (DIRECTORY, "ALLRANKS_REPORT_URL", "ALLRANKS_REPORT_TOKEN_FILE")


def is_first_rank() -> bool:
    """Return whether this process is rank 0, or in the first pod if it has no rank."""
    rank = next((os.environ[name] for name in (*RANK, "JAX_PROCESS_ID") if name in os.environ), None)
    return (rank if rank is not None else os.environ.get("ALLRANKS_INDEX", "0")) == "0"


def start_watch() -> None:
    """Start the thread in the first rank of a job with a directory for checkpoints.

    Other ranks, and processes that the first one starts, list the directory only if they fail: an exception while
    the newest checkpoint is read may end this rank before the first one.
    """
    global _watch
    import atexit

    process, settings = str(os.getpid()), [os.environ.get(name, "") for name in _SETTINGS]
    if not all(settings) or _watch is not None:
        return
    if is_first_rank() and os.environ.get(_MARK, process) == process:
        os.environ[_MARK] = process
        _watch = Watch(*settings)
        atexit.register(_watch.finish)
    else:
        atexit.register(list_after_exception, os.getpid())


def list_after_exception(process: int) -> None:
    """Report the checkpoints if an exception has ended the program of this process."""
    from allranks.report.transport import AttemptOver, Rejected, SendFailed, Transport

    directory, url, token_file = (os.environ.get(name, "") for name in _SETTINGS)
    if getattr(sys, "last_value", None) is None or process != os.getpid() or not (directory and url and token_file):
        return
    with contextlib.suppress(OSError, AttemptOver, Rejected, SendFailed):
        Transport(url, token_file).post(_message(newest(directory), directory), AT_EXIT_SECONDS)


def newest(directory: str) -> list[Stored]:
    """Return the checkpoints that are reported to the operator. Raise OSError."""
    return [checkpoint for checkpoint in stored(directory) if len(checkpoint.path) <= LONGEST_PATH][-MOST:]


def _message(checkpoints: list[Stored], directory: str) -> dict[str, Any]:
    """Return the message. `damageElsewhere`: an exception that ends the program is about a file that is not there."""
    content = {"attempt": number_in(ATTEMPT), "checkpoints": _entries(checkpoints)}
    return {**content, "damageElsewhere": True} if _damage_elsewhere(directory) else content


def _damage_elsewhere(directory: str) -> bool:
    from allranks.report.damaged_file import is_elsewhere

    with contextlib.suppress(Exception):  # variables of the program
        return is_elsewhere(getattr(sys, "last_value", None), directory)
    return False


def _entries(checkpoints: list[Stored]) -> list[dict[str, Any]]:
    now = time.time()
    return [
        {
            "step": checkpoint.step,
            "path": checkpoint.path,
            "ago": round(max(0.0, now - checkpoint.written_at), 3),
            "complete": checkpoint.complete,
            "verified": checkpoint.verified,
            "bytes": checkpoint.bytes,
        }
        for checkpoint in checkpoints
    ]


class Watch:
    """Lists the checkpoints now and then, and sends the newest ones when they change. A storage that hangs delays
    nothing but this thread."""

    def __init__(self, directory: str, url: str, token_file: str) -> None:
        from allranks.report.transport import Transport

        self._directory, self._process = directory, os.getpid()
        self._transport = Transport(url, token_file)
        self._sent: list[Any] | None = None
        self._sent_at = 0.0
        self._wake, self._ending, self._over = threading.Event(), False, threading.Event()
        threading.Thread(target=self._run, name="allranks-checkpoints", daemon=True).start()

    def finish(self) -> None:
        """Send the last state, after old checkpoints are deleted; block for at most a second for each."""
        if os.getpid() == self._process:
            if _background is not None:
                _background.join(AT_EXIT_SECONDS)
            self._ending = True
            self._wake.set()
            self._over.wait(AT_EXIT_SECONDS)

    def _run(self) -> None:
        from allranks.report.transport import AttemptOver, Rejected, SendFailed

        try:
            while True:
                last, pause = self._ending, INTERVAL_SECONDS
                self._wake.clear()
                try:
                    self._send()
                except SendFailed as failed:
                    pause = self._transport.pause(failed, INTERVAL_SECONDS)
                except OSError:
                    pass  # the directory is not there, or cannot be read
                if last:
                    return
                self._wake.wait(pause)
        except (AttemptOver, Rejected):
            pass
        finally:
            self._over.set()

    def _send(self) -> None:
        checkpoints = newest(self._directory)
        message = _message(checkpoints, self._directory)
        changed = checkpoints != self._sent or "damageElsewhere" in message
        if changed or time.monotonic() - self._sent_at >= REPEAT_SECONDS:
            self._transport.post(message)
            self._sent, self._sent_at = checkpoints, time.monotonic()


# --- a checkpoint that cannot be read ---------------------------------------------------------------------------------


def set_aside(directory: str | Path, step: int, name: str) -> str:
    """Move the checkpoint of a step into the folder `name` in `.allranks-set-aside`; return a sentence. Raise OSError.

    One whose files have the hashes in its manifest stays: something else could not be read.
    """
    folder = Path(directory)
    checkpoints = stored(folder)
    checkpoint = next((candidate for candidate in checkpoints if candidate.step == step), None)
    if checkpoint is None:
        return f"there is no checkpoint of step {step} in {folder}"
    if all(verify(folder, file) for file in checkpoint.names):
        return f"{checkpoint.path} is not set aside: its files have the hashes in its manifest"
    target = folder / SET_ASIDE / name
    target.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.names:
        (folder / file).replace(target / file)
        manifest = folder / MANIFESTS / f"{file}.json"
        if manifest.exists():
            manifest.replace(target / manifest.name)
    if older := [candidate for candidate in checkpoints if candidate.step < step]:
        _point_to(older[-1], checkpoint, folder, target)
    return f"{checkpoint.path} cannot be read: it is set aside in {target}"


_POINTERS = ("checkpoint", "latest", "latest_checkpointed_iteration.txt")
"""The files of TensorFlow, DeepSpeed and Megatron that name the newest checkpoint."""


def _point_to(older: Stored, newest: Stored, folder: Path, target: Path) -> None:
    """Let the files that name the newest checkpoint name the one before. What they were is kept in `target`."""
    name = re.compile(rf"(?<!\w){re.escape(Path(newest.path).name)}(?!\d)")
    for file in _POINTERS:
        path = folder / file
        if not path.is_file() or path.stat().st_size > _LONGEST_POINTER:
            continue
        before = path.read_text(encoding="utf-8", errors="surrogateescape")
        after = name.sub(Path(older.path).name, before)
        if before.strip() == str(newest.step):
            after = str(older.step)
        if after != before:
            shutil.copy2(path, target / file)
            path.write_text(after, encoding="utf-8", errors="surrogateescape")


_LONGEST_POINTER = 1 << 16
