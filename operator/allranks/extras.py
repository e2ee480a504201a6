"""The extras of allranks (optional groups of Python packages), and the command that installs one.

The command depends on where allranks came from: `pip install 'allranks[cli]'` works only if a package index has it.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

Extra = Literal[
    "archive",
    "az",
    "cli",
    "data",
    "gs",
    "login",
    "mcp",
    "operator",
    "python",
    "sweeps",
    "tensorboard",
    "ui",
    "watch",
]

TOOLS = {"uv-receipt.toml": "uv tool install --force", "pipx_metadata.json": "pipx install --force"}
"""File that a tool leaves in an environment of its own -> its command. Such an environment may have no pip."""


def install_command(extra: Extra) -> str:
    """Return the shell command that adds an extra to this installation of allranks."""
    commands = [command for file, command in TOOLS.items() if (Path(sys.prefix) / file).exists()]
    return f"{commands[0] if commands else 'pip install'} {_requirement(extra)}"


def _requirement(extra: str) -> str:
    if extra in ("az", "data", "gs", "login", "mcp", "python", "sweeps", "tensorboard", "ui", "watch"):
        extra = f"cli,{extra}"  # the tools above install no other extra than the named ones
    try:
        recorded = metadata.distribution("allranks").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return f"'.[{extra}]' in a clone of allranks"
    if not recorded:
        return f"'allranks[{extra}]'"  # from a package index, which has the extras as well
    # https://packaging.python.org/en/latest/specifications/direct-url/
    origin = json.loads(recorded)
    url = origin["url"]
    if git := origin.get("vcs_info"):
        return f"'allranks[{extra}] @ {git['vcs']}+{url}@{git['commit_id']}'"
    if url.startswith("file:"):
        editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        return f"{editable}'{url2pathname(urlsplit(url).path)}[{extra}]'"
    return f"'allranks[{extra}] @ {url}'"
