"""Images for the tests: built if they do not exist, mounted while tests run containers from them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from support import environment

from . import containers
from .building import SCRIPT, build


class Images(Protocol):
    """Returns an image by its name and the options of tools/images.sh."""

    def __call__(self, name: str, *options: str) -> containers.Image: ...


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """Builds and mounts an image at most once in a run."""
    subprocess.run([SCRIPT, "tools"], check=True, timeout=600, env=environment.USERS)
    mounted: dict[tuple[str, ...], containers.Image] = {}
    with ExitStack() as stack:

        def get(name: str, *options: str) -> containers.Image:
            if (name, *options) not in mounted:
                [built] = build(*options, name)
                scratch = tmp_path_factory.mktemp(name)
                mounted[name, *options] = stack.enter_context(containers.mounted(built, scratch))
            return mounted[name, *options]

        yield get
