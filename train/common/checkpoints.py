"""Checkpoints that survive being killed while they are written: a file is either whole or not there.

A checkpoint is one zip archive, which is what `torch.save` and `numpy.savez` both write: its checksums tell a damaged
file without the framework that wrote it.
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
    """The checkpoints `epoch-00007.claim-00003<suffix>` of one directory: epoch 7, saved by the third training that
    started there. `epoch-00007<suffix>`, from before there were claims, is older than all. Only rank 0 has a store."""

    def __init__(self, claim: Claim, suffix: str, say: Callable[[str], None] = print) -> None:
        self.directory = claim.directory
        self._claim = claim
        self._suffix = suffix
        self._say = say
        self._pattern = re.compile(rf"epoch-(\d{{5,}})(\.claim-\d{{5,}})?{re.escape(suffix)}")
        self._unsaved: tuple[int, bytes] | None = None

    def newest(self) -> tuple[int, bytes] | None:
        """Epoch and content of the newest checkpoint that is whole; damaged ones are passed over, each with a line.

        The newest is the last one of the last training that saved any. One that was replaced and did not know yet may
        have saved later epochs than its successor did: they are not what the training has gone on from.
        """
        passed: set[Path] = set()
        while left := [each for each in self._all() if each[2] not in passed]:
            _, epoch, path = left[-1]
            passed.add(path)
            try:
                content = path.read_bytes()
                check_archive(content)
            except FileNotFoundError:
                continue  # a writer that does not know of us yet has just saved a newer one: it is in the next list
            except (OSError, ValueError) as error:
                self._say(f"checkpoint {path} is damaged ({error}): trying the one before it")
            else:
                return epoch, content
        return None

    def save(self, epoch: int, content: bytes) -> None:
        """Write the checkpoint of `epoch` so that no reader ever sees a part of it, then drop the old ones. Raises
        Replaced where the directory was claimed by another one."""
        path = self.directory / f"epoch-{epoch:05d}{self._claim.mark}{self._suffix}"
        self._claim.write(path, content)
        self._unsaved = None
        # What a newer one has saved since we looked is not ours to drop.
        known = [each for each in self._all() if each[0] <= self._claim.number]
        # Later epochs of older claims are damaged, or came too late: we resumed from an earlier one.
        abandoned = [each for each in known if each[0] < self._claim.number and each[1] >= epoch]
        others = [each for each in known if each not in abandoned]
        for _, _, path in others[:-KEEP] + abandoned:
            path.unlink(missing_ok=True)

    def hold(self, epoch: int, content: bytes) -> None:
        """Keep a checkpoint that is not due yet in memory, for `flush`."""
        self._unsaved = epoch, content

    def flush(self) -> int | None:
        """Save what is held, and return its epoch; None where there is nothing to save."""
        if self._unsaved is None:
            return None
        epoch, content = self._unsaved
        self.save(epoch, content)
        return epoch

    def _all(self) -> list[tuple[int, int, Path]]:
        """(claim, epoch, path) of each, the newest last."""
        matches = ((self._pattern.fullmatch(path.name), path) for path in self.directory.iterdir())
        return sorted((number_in(path.name), int(match[1]), path) for match, path in matches if match)


def check_archive(content: bytes) -> None:
    """Raises ValueError unless `content` is a whole zip archive of which every member has its checksum."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    if damaged is not None:
        raise ValueError(f"wrong checksum of {damaged}")
