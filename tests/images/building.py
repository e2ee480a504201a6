"""The images for tests: the same for containers and for nodes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support import environment

SCRIPT = Path(__file__).parents[2] / "tools" / "images.sh"
SECONDS = 3000
TAG = "e2e"
OPTIONS = ["--engine", "buildah", "--test-base", "--tag", TAG]
"""The tag that tools/e2e-prepare.sh uses."""
WITHOUT_CUDA = ["--build-arg", "TEST_ONLY_STUB_CUDA=1"]
"""The CUDA libraries take 4 GB twice. Set ALLRANKS_IMAGES_WITH_CUDA to any value to test the released variant."""


def build(*args: str) -> list[str]:
    """Runs tools/images.sh; returns the image names on its stdout."""
    options = OPTIONS if os.environ.get("ALLRANKS_IMAGES_WITH_CUDA") else OPTIONS + WITHOUT_CUDA
    done = subprocess.run(
        [SCRIPT, *options, *args], stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS, env=environment.USERS
    )
    return done.stdout.split()
