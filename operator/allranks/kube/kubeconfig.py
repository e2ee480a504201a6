"""Reads kubeconfig files. Each error is a sentence that names the file and the field."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from allranks.kube.errors import LoginError

Entry = dict[str, Any]

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_TEXTS = (
    *("server", "certificate-authority-data", "tls-server-name", "proxy-url"),
    *("cluster", "user", "namespace"),
    *("token", "client-certificate-data", "client-key-data", "username", "password"),
    *_PATHS,
)
_MAPPINGS = ("exec", "auth-provider")
_NEW = "name another file, or get a new one of the cluster"


@dataclass(frozen=True)
class Context:
    """A context with the cluster and the user that it names."""

    name: str
    files: str
    """The files that were merged, separated as in KUBECONFIG."""
    namespace: str
    cluster: Entry = field(repr=False)
    user: Entry = field(repr=False)
    user_name: str = ""

    @property
    def title(self) -> str:
        return f"context {self.name} of {self.files}"

    @property
    def server(self) -> str:
        return str(self.cluster["server"]).rstrip("/")

    def data(self, entry: Mapping[str, Any], key: str) -> bytes | None:
        """Return the decoded content of `KEY-data`. Raises LoginError."""
        encoded = entry.get(f"{key}-data")
        if not encoded:
            return None
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise LoginError(f"{self.title}: {key}-data is not base64: copy it again from the cluster") from error


def read(files: Sequence[Path], requested: str | None) -> Context:
    """Return the requested context, else the current one, of merged files. Raises LoginError."""
    chain = os.pathsep.join(map(str, files))
    current, contexts, clusters, users = _merged(files)
    if not contexts:
        raise LoginError(f"{chain} is not a kubeconfig: it has no contexts: {_NEW}")
    name, names = requested or current, ", ".join(sorted(contexts))
    if not name:
        advice = "choose one of them, or set it with kubectl config use-context NAME"
        raise LoginError(f"{chain} has no current-context; there are {names}: {advice}")
    if name not in contexts and requested:
        raise LoginError(f"there is no context {name} in {chain}: there are {names}")
    if name not in contexts:
        advice = "choose one of them, or kubectl config use-context NAME"
        raise LoginError(
            f"{chain}: current-context is {name}, and there is no such context: there are {names}: {advice}"
        )
    context = contexts[name]
    chosen = Context(
        name,
        chain,
        context.get("namespace") or "default",
        _named(clusters, "cluster", context, name, chain),
        _named(users, "user", context, name, chain) if context.get("user") else {},
        context.get("user") or "",
    )
    _check_server(chosen)
    return chosen


def context_names(files: Sequence[Path]) -> list[str]:
    """Return the names of all contexts. Raises LoginError."""
    return sorted(_merged(files)[1])


def _named(entries: Mapping[str, Entry], kind: str, context: Entry, name: str, chain: str) -> Entry:
    referenced = str(context.get(kind) or "")
    if referenced in entries:
        return entries[referenced]
    reference = f"{kind} {referenced}" if referenced else f"no {kind}"
    alternatives = f"there are {', '.join(sorted(entries))}" if entries else f"there are no {kind}s"
    advice = f"add it, or kubectl config set-context {name} --{kind}=NAME"
    raise LoginError(f"{chain}: context {name} names {reference}, and {alternatives}: {advice}")


def _check_server(context: Context) -> None:
    server, place = context.cluster.get("server"), f"{context.files}: context {context.name}: its cluster"
    if not server:
        raise LoginError(f"{place} has no server: add its URL, for example server: https://HOST:6443")
    try:
        url = urlsplit(server)
        complete = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        complete = False
    if not complete:
        raise LoginError(f"{place} has the server {server}, which is not a URL such as https://HOST:6443")


def _merged(files: Sequence[Path]) -> tuple[str, dict[str, Entry], dict[str, Entry], dict[str, Entry]]:
    """Return the current context, contexts, clusters and users, as kubectl merges files: the first that sets a name
    wins."""
    current = ""
    entries: dict[str, dict[str, Entry]] = {"context": {}, "cluster": {}, "user": {}}
    for file in files:
        config = _loaded(file)
        current = current or _text(file, "current-context", config.get("current-context"))
        for kind, merged in entries.items():
            for name, entry in _entries(file, kind, config.get(f"{kind}s")):
                merged.setdefault(name, entry)
    return current, entries["context"], entries["cluster"], entries["user"]


def _loaded(file: Path) -> Entry:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise LoginError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise LoginError(f"{file} is not a kubeconfig: it is not text in UTF-8: {_NEW}") from error
    try:
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LoginError(f"{file}{_problem(error)}") from error
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise LoginError(f"{file} is not a kubeconfig: it must be a mapping with clusters, users and contexts: {_NEW}")
    return config


def _entries(file: Path, kind: str, items: Any) -> list[tuple[str, Entry]]:
    """Return name and entry of each item of `clusters`, `users` or `contexts`, with paths relative to the file
    resolved."""
    if items is not None and not isinstance(items, list):
        raise _wrong(file, f"{kind}s", "a list")
    out = []
    for number, item in enumerate(items or ()):
        place = f"{kind}s[{number}]"
        if not isinstance(item, dict):
            raise _wrong(file, place, "a mapping")
        name, entry = item.get("name"), item.get(kind)
        if not isinstance(name, str) or not name:
            raise _wrong(file, f"{place}.name", "a string")
        if entry is not None and not isinstance(entry, dict):
            raise _wrong(file, f"{place}.{kind}", "a mapping")
        out.append((name, _resolved(file, f"{place}.{kind}", entry or {})))
    return out


def _resolved(file: Path, place: str, entry: Entry) -> Entry:
    for key in _TEXTS:
        _text(file, f"{place}.{key}", entry.get(key))
    skip = entry.get("insecure-skip-tls-verify")
    if skip is not None and not isinstance(skip, bool):  # the text "false" would switch the verification off
        raise _wrong(file, f"{place}.insecure-skip-tls-verify", "true or false")
    for key in _MAPPINGS:
        if entry.get(key) is not None and not isinstance(entry[key], dict):
            raise _wrong(file, f"{place}.{key}", "a mapping")
    entry = entry | {key: str(file.parent / entry[key]) for key in _PATHS if entry.get(key)}
    program = entry.get("exec") or {}
    command = _text(file, f"{place}.exec.command", program.get("command"))
    if os.sep in command:  # as kubectl: a name alone is searched in PATH
        entry["exec"] = program | {"command": str(file.parent / command)}
    return entry


def _text(file: Path, place: str, value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise _wrong(file, place, "a string")
    return value or ""


def _wrong(file: Path, place: str, type_name: str) -> LoginError:
    return LoginError(f"{file} is not a kubeconfig: {place} must be {type_name}")


def _problem(error: yaml.YAMLError | ValueError | RecursionError) -> str:
    """Return `:LINE:COLUMN: is not YAML: ...` in the words of PyYAML."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    place = f":{mark.line + 1}:{mark.column + 1}:" if mark else ""
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
    return f"{place} is not YAML: {problem or str(error).splitlines()[0]}"
