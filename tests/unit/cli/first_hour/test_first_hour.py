"""The first hour of a new user: common mistakes with the messages they get, and the right uses of each command.

`mistakes.yaml` and `uses.yaml` list what the user types in a new folder. Each entry starts from the files of
`files.yaml`; `files` adds to them, and `replace` changes text of `job.yaml`. `prints` is the whole output with times,
durations and dates replaced. To print the output of an entry instead of testing it:

    python tests/unit/cli/first_hour/test_first_hour.py 'a misspelled field'

To print all entries as tables in Markdown, from the files alone:

    python tests/unit/cli/first_hour/test_first_hour.py --table
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from allranks.cli.main import cli

HERE = Path(__file__).parent
FILES: dict[str, str] = yaml.safe_load((HERE / "files.yaml").read_text())

VARIABLE = [
    (r"\d{8}-\d{6}(-\d+)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d( UTC)?", "TIME"),
    (r"^ *\d+\.\ds ", "TIMEs "),
    (r"\b\d+(\.\d+)?(s|ms| s)\b", "DURATION"),
    (r"(?<=in )\d+m\d+s", "DURATION"),
    (r"(?<=version )\d+\.\d+\.\d+\w*", "VERSION"),
    (r"(?<=Python )\d+\.\d+\.\d+\w*", "VERSION"),
]
"""Patterns of text that differs between two runs."""


class Entry(NamedTuple):
    """What the user types, and what happens."""

    name: str
    types: list[str]
    """Commands, one after the other in the same folder. The output of the last one counts."""
    exit: int
    prints: str
    files: dict[str, str]
    replace: dict[str, str]
    part: bool
    """`prints` has lines that occur in this order, among others."""

    @classmethod
    def load(cls, name: str, value: dict[str, Any]) -> Entry:
        types = value["types"]
        return cls(
            name,
            types if isinstance(types, list) else [types],
            value.get("exit", 0),
            value["prints"],
            value.get("files", {}),
            value.get("replace", {}),
            value.get("part", False),
        )


def entries(file: str) -> list[Entry]:
    loaded: dict[str, Any] = yaml.safe_load((HERE / file).read_text())
    return [Entry.load(name, value) for name, value in loaded.items()]


MISTAKES = entries("mistakes.yaml")
USES = entries("uses.yaml")


def play(entry: Entry, folder: Path) -> tuple[int, str]:
    """Runs the commands in a new folder. Returns the last one's exit code and its output, stderr included."""
    files = FILES | entry.files
    for old, new in entry.replace.items():
        assert old in files["job.yaml"], f"job.yaml does not contain {old!r}"
        files["job.yaml"] = files["job.yaml"].replace(old, new)
    for name, text in files.items():
        (folder / name).write_text(text)
    for name, mode in ((name, 0o755) for name in files if name.endswith(".sh")):
        (folder / name).chmod(mode)
    home = folder / ".home"
    home.mkdir()
    run = in_a_process if any(command.startswith("allranks run") for command in entry.types) else in_this_process
    for command in entry.types:
        words = shlex.split(command)
        assert words.pop(0) == "allranks"
        code, output = run(words, folder, {"HOME": str(home), "COLUMNS": "100"})
    return code, normal(output, folder)


def in_a_process(words: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "allranks", *words],
        cwd=folder,
        env=os.environ | environment | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


def in_this_process(words: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command that starts no rank: ten times as fast."""
    with contextlib.chdir(folder):
        result = CliRunner().invoke(cli, words, env=environment, prog_name="allranks", catch_exceptions=False)
    return result.exit_code, result.output


def normal(output: str, folder: Path) -> str:
    output = output.replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON")
    for pattern, replacement in VARIABLE:
        output = re.sub(pattern, replacement, output, flags=re.MULTILINE)
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


ENTRIES = [
    *(pytest.param(entry, id=entry.name) for entry in MISTAKES),
    *(pytest.param(entry, id=entry.name, marks=pytest.mark.nightly) for entry in USES),
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_first_hour(entry: Entry, tmp_path: Path) -> None:
    exit_code, output = play(entry, tmp_path)
    if entry.part:
        lines = iter(output.splitlines())
        missing = [line for line in entry.prints.splitlines() if line not in lines]
        assert not missing, output
    else:
        assert output == entry.prints
    assert exit_code == entry.exit


def test_the_list_is_long_enough():
    assert len({entry.name for entry in MISTAKES}) >= 40
    assert len({entry.name for entry in USES}) >= 12


def table(file: str) -> str:
    """Markdown: a row for each entry with what the user types and what matters of the output."""
    rows = ["| # | what the user does | types | exit | message |", "| ---: | --- | --- | ---: | --- |"]
    for number, entry in enumerate(entries(file), 1):
        typed = "; ".join(f"`{command}`" for command in entry.types)
        rows.append(f"| {number} | {entry.name} | {typed} | {entry.exit} | {cell(message_of(entry))} |")
    return "\n".join(rows) + "\n"


def message_of(entry: Entry) -> str:
    """The lines of the output that are about the mistake, else all of them."""
    lines = [line.strip() for line in entry.prints.splitlines() if "programs come from this machine" not in line]
    errors = [line for line in lines if line.lower().startswith(("error:", "warning:"))]
    failures = [line.removeprefix("TIMEs ") for line in lines if _FAILURE.search(line)]
    others = [line for line in lines if line.startswith(("note:", "Hint:")) or "allranks: " in line]
    return "; ".join(errors or failures + others[::-1] or [re.sub(" +", " ", line) for line in lines])


_FAILURE = re.compile("could not be started|not restarted|First failure")


def cell(text: str, width: int = 240) -> str:
    short = text if len(text) <= width else text[: width - 3].rstrip() + "..."
    return short.replace("|", "\\|")


def test_the_table_has_a_row_for_each_entry():
    for file, listed in (("mistakes.yaml", MISTAKES), ("uses.yaml", USES)):
        rows = table(file).splitlines()[2:]
        assert [row.split(" | ")[1] for row in rows] == [entry.name for entry in listed]
        assert all(row.endswith(" |") and not row.endswith("|  |") for row in rows)


def main() -> None:
    """Prints the entries whose names contain the argument as they should stand in the file."""
    import tempfile

    if sys.argv[1] == "--table":
        print(f"## Mistakes\n\n{table('mistakes.yaml')}\n## Right uses\n\n{table('uses.yaml')}", end="")
        return
    for entry in MISTAKES + USES:
        if sys.argv[1] in entry.name:
            with tempfile.TemporaryDirectory() as folder:
                exit_code, output = play(entry, Path(folder))
            print(f"--- {entry.name}: {' ; '.join(entry.types)} -> {exit_code}\n{output}", end="")


if __name__ == "__main__":
    main()
