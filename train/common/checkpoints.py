"""Atomic checkpoints: after a kill during a write, a file is either complete or missing.

A checkpoint is one zip archive, the format of `torch.save` and `numpy.savez`. Its checksums detect a damaged file
without the framework that wrote it.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from common.claims import Claim, number_in

KEEP = 2


class CheckpointStore:
    """The checkpoints of one directory. `epoch-00007.claim-00003<suffix>` is epoch 7, saved by the third training that
    started in the directory. `epoch-00007<suffix>`, without a claim, is older than all. Only rank 0 has a store."""

    def __init__(self, claim: Claim, suffix: str, say: Callable[[str], None] = print) -> None:
        self.directory = claim.directory
        self._claim = claim
        self._suffix = suffix
        self._say = say
        self._pattern = re.compile(rf"epoch-(\d{{5,}})(\.claim-\d{{5,}})?{re.escape(suffix)}")
        self._unsaved: tuple[int, bytes] | None = None

    def newest(self) -> tuple[int, bytes] | None:
        """Epoch and content of the newest complete checkpoint; skips damaged ones with a line each.

        The newest is the last one of the last training that saved any. A replaced training may have saved later epochs
        before it noticed; the training did not continue from these.
        """
        skipped: set[Path] = set()
        while left := [each for each in self._all() if each[2] not in skipped]:
            _, epoch, path = left[-1]
            skipped.add(path)
            try:
                content = path.read_bytes()
                check_archive(content)
            except FileNotFoundError:
                continue  # a replaced writer has just saved a newer one: it is in the next list
            except (OSError, ValueError) as error:
                self._say(f"checkpoint {path} is damaged ({error}): trying the one before it")
            else:
                return epoch, content
        return None

    def save(self, epoch: int, content: bytes) -> None:
        """Write the checkpoint of `epoch` atomically, then delete old ones. Raises Replaced if another training claimed
        the directory."""
        path = self.directory / f"epoch-{epoch:05d}{self._claim.mark}{self._suffix}"
        self._claim.write(path, content)
        self._unsaved = None
        # Never delete the checkpoints of a newer claim.
        older = [each for each in self._all() if each[0] <= self._claim.number]
        # Later epochs of older claims are damaged or were saved too late: this training resumed from an earlier one.
        abandoned = [each for each in older if each[0] < self._claim.number and each[1] >= epoch]
        others = [each for each in older if each not in abandoned]
        for _, _, path in others[:-KEEP] + abandoned:
            path.unlink(missing_ok=True)

    def hold(self, epoch: int, content: bytes) -> None:
        """Keep a checkpoint that is not due yet in memory for `flush`."""
        self._unsaved = epoch, content

    def flush(self) -> int | None:
        """Save the checkpoint in memory and return its epoch; None if there is none."""
        if self._unsaved is None:
            return None
        epoch, content = self._unsaved
        self.save(epoch, content)
        return epoch

    def _all(self) -> list[tuple[int, int, Path]]:
        """(claim, epoch, path) of each checkpoint, the newest last."""
        matches = ((self._pattern.fullmatch(path.name), path) for path in self.directory.iterdir())
        return sorted((number_in(path.name), int(match[1]), path) for match, path in matches if match)


def check_archive(content: bytes) -> None:
    """Raises ValueError unless `content` is a complete zip archive with correct checksums."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    if damaged is not None:
        raise ValueError(f"wrong checksum of {damaged}")
