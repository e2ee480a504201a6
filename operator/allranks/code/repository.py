"""The state of a directory in git: tracked and new files, the commit, and the differences from it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATCH = (
    *("git", "-c", "core.quotePath=false", "diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--submodule=short", "--ignore-submodules=none", "--relative", "HEAD"),
)
"""Prints the differences of tracked files in the same form for every configuration of git."""
_NUMSTAT = ("diff", "--numstat", "-z", "--no-ext-diff", "--no-textconv", "--no-renames", "--relative", "HEAD")
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
    foreign: tuple[str, ...]
    """Repositories inside that are no submodules. Git does not look into them."""
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
    env = environment(folder)
    listed = _git(folder, env, "ls-files", "-z", "--cached") if env else None
    if env is None or listed is None:
        return None
    others = (_git(folder, env, "ls-files", "-z", "--others", "--exclude-standard") or "").split("\0")
    commit = (_git(folder, env, "rev-parse", "--verify", "--quiet", "HEAD") or "").strip() or None
    differences = _numstat(_git(folder, env, *_NUMSTAT) or "")
    tracked, foreign = _existing(folder, listed.split("\0"))
    new = [name for name in others if name and not name.endswith("/")]
    foreign += [name.removesuffix("/") for name in others if name.endswith("/")]
    tree = Tree(tuple(tracked), tuple(_existing(folder, new)[0]), commit, tuple(foreign), differences)
    return tree if tree.tracked or tree.new or tree.foreign else None


def patch(folder: Path) -> str:
    """Return the differences of tracked files from the commit, as a unified diff; its first part if it is very long."""
    env = environment(folder)
    if env is None:
        return ""
    try:
        with subprocess.Popen(
            PATCH,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as git:
            read = git.stdout.read(MAX_PATCH_BYTES) if git.stdout else b""
            git.kill()
    except OSError:
        return ""
    return read.decode("utf-8", "replace")


def _existing(folder: Path, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names that exist, and repositories that are no submodules. Git lists a submodule as a directory: its
    files are listed instead."""
    out, foreign = list[str](), list[str]()
    for name in dict.fromkeys(name.removesuffix("/") for name in names if name):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            inner = read(path)
            out += [f"{name}/{file}" for file in (*inner.tracked, *inner.new)] if inner else []
            foreign += [f"{name}/{further}" for further in inner.foreign] if inner else []
        elif path.is_symlink() or path.exists():
            out.append(name)
    return out, foreign


def _numstat(text: str) -> tuple[tuple[str, str], ...]:
    """Return (name, `+3 -1`) of each file. `-` instead of numbers stands for a binary file."""
    out = []
    for line in text.split("\0"):
        added, tab, rest = line.partition("\t")
        removed, _, name = rest.partition("\t")
        if tab and name:
            out.append((name, "binary" if added == "-" else f"+{added} -{removed}"))
    return tuple(out)


def _git(folder: Path, env: Mapping[str, str], *words: str, seconds: float = _SECONDS) -> str | None:
    """Return the output of a git command; None if it fails or takes longer."""
    try:
        done = subprocess.run(
            ("git", *words),
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None


_RUNS_PROGRAMS = re.compile(
    r"(filter\..*\.(clean|smudge|process|required)|diff\.external|diff\..*\.(command|textconv))",
    re.IGNORECASE | re.DOTALL,
)
"""Settings of a repository that name programs, or that require one, by names of their own."""
_SAFE = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.sshCommand": "false",
    "credential.helper": "",
    "safe.bareRepository": "explicit",
}


def environment(folder: Path, seconds: float = _SECONDS) -> dict[str, str] | None:
    """Return the variables of a git that writes nothing into the repository, runs no program that the configuration of
    the repository or of one of its submodules names, and fetches nothing.

    Return None if git does not list these settings within `seconds`: it is then not safe to run git here."""
    safe = _environment(_SAFE)
    programs = _programs(folder, safe, time.monotonic() + seconds)
    return None if programs is None else _environment({**_SAFE, **dict.fromkeys(programs, "")})


def _programs(folder: Path, env: Mapping[str, str], deadline: float) -> list[str] | None:
    """Return the settings of a repository and its submodules that name programs. The user's own settings may.

    Return None if git fails, or has not ended at this time of the monotonic clock."""

    def lines(*words: str) -> list[str] | None:
        text = _git(folder, env, *words, seconds=max(0.0, deadline - time.monotonic()))
        return None if text is None else text.split("\0")

    settings = lines("config", "--list", "--show-scope", "--name-only", "-z")
    files = None if settings is None else lines("ls-files", "-z", "--stage")
    if settings is None or files is None:
        return None
    scopes = zip(settings[::2], settings[1::2], strict=False)
    programs = [name for scope, name in scopes if scope in ("local", "worktree") and _RUNS_PROGRAMS.fullmatch(name)]
    for line in files:
        about, _, name = line.partition("\t")
        if about.startswith(_SUBMODULE) and (folder / name / ".git").exists():
            inner = _programs(folder / name, env, deadline)
            if inner is None:
                return None
            programs += inner
    return programs


_SUBMODULE = "160000 "


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with these settings, which git passes on to what it runs in submodules."""
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    count = env.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0  # the user's own
    env |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (name, value) in enumerate(settings.items(), first):
        env |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return env
