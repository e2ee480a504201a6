"""Programs that the scripts of tools/ build or install for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import environment

TOOLS = environment.ROOT / "tools"


def built(script: str, *words: str, timeout: float = 3000) -> Path:
    """Return the folder that a script prints, which holds what it has built: with the user's caches and proxies."""
    command = [TOOLS / script, *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=timeout, env=environment.USERS
    )
    return Path(done.stdout.strip())
