"""Records the day of a team in docs/platform/queues.md: real output of commands, with a real API server, Kueue,
scheduler and operator, and with ranks that are processes of this machine (tests/queueing/team_day.py).

usage: .venv/bin/python tools/queues_day.py      takes about three minutes
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from transcripts import console, replaced  # noqa: E402

from apiserver.conftest import DEFINITIONS  # noqa: E402
from queueing.team_day import Shown, TeamDay  # noqa: E402
from support import front_proxy, scheduler  # noqa: E402
from support import kueue as kueue_support  # noqa: E402
from support.controlplane import ControlPlane, build  # noqa: E402

PAGE = ROOT / "docs" / "platform" / "queues.md"


def main() -> None:
    """Records the day, then writes the page."""
    with tempfile.TemporaryDirectory() as name:
        parts = record(Path(name))
    text = PAGE.read_text()
    for part, shown in parts.items():
        text = replaced(text, part, "\n\n".join(console(one.command, one.lines) for one in shown))
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")


def record(folder: Path) -> dict[str, list[Shown]]:
    """Section of the page -> commands and their output."""
    installed = subprocess.run(
        [ROOT / "tools" / "frameworks.sh", "pytorch"], stdout=subprocess.PIPE, text=True, check=True
    )
    options = (*front_proxy.options(folder), *scheduler.NATIVE_GANGS)
    control_plane = ControlPlane(build(), folder, api_server_options=options)
    control_plane.start(DEFINITIONS)
    kueue, native = kueue_support.Kueue(control_plane, kueue_support.build()), scheduler.native(control_plane)
    try:
        kueue.install()
        kueue.start()
        native.start()
        (folder / "day").mkdir()
        day = TeamDay(control_plane, folder / "day", Path(installed.stdout.strip()))
        with day.begun():
            parts = {"waits": day.waits, "preempts": day.preempts, "continues": day.continues, "gang": day.gang_waits}
            return {name: part() for name, part in parts.items()}
    finally:
        native.stop()
        kueue.stop()
        control_plane.stop()


if __name__ == "__main__":
    main()
