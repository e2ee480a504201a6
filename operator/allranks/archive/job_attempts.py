"""The jobs that the archiver's watch shows or showed, and their attempts: a pod cannot claim to belong to others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_DELETED = 10_000
"""Deleted jobs whose pods may still end."""


class JobAttempts:
    """The latest attempt of each job, by the folder of the job, which has its namespace, name and UID."""

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = lambda _folder: None
        """Called with the folder of a job that has a new attempt."""
        self._attempts: dict[str, int] = {}
        self._deleted: OrderedDict[str, int] = OrderedDict()

    def note(self, folder: str, attempt: int) -> None:
        """Note the attempt in the status of a job."""
        if attempt > self._attempts.get(folder, -1):
            self._attempts[folder] = attempt
            self.changed(folder)

    def forget(self, folder: str) -> None:
        """Note that a job was deleted. Its pods may be deleted after it."""
        if folder in self._attempts:
            self._deleted[folder] = self._attempts.pop(folder)
            while len(self._deleted) > MOST_DELETED:
                self._deleted.popitem(last=False)

    def has(self, folder: str, attempt: int) -> bool:
        """Return whether the job exists or existed and has begun this attempt."""
        return 0 <= attempt <= self._attempts.get(folder, self._deleted.get(folder, -1))
