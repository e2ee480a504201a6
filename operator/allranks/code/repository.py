"""The state of a directory in git: tracked and new files, the commit, and the differences from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PATCH = (
    *("git", "-c", "core.quotePath=false", "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--submodule=short", "--ignore-submodules=none", "--relative", "HEAD"),
)
"""Prints the differences of tracked files in the same form for every configuration of git."""
MAX_PATCH_BYTES = 2**23
_SECONDS = 60
_MAX_CHANGES = 1024
"""Characters of `changes`, as in the CRD."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The state of a directory inside a repository. Names are relative to the directory."""

    tracked: tuple[str, ...]
    new: tuple[str, ...]
    """Neither tracked nor ignored."""
    commit: str | None
    """None before the first commit."""
    differences: tuple[tuple[str, str], ...]
    """(name, `+3 -1`) of tracked files that differ from the commit, deleted ones included."""

    def changes(self, shipped: Sequence[str]) -> str:
        """Return the differences from the commit in one line; empty without a difference."""
        new = sorted({*shipped} & {*self.new})
        parts = [f"{name} {lines}" for name, lines in self.differences] + [f"{name} new" for name in new]
        text = ", ".join(parts)
        if len(text) <= _MAX_CHANGES:
            return text
        while len(text) > _MAX_CHANGES - 30:
            parts.pop()
            text = ", ".join(parts)
        left = len(self.differences) + len(new) - len(parts)
        return f"{text}, and {left} more files"


def read(folder: Path) -> Tree | None:
    """Return the state of a directory.

    Return None if it is not part of a repository, or git ignores it, or is not installed."""
    listed = _git(folder, "ls-files", "-z", "--cached")
    if listed is None:
        return None
    new = _git(folder, "ls-files", "-z", "--others", "--exclude-standard") or ""
    commit = (_git(folder, "rev-parse", "--verify", "--quiet", "HEAD") or "").strip() or None
    differences = _numstat(_git(folder, "diff", "--numstat", "-z", "--no-renames", "--relative", "HEAD") or "")
    tree = Tree(
        tuple(_existing(folder, listed.split("\0"))), tuple(_existing(folder, new.split("\0"))), commit, differences
    )
    return tree if tree.tracked or tree.new else None


def patch(folder: Path) -> str:
    """Return the differences of tracked files from the commit, as a unified diff; its first part if it is very long."""
    try:
        with subprocess.Popen(
            PATCH,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as git:
            read = git.stdout.read(MAX_PATCH_BYTES) if git.stdout else b""
            git.kill()
    except OSError:
        return ""
    return read.decode("utf-8", "replace")


def _existing(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the names that exist. Git lists a submodule, and a repository inside this one, as a directory: its files
    are listed instead."""
    out = []
    for name in dict.fromkeys(name.removesuffix("/") for name in names if name):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            inner = read(path)
            out += [f"{name}/{file}" for file in (*inner.tracked, *inner.new)] if inner else []
        elif path.is_symlink() or path.exists():
            out.append(name)
    return out


def _numstat(text: str) -> tuple[tuple[str, str], ...]:
    """Return (name, `+3 -1`) of each file. `-` instead of numbers stands for a binary file."""
    out = []
    for line in text.split("\0"):
        added, tab, rest = line.partition("\t")
        removed, _, name = rest.partition("\t")
        if tab and name:
            out.append((name, "binary" if added == "-" else f"+{added} -{removed}"))
    return tuple(out)


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of a git command; None if it fails."""
    try:
        done = subprocess.run(
            ("git", *words),
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None


def environment() -> dict[str, str]:
    """Return the variables of a git that writes nothing into the repository."""
    return {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
