"""`allranks submit` of a job whose inputs and outputs no cluster handles yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from support.builders import manifest

# Nothing listens on port 9: a request would fail with another message.
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "a", "user": {}}],
}


def submit(folder: Path, **spec: object) -> subprocess.CompletedProcess[str]:
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest("spmd", **spec)))
    (folder / "kubeconfig").write_text(yaml.safe_dump(KUBECONFIG))
    command = [sys.executable, "-m", "allranks", "submit", "job.yaml", "--kubeconfig", "kubeconfig"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_submit_names_each_field_and_sends_nothing(tmp_path: Path) -> None:
    done = submit(
        tmp_path,
        inputs=[{"name": "a", "from": "claim://c", "path": "/a"}, {"name": "b", "from": "s3://b/p", "path": "/b"}],
        outputs=[{"name": "model", "path": "/out", "to": "s3://models/m"}],
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.partition(": ")[2].partition(" ")[0] for line in lines] == ["job:", "job:"]
    assert "spec.inputs[1].from: s3:// is fetched by allranks run only so far" in lines[0]
    assert "spec.outputs: are uploaded by allranks run only so far" in lines[1]


def test_submit_sends_a_job_with_mounted_inputs(tmp_path: Path) -> None:
    done = submit(tmp_path, inputs=[{"name": "a", "from": "claim://c", "path": "/a"}])
    assert done.returncode == 1  # the cluster does not answer
    assert "spec.inputs" not in done.stderr
