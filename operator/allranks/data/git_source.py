"""A git repository at one commit, without its history."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from allranks.data.errors import TemporaryError
from allranks.data.source import Listing
from allranks.errors import DataError

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_TEMPORARY = ("Could not resolve host", "Connection", "timed out", "early EOF", "unexpected disconnect", "error: 5")


class GitSource:
    """`git+https://HOST/REPOSITORY`. Credentials come from git's own configuration."""

    branches = True

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._url = uri.removeprefix("git+")
        if shutil.which("git") is None:
            raise DataError(f"{uri}: git is not installed")

    def resolve(self, revision: str | None) -> Listing:
        if revision and _COMMIT.fullmatch(revision):
            return Listing(revision, ())
        reference = revision or "HEAD"
        names = [reference]
        if reference != "HEAD":
            names = [f"refs/heads/{reference}", f"refs/tags/{reference}^{{}}", reference]
        lines = self._git("ls-remote", self._url, *names).splitlines()
        commits = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
        places = [*names, f"refs/tags/{reference}"] if reference != "HEAD" else ["HEAD"]
        commit = next((commits[name] for name in places if name in commits), None)
        if commit is None:
            raise DataError(f"{self.uri}: there is no branch or tag {reference}; give a full commit otherwise")
        return Listing(commit, ())

    def fetch_all(self, listing: Listing, directory: Path) -> None:
        repository = directory.parent / "git"
        shutil.rmtree(repository, ignore_errors=True)
        try:
            self._git("init", "--quiet", "--bare", str(repository))
            inside = ("--git-dir", str(repository))
            self._git(*inside, "fetch", "--quiet", "--depth", "1", "--no-tags", self._url, listing.revision)
            # A link in the repository could lead anywhere: it becomes a file with the target as text.
            files = ("-c", "core.symlinks=false", "-c", "core.bare=false", "-c", "core.autocrlf=false")
            self._git(*inside, *files, "--work-tree", str(directory), "checkout", "--quiet", "FETCH_HEAD", "--", ".")
        finally:
            shutil.rmtree(repository, ignore_errors=True)

    def _git(self, *words: str) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_DIR")}
        env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_LFS_SKIP_SMUDGE": "1"}
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *words],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode:
            raise self._error(words, done.stderr.splitlines())
        return done.stdout

    def _error(self, words: Sequence[str], lines: Sequence[str]) -> DataError:
        text = "; ".join(line.strip() for line in lines[-2:] if line.strip()) or f"git {words[0]} failed"
        if "could not read Username" in text or "Authentication failed" in text:
            return DataError(f"{self.uri}: access is denied: check the credentials that git has for this host")
        if any(word in text for word in _TEMPORARY):
            return TemporaryError(f"{self.uri}: {text}")
        return DataError(f"{self.uri}: {text}")
