"""Images for the tests: built if they do not exist, mounted while tests run containers from them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from support import environment

from . import containers
from .building import SCRIPT, build


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], containers.Image]]:
    """Returns an image by name; builds and mounts it at most once in a run."""
    subprocess.run([SCRIPT, "tools"], check=True, timeout=600, env=environment.USERS)
    mounted: dict[str, containers.Image] = {}
    with ExitStack() as stack:

        def get(name: str) -> containers.Image:
            if name not in mounted:
                [built] = build(name)
                scratch = tmp_path_factory.mktemp(name)
                mounted[name] = stack.enter_context(containers.mounted(built, scratch))
            return mounted[name]

        yield get
