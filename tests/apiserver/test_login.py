"""A kubeconfig whose user logs in with a program serves the operator and the commands alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from allranks.kube.auth import connect
from support import live
from support.commands import Commands
from support.controlplane import ControlPlane
from support.kubelet import Program
from support.live import eventually, job, phase


def test_a_job_runs_under_an_operator_that_logs_in_with_a_program(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = with_login_program(control_plane, tmp_path)
    logged_in = connect(str(kubeconfig))
    with live.operator(logged_in, namespace), live.kubelet(logged_in, Program(seconds=0.3), namespace=namespace):
        control_plane.api.create(job(), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Succeeded")
    result = Commands(kubeconfig, namespace)("get", "demo", "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["status"]["phase"] == "Succeeded"


def with_login_program(control_plane: ControlPlane, folder: Path) -> Path:
    """The control plane's kubeconfig, with a program that prints its token."""
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": control_plane.admin_token},
    }
    (folder / "login.py").write_text(f"print({json.dumps(credential)!r})")
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(folder / "login.py")],
        "interactiveMode": "Never",
    }
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"exec": program}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"
