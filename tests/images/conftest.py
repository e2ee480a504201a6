"""Images for the tests: built where they are not, mounted while tests run containers of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from . import containers

SCRIPT = Path(__file__).parents[2] / "tools" / "images.sh"
BUILD_SECONDS = 3000
WITHOUT_CUDA = ["--tag", "e2e", "--build-arg", "TEST_ONLY_STUB_CUDA=1"]
"""CUDA's libraries take 4 GB twice. Set ALLRANKS_IMAGES_WITH_CUDA to anything to build and run what is released."""


def build(*args: str) -> list[str]:
    """Runs tools/images.sh; returns the names on its stdout."""
    options = [] if os.environ.get("ALLRANKS_IMAGES_WITH_CUDA") else WITHOUT_CUDA
    command = [SCRIPT, "--engine", "buildah", "--test-base", *options, *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=BUILD_SECONDS)
    return done.stdout.split()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], containers.Image]]:
    """Gives the image of a name, built and mounted at most once in a run."""
    subprocess.run([SCRIPT, "tools"], check=True, timeout=600)
    mounted: dict[str, containers.Image] = {}
    with ExitStack() as stack:

        def get(name: str) -> containers.Image:
            if name not in mounted:
                [built] = build(name)
                scratch = tmp_path_factory.mktemp(name)
                mounted[name] = stack.enter_context(containers.mounted(built, scratch))
            return mounted[name]

        yield get
