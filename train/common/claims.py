"""Who may write into a directory: the training that started in it last.

A node that is silent is not dead. What ran on it is left behind and started again elsewhere, on the same volume, while
the old rank 0 may go on for a while. So each rank 0 that starts takes the next number of the directory, its claim, and
looks before every write whether there is a higher one by now. Clocks are not compared. Attempts are within one job
only: a job that is made anew counts them from 0 again, and goes on in the directory of the one before it.
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
# Of a program that was replaced. EX_TEMPFAIL of sysexits.h: nothing is wrong with the program, it may be run again.
EXIT_CODE = 75
NUMBER = re.compile(r"\.claim-(\d{5,})")


class Replaced(Exception):
    """Another start has claimed the directory: this one must not write there any more."""


class Claim:
    """The right to write into a directory, until somebody else claims it. Only rank 0 of a job has one.

    A claim can come between the look and the write, or a network file system can tell of it late. That does no harm to
    checkpoints, which have the number in their names (`epoch-00007.claim-00003.pt`): the older writer can neither
    replace nor outrank a newer one's. What it does to `metrics.jsonl` the newer one puts right at its next line.
    """

    def __init__(self, directory: Path) -> None:
        """Raises Replaced where a later attempt of the same job has claimed the directory already: this one was started
        late, or again by a launcher that was left behind."""
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
        """What names of files have of it: `.claim-00003`. Five digits sort as the numbers do."""
        return mark(self.number)

    def check(self) -> None:
        """Raises Replaced where there is a newer claim."""
        newest = newest_claim(self.directory)
        if newest > self.number:
            path = self.directory / mark(newest)
            raise Replaced(self._owner.replaced_by(read_owner(path), path))

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file of the directory in one step. Raises Replaced where there is a newer claim."""
        self.check()
        try:
            write_atomically(path, content, self.mark)
        except FileNotFoundError:
            self.check()  # the newer one has removed the temporary file
            raise

    def _take(self) -> int:
        number = newest_claim(self.directory) + 1
        while True:
            try:
                with (self.directory / mark(number)).open("x") as file:  # one alone can make it
                    json.dump(asdict(self._owner), file)
            except FileExistsError:
                number += 1  # somebody starts at the same moment
                continue
            sync_directory(self.directory)
            newest = newest_claim(self.directory)
            if newest == number:
                return number
            number = newest + 1  # our number may have been taken and removed between the look and the making

    def _clean(self) -> None:
        """Remove the older claims, and what writers that were killed have left half written."""
        for path in self.directory.glob(".*"):
            number = number_in(path.name)
            temporary = path.name.endswith(".tmp")
            if 0 < number < self.number and (temporary or path.name == mark(number)):
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Owner:
    """Who has made a claim; its content, as JSON."""

    attempt: str
    job: str  # its UID; empty where it is not known

    def is_later_attempt_than(self, other: Owner) -> bool:
        """Of one and the same job. Where that is not known, whoever starts last is in the right."""
        comparable = self.attempt.isdecimal() and other.attempt.isdecimal()
        return bool(self.job) and self.job == other.job and comparable and int(self.attempt) > int(other.attempt)

    def replaced_by(self, other: Owner | None, path: Path) -> str:
        """In words."""
        later = f"attempt {other.attempt}" if other and other.attempt != self.attempt else "a later start"
        return f"attempt {self.attempt} was replaced by {later} ({path})"


def read_owner(path: Path) -> Owner | None:
    """None where the claim is gone, because of an even newer one, or not whole, because its writer was killed."""
    try:
        content = json.loads(path.read_bytes())
        return Owner(str(content["attempt"]), str(content["job"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mark(number: int) -> str:
    """The name of the claim's own file, and a part of the names of the files that were written under it."""
    return f".claim-{number:05d}"


def number_in(name: str) -> int:
    """The claim under which the file of this name was written; 0 for those that are older than claims."""
    match = NUMBER.search(name)
    return int(match[1]) if match else 0


def newest_claim(directory: Path) -> int:
    """By all names, so that checkpoints that somebody has copied here without the hidden files count as well."""
    return max((number_in(path.name) for path in directory.iterdir()), default=0)
