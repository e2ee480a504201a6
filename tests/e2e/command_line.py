"""The command `allranks` of this machine against the cluster of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from .jobs import Team


def allranks(team: Team, command: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command in the namespace of the test, with any exit status."""
    where = ["--kubeconfig", str(team.cluster.kubeconfig), "-n", team.namespace]
    line = [sys.executable, "-m", "allranks", command, *where, *arguments]
    settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    return subprocess.run(line, env=environment(team), **settings | options)


def started(team: Team, command: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command, which the caller ends."""
    where = ["--kubeconfig", str(team.cluster.kubeconfig), "-n", team.namespace]
    line = [sys.executable, "-m", "allranks", command, *where, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, env=environment(team), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def output(team: Team, command: str, *arguments: str, **options: Any) -> str:
    """The output of a command that must succeed."""
    done = allranks(team, command, *arguments, **options)
    assert done.returncode == 0, f"allranks {command}: {done.stdout}{done.stderr}"
    return str(done.stdout)


def environment(team: Team) -> dict[str, str]:
    """The variables of this process, and the cluster's kubectl on the path."""
    return {**os.environ, "PATH": f"{team.cluster.folder}/bin:{os.environ['PATH']}"}
