"""tools/uv.sh: uv gets the settings of pip, so that a mirror or local wheels that are configured for pip are used."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "uv.sh"
PIP = """#!/bin/sh
cat <<'END'
:env:.find-links='/wheels /more'
global.cert='/ca.crt'
global.extra-index-url='http://127.0.0.1:2/simple?a=b'
global.find-links='/others'
global.index-url='http://127.0.0.1:1/simple'
global.timeout='180'
END
"""
UV = """#!/bin/sh
echo "$@"
env | grep -E '^(UV_|SSL_CERT_FILE)'
"""


@pytest.fixture
def install(tmp_path):
    """Runs the script with a pip that has settings, and a uv that prints what it is given."""
    (version,) = re.findall(r"^version=(.+)$", SCRIPT.read_text(), re.MULTILINE)
    installed = tmp_path / f"uv-{version}"
    for file, text in ((tmp_path / "venv" / "bin" / "python", PIP), (installed / "bin" / "uv", UV)):
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o755)
    (installed / ".installed").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "SSL_"))}

    def run(*arguments: str, **variables: str) -> list[str]:
        command = [SCRIPT, tmp_path / "venv", *arguments]
        environment = {**kept, "ALLRANKS_CACHE": str(tmp_path), **variables}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
        return done.stdout.splitlines()

    return run


def test_settings_of_pip_are_those_of_uv(install):
    command, *settings = install("--constraint", "pins.txt", "torch")
    assert command.startswith("pip install ")
    assert command.endswith(" --constraint pins.txt torch")
    assert sorted(settings) == [
        "SSL_CERT_FILE=/ca.crt",
        "UV_DEFAULT_INDEX=http://127.0.0.1:1/simple",
        "UV_FIND_LINKS=/wheels,/more",
        "UV_HTTP_TIMEOUT=180",
        "UV_INDEX=http://127.0.0.1:2/simple?a=b",
    ]


def test_settings_of_uv_come_first(install):
    settings = install("torch", UV_DEFAULT_INDEX="http://127.0.0.1:3/simple", SSL_CERT_FILE="/own.crt")
    assert {"UV_DEFAULT_INDEX=http://127.0.0.1:3/simple", "SSL_CERT_FILE=/own.crt"} <= set(settings)
