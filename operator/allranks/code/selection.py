"""Decides which files of a directory are shipped: by git, by .allranksignore, and without secrets, caches and data."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.code import repository
from allranks.errors import CannotShip
from allranks.extras import install_command
from allranks.masking import holds_token

IGNORE_FILE = ".allranksignore"
MAX_FILES = 20_000
LARGE = 2**20
"""A larger file that git does not track is data."""

_CACHES = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
        *(".ipynb_checkpoints", ".tox", ".nox", "node_modules"),
    }
)
"""Directories that are left out without a word."""
_SECRET_DIRECTORIES = frozenset(
    {".aws", ".azure", ".docker", ".gnupg", ".huggingface", ".kaggle", ".kube", ".ngc", ".ssh"}
)
_SECRETS = (
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials", ".htpasswd"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk"),
    *("credentials", "credentials.json", "client_secret*.json", "kubeconfig", "*.kubeconfig", ".dockerconfigjson"),
    *("kaggle.json", "application_default_credentials.json", ".pgpass", ".s3cfg", ".boto", ".databrickscfg"),
    *("rclone.conf", "pip.conf", ".vault-token", "secrets.toml", "secrets.yaml", "secrets.yml", "secrets.json"),
    *("*.tfvars", "*.tfvars.json", "*.tfstate", "*.tfstate.backup", "azure.json", ".my.cnf", ".comet.config", "token"),
)
HOLDS_CREDENTIALS = "it usually holds credentials"
_EXAMPLES = ("*.example", "*.sample", "*.template")
_CHECKPOINTS = (
    *("*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.h5", "*.hdf5", "*.keras", "*.onnx", "*.gguf", "*.pkl"),
    "events.out.tfevents.*",
)
_RUNS = (("job.json", "logs"), ("sweep.json", "trials"))
"""(file, directory beside it) of run directories of allranks, of a job and of a sweep."""
_HEAD = 2**16
_PRIVATE_KEY = re.compile(rb"^-----BEGIN [A-Z ]*PRIVATE KEY-----", re.MULTILINE)
_SECRET_MEMBER = re.compile(rb'"(refresh_token|access_token|client_secret|aws_secret_access_key)"\s*:\s*"[^"]{8}')


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or directory that is not shipped. `reason` is a part of a sentence."""

    name: str
    reason: str
    can_be_allowed: bool = True
    """True if a line in .allranksignore can allow it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The files to ship, sorted, relative to the directory."""

    files: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    commit: str | None = None
    dirty: bool | None = None
    changes: str = ""
    new: tuple[str, ...] = ()
    """The files that are not in the commit."""


def select(folder: Path) -> Selection:
    """Select the files of a directory. Raise CannotShip."""
    if not folder.is_dir():
        raise CannotShip(f"{folder} is not a directory: name the directory with the code")
    tree = repository.read(folder)
    names = sorted({*tree.tracked, *tree.new, *_within(folder, tree.foreign)} if tree else _walk(folder))
    if len(names) > MAX_FILES:
        raise CannotShip(
            f"{folder} has more than {MAX_FILES} files: name a smaller directory, or leave files out with {IGNORE_FILE}"
        )
    rules = _Rules(folder, names, frozenset(tree.tracked) if tree else frozenset())
    files: list[str] = []
    left_out: dict[str, LeftOut] = {}
    for name in names:
        verdict = rules.verdict(name)
        if verdict is None:
            files.append(name)
        elif isinstance(verdict, LeftOut):
            left_out.setdefault(verdict.name, verdict)
    if tree is None:
        return Selection(tuple(files), tuple(left_out.values()))
    changes = tree.changes(files)
    new = tuple(sorted({*files} - {*tree.tracked}))
    return Selection(tuple(files), tuple(left_out.values()), tree.commit, bool(changes), changes, new)


def secret_by_name(name: str) -> str:
    """Return the file, or the directory above it, that usually holds credentials; empty if no name says so."""
    *above, base = name.split("/")
    for depth, part in enumerate(above, 1):
        if part in _SECRET_DIRECTORIES:
            return "/".join(above[:depth]) + "/"
    return name if _matches(base.lower(), _SECRETS) and not _matches(base.lower(), _EXAMPLES) else ""


class _Rules:
    """The rules for one directory."""

    def __init__(self, folder: Path, names: Sequence[str], tracked: frozenset[str]) -> None:
        self._folder, self._tracked = folder, tracked
        self._root = folder.resolve()
        self._ignore = _ignore_spec(folder / IGNORE_FILE)
        self._environments = [_parent(name) for name in names if name.rpartition("/")[2] == "pyvenv.cfg"]
        self._environments += [_parent(_parent(name)) for name in names if name.endswith("conda-meta/history")]
        self._runs = [
            _parent(name)
            for name in names
            for file, beside in _RUNS
            if name.endswith(f"/{file}") and (folder / _parent(name) / beside).is_dir()
        ]
        self._run_directories = {(folder / run).resolve() for run in self._runs}

    def verdict(self, name: str) -> LeftOut | bool | None:
        """Return None for a file to ship, the reason why it is left out, or True if it is left out without a note."""
        included = _check(self._ignore, name)
        if included is not None:
            return True if included else self._impossible(name)
        parts = name.split("/")
        if _CACHES.intersection(parts) or name.endswith((".pyc", ".pyo")) or parts[-1] == ".DS_Store":
            return True
        if any(_inside(name, run) for run in self._runs) or self._links_to_run(name):
            return True
        for environment in self._environments:
            if _inside(name, environment):
                return LeftOut(f"{environment}/" if environment else name, "a virtual environment")
        return self._impossible(name) or self._secret(name) or self._data(name, parts[-1])

    def _links_to_run(self, name: str) -> bool:
        """Return whether it is a link of allranks, `runs/JOB/latest`."""
        path = self._folder / name
        return path.is_symlink() and path.resolve() in self._run_directories

    def _impossible(self, name: str) -> LeftOut | None:
        path = self._folder / name
        if path.is_symlink() and not path.resolve().is_relative_to(self._root):
            return LeftOut(name, "a link to a place outside the directory", can_be_allowed=False)
        if path.is_symlink() and path.is_dir():
            return LeftOut(name, "a link to a directory", can_be_allowed=False)
        if not path.is_file():
            reason = "a link to nothing" if path.is_symlink() else "not a regular file"
            return LeftOut(name, reason, can_be_allowed=False)
        return None

    def _secret(self, name: str) -> LeftOut | None:
        if secret := secret_by_name(name):
            return LeftOut(secret, HOLDS_CREDENTIALS)
        with (self._folder / name).open("rb") as file:
            head = file.read(_HEAD)
        if _PRIVATE_KEY.search(head):
            return LeftOut(name, "it holds a private key")
        if head.lstrip().startswith(b"{"):
            if b'"private_key' in head and b"service_account" in head:
                return LeftOut(name, "it holds a private key")
            if _SECRET_MEMBER.search(head):
                return LeftOut(name, "it holds a token")
        return LeftOut(name, "it holds a token") if holds_token(head.decode(errors="replace")) else None

    def _data(self, name: str, base: str) -> LeftOut | None:
        """Return the reason to leave out large files and checkpoints. Files that git tracks are shipped."""
        if name in self._tracked:
            return None
        if _matches(base.lower(), _CHECKPOINTS):
            return LeftOut(name, "a checkpoint, which git does not track")
        if (self._folder / name).stat().st_size > LARGE:
            return LeftOut(name, "larger than 1 MiB, and git does not track it")
        return None


def _within(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield the files of directories below `folder`."""
    for name in names:
        yield from (f"{name}/{file}" for file in _walk(folder / name))


def _walk(folder: Path) -> Iterator[str]:
    """Yield all files but those that a .gitignore names, in a directory without git."""
    specs: dict[str, Any] = {}
    count = 0
    for where, directories, files in os.walk(folder):
        parent = Path(where).relative_to(folder).as_posix()
        prefix = "" if parent == "." else f"{parent}/"
        if ".gitignore" in files:
            specs[prefix] = _ignore_spec(Path(where) / ".gitignore")
        links = [directory for directory in directories if (Path(where) / directory).is_symlink()]
        directories[:] = [
            directory
            for directory in sorted(directories)
            if directory not in _CACHES and directory not in links and not _git_ignores(specs, f"{prefix}{directory}/")
        ]
        if "pyvenv.cfg" in files:  # thousands of files, which are not shipped
            directories.clear()
            files = ["pyvenv.cfg"]
        for file in (*files, *links):
            if not _git_ignores(specs, prefix + file):
                count += 1
                yield prefix + file
        if count > MAX_FILES:
            return


def _git_ignores(specs: dict[str, Any], name: str) -> bool:
    """Return whether git ignores a name. The .gitignore of the nearest directory that says something about it
    decides."""
    for prefix in sorted((parent for parent in specs if name.startswith(parent)), key=len, reverse=True):
        included = _check(specs[prefix], name.removeprefix(prefix))
        if included is not None:
            return included
    return False


def _check(spec: Any, name: str) -> bool | None:
    """Return True for an ignored name, False for an exception, None if no line matches."""
    return None if spec is None else spec.check_file(name).include


def _ignore_spec(file: Path) -> Any:
    """Return the rules of an ignore file; None without one. Raise CannotShip."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CannotShip(f"{file} cannot be read: {error}") from error
    try:
        from pathspec import GitIgnoreSpec
    except ImportError:
        raise CannotShip(f"{file} needs pathspec: {install_command('cli')}") from None
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise CannotShip(f"{file} has a line that is not a pattern: {error}") from error


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _inside(name: str, folder: str) -> bool:
    return not folder or name.startswith(f"{folder}/")
