"""Executes a notebook in place, as a program: PYTHONPATH=tests python -m support.notebook_run FILE KERNEL [STARTED]

With STARTED, the kernel is interrupted when this file exists, and again when the notebook says how to stop. It is a
process of its own because nbclient leaves sockets to the garbage collector.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient


def main(file: str, kernel: str, started: str | None = None) -> None:
    path = Path(file)
    notebook = nbformat.read(path, as_version=4)
    manager = AsyncKernelManager(kernel_name=kernel)
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=900,
        allow_errors=started is not None,
        resources={"metadata": {"path": str(path.parent)}},
    )

    def interrupt() -> None:
        wait_for(lambda: Path(started or "").exists())
        send_interrupt(manager)
        wait_for(lambda: "Interrupt again" in printed(notebook))
        send_interrupt(manager)

    if started:
        threading.Thread(target=interrupt, daemon=True).start()
    client.execute()
    nbformat.write(notebook, path)


def send_interrupt(manager: AsyncKernelManager) -> None:
    os.kill(manager.provisioner.pid, signal.SIGINT)  # as the interrupt button of a notebook


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") for output in outputs if output["output_type"] == "stream")


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 240
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
