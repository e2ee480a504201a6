"""What a process has imported when it reports its first step, for a process that imports the same in advance.

`allranks.report` calls `record`, and `allranks_prepared.py` compares with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys


def record(folder: str) -> None:
    """Write the modules, the path and the changed variables of this process. Raises OSError."""
    if "allranks_prepared" in sys.modules:  # its initial environment is not the one of this attempt
        return
    path = f"{folder}/{os.getpid()}"
    content = {"modules": files(), "path": list(sys.path), "changed": changed_variables()}
    with open(path + ".new", "w") as file:
        json.dump(content, file)
    os.rename(path + ".new", path + ".json")  # noqa: PTH104


def files() -> dict[str, str]:
    """Return the modules that have a file, in the order of their imports."""
    out = {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = str(getattr(spec, "origin", None))
        if name != "__main__" and getattr(spec, "name", "") == name and origin.startswith("/"):
            out[name] = origin
    return out


def changed_variables(since: dict[str, str] | None = None) -> dict[str, str]:
    """Return name -> hash of the value of variables that this process has changed. `since`: by default, its start."""
    before = initial_variables(os.getpid()) if since is None else since
    now = dict(os.environ)
    names = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return {name: hashlib.sha256(os.fsencode(now.get(name, "\0"))).hexdigest() for name in sorted(names)}


def initial_variables(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started. Raises OSError."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        items = [os.fsdecode(item).partition("=") for item in file.read().split(b"\0") if item]
    return {name: value for name, _, value in items}
