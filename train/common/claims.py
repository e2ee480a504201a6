"""Fencing for a directory: only the training that started last may write into it.

A node that is unreachable is not dead. Its job restarts elsewhere on the same volume while the old rank 0 may still
run. So each rank 0 takes the next number of the directory at its start, its claim, and checks before every write
whether there is a higher one. Clocks are not compared. Attempt numbers are not enough: a job that is created again
counts them from 0 and may continue in the same directory.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from common.files import sync_directory, write_atomically

ATTEMPT_VARIABLE = "ALLRANKS_ATTEMPT"
JOB_VARIABLE = "ALLRANKS_JOB_UID"
# Exit code of a replaced program. EX_TEMPFAIL of sysexits.h: the program has no error and may run again.
EXIT_CODE = 75
NUMBER = re.compile(r"\.claim-(\d{5,})")


class Replaced(Exception):
    """Another training has claimed the directory: this one must not write there any more."""


class Claim:
    """The right to write into a directory until another training claims it. Only rank 0 of a job has one.

    A new claim can appear between the check and the write, and network file systems can show it late. Checkpoints are
    safe, because their names contain the claim (`epoch-00007.claim-00003.pt`): an older writer can neither replace nor
    outrank those of a newer one. The newer training corrects `metrics.jsonl` with its next line.
    """

    def __init__(self, directory: Path) -> None:
        """Raises Replaced if a later attempt of the same job has already claimed the directory: this one started late,
        or was started again by a stale launcher."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._owner = Owner(os.environ.get(ATTEMPT_VARIABLE) or "0", os.environ.get(JOB_VARIABLE, ""))
        newest = newest_claim(directory)
        other = read_owner(directory / mark(newest))
        if other and other.is_later_attempt_than(self._owner):
            raise Replaced(self._owner.replaced_by(other, directory / mark(newest)))
        self.number = self._take()
        self._clean()

    @property
    def mark(self) -> str:
        """The part of file names, `.claim-00003`. With five digits names sort like numbers."""
        return mark(self.number)

    def check(self) -> None:
        """Raises Replaced if there is a newer claim."""
        newest = newest_claim(self.directory)
        if newest > self.number:
            path = self.directory / mark(newest)
            raise Replaced(self._owner.replaced_by(read_owner(path), path))

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file of the directory atomically. Raises Replaced if there is a newer claim."""
        self.check()
        try:
            write_atomically(path, content, self.mark)
        except FileNotFoundError:
            self.check()  # a newer training has removed the temporary file
            raise

    def _take(self) -> int:
        number = newest_claim(self.directory) + 1
        while True:
            try:
                with (self.directory / mark(number)).open("x") as file:  # only one process can create it
                    json.dump(asdict(self._owner), file)
            except FileExistsError:
                number += 1  # another training starts at the same moment
                continue
            sync_directory(self.directory)
            newest = newest_claim(self.directory)
            if newest == number:
                return number
            number = newest + 1  # the number may have been taken and removed before this process created it

    def _clean(self) -> None:
        """Remove older claims and the temporary files of killed writers."""
        for path in self.directory.glob(".*"):
            number = number_in(path.name)
            temporary = path.name.endswith(".tmp")
            if 0 < number < self.number and (temporary or path.name == mark(number)):
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Owner:
    """The owner of a claim: its content as JSON."""

    attempt: str
    job: str  # its UID; may be empty

    def is_later_attempt_than(self, other: Owner) -> bool:
        """Whether this is a later attempt of the same job. Without a UID, the last start wins."""
        comparable = self.attempt.isdecimal() and other.attempt.isdecimal()
        return bool(self.job) and self.job == other.job and comparable and int(self.attempt) > int(other.attempt)

    def replaced_by(self, other: Owner | None, path: Path) -> str:
        """The message of Replaced."""
        later = f"attempt {other.attempt}" if other and other.attempt != self.attempt else "a later start"
        return f"attempt {self.attempt} was replaced by {later} ({path})"


def read_owner(path: Path) -> Owner | None:
    """None if the claim was removed by an even newer one, or is incomplete because its writer was killed."""
    try:
        content = json.loads(path.read_bytes())
        return Owner(str(content["attempt"]), str(content["job"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mark(number: int) -> str:
    """The name of the claim's own file, and a part of the names of the files written with it."""
    return f".claim-{number:05d}"


def number_in(name: str) -> int:
    """The claim in the name of a file; 0 without one."""
    match = NUMBER.search(name)
    return int(match[1]) if match else 0


def newest_claim(directory: Path) -> int:
    """The highest number in any file name, so that checkpoints copied without the hidden files count as well."""
    return max((number_in(path.name) for path in directory.iterdir()), default=0)
