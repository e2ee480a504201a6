"""Records the transcript of docs/guides/develop.md: ten edits, on a real API server with real supervisors of pods.

The pods are processes of this machine, which have the code, the token and the variables of their pods; see
tests/apiserver/test_dev_cluster.py. Run it as `.venv/bin/python tools/develop_guide.py`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from transcripts import ROOT, console, replaced

from apiserver.test_dev_cluster import PODS, World, developing, said
from support import controlplane
from support.controlplane import ControlPlane
from support.kubelet_logs import LogKubelet

PAGE = ROOT / "docs" / "guides" / "develop.md"
EDITS = 10
BROKEN = 5
"""The number of the edit with a syntax error."""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server").mkdir()
        control_plane = ControlPlane(controlplane.build(), folder / "server")
        try:
            control_plane.start(sorted((ROOT / "crds").glob("*.yaml")))
            lines = edited(control_plane, folder)
        finally:
            control_plane.stop()
    PAGE.write_text(replaced(PAGE.read_text(), "edits", console("allranks dev --cluster job.yaml", lines)))


def edited(control_plane: ControlPlane, folder: Path) -> list[str]:
    """Make ten edits, and return what the command printed about them."""
    api = control_plane.api
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    (folder / "kubelet").mkdir()
    (folder / "pods").mkdir()
    kubelet = LogKubelet(api, folder / "kubelet")
    try:
        with developing(World(control_plane, "team"), kubelet, folder / "pods") as (developer, nodes):
            dev = developer.dev
            assert dev
            for number in range(1, EDITS + 1):
                broken = number == BROKEN
                developer.edit(f"NAME = '{number}'\n" if not broken else "NAME = 'five\n")
                said(dev, f"edit {number} failed" if broken else rf"step \d+ of edit {number} after")
            dev.interrupt()
            said(dev, "demo is suspended")
            assert sorted(nodes.running) == sorted(PODS)
            code = str(folder / "pods" / "code")
            return [line.replace(f"{code}/", "").replace(code, ".") for line in dev.lines if is_shown(line)]
    finally:
        kubelet.stop()


def is_shown(line: str) -> bool:
    """Messages of the command, and the traceback."""
    return bool(re.search(r"\bedit \d|each save|is suspended|^master-0.*(Error|NAME = |\^)", line))


if __name__ == "__main__":
    main()
