"""The commit that a release is built from."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class DistError(Exception):
    """A sentence for the user."""


@dataclass(frozen=True)
class Source:
    """A commit. Files of a release are built from an export of it, never from the working tree."""

    commit: str
    epoch: str
    """Seconds since 1970 of the commit: SOURCE_DATE_EPOCH, the time of every file in the archives."""
    version: str
    clean: bool
    """No uncommitted change and no untracked file."""

    def export(self, folder: Path) -> None:
        """Writes the files of the commit, with its time and with modes that do not depend on this machine."""
        folder.mkdir()
        archive = subprocess.run(
            ["git", "-c", "tar.umask=0022", "archive", self.commit], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "--preserve-permissions", "-C", folder], input=archive, check=True)


def head() -> Source:
    """The checked-out commit. Raises DistError if it has the tag of another version."""
    commit = git("rev-parse", "HEAD")
    found = re.search(r'__version__ = "(.+)"', git("show", "HEAD:operator/allranks/version.py"))
    if not found:
        raise DistError("operator/allranks/version.py has no __version__")
    version = found[1]
    tags = [tag for tag in git("tag", "--points-at", "HEAD").split() if re.fullmatch(r"v\d.*", tag)]
    if tags and f"v{version}" not in tags:
        raise DistError(f"the commit has the tag {tags[0]}, but operator/allranks/version.py says {version}")
    return Source(commit, git("log", "-1", "--format=%ct"), version, clean=not git("status", "--porcelain"))


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()
