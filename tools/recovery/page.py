"""Updates the tables in docs/reference/recovery.md between their markers; cells that were run replace the old ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from transcripts import replaced

from recovery.cases import FAULTS, FRAMEWORKS
from recovery.table import Cell

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recovery.md"
TABLE = "table"


def write(cells: Iterable[Cell]) -> None:
    text = PAGE.read_text()
    merged = read(text) | {(cell.fault, cell.framework): str(cell) for cell in cells}
    faults = "\n".join(
        ["| fault | what is done |", "|---|---|", *(f"| {one.name} | {one.description} |" for one in FAULTS)]
    )
    PAGE.write_text(replaced(replaced(text, "faults", faults), TABLE, render(merged)))


def read(text: str) -> dict[tuple[str, str], str]:
    """(fault, framework) -> cell, from the table in the page."""
    rows = [line for line in between(text, TABLE).splitlines() if line.startswith("|")]
    table = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    if not table:
        return {}
    names = [cell.partition("<br>")[0] for cell in table[0][1:]]
    return {(row[0], name): text for row in table[2:] for name, text in zip(names, row[1:], strict=True)}


def render(cells: dict[tuple[str, str], str]) -> str:
    heads = [f"{one.name}<br>{one.title}" for one in FRAMEWORKS]
    rows = [["fault", *heads], ["---"] * (len(heads) + 1)]
    for fault in FAULTS:
        rows.append([fault.name, *(cells.get((fault.name, one.name), "").replace("|", "\\|") for one in FRAMEWORKS)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    load = os.getloadavg()[2]
    return f"{table}\n\nRun on {os.cpu_count()} cores; load average at the end, including these runs: {load:.0f}."


def between(text: str, section: str) -> str:
    return text.partition(f"<!-- {section} -->")[2].partition(f"<!-- /{section} -->")[0]
