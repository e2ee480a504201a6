"""Shell completion: commands, options, files, names of jobs, namespaces, contexts and runs."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from allranks.cli import completers
from allranks.cli.main import COMMANDS, HIDDEN, cli


def complete(line: str) -> list[str]:
    """The completions of the last word of a line; those of files are `<files>`."""
    *words, last = line.split(" ")
    items = ShellComplete(cli, {}, "allranks", "_ALLRANKS_COMPLETE").get_completions(words, last)
    return [item.value if item.type == "plain" else f"<{item.type}s>" for item in items]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, tuple[Any, ...]]]:
    """The cluster has jobs and namespaces. The list gets (path, where) of each request."""
    requests = []

    def listed(context: click.Context, path: Any) -> list[str]:
        where = tuple(context.params.get(name) for name in ("namespace", "context", "kubeconfig"))
        requests.append((path(where[0] or "default"), where))
        names = ["team", "other"] if requests[-1][0].endswith("/namespaces") else ["penguins", "penguins-8", "digits"]
        return [*names, "evil; rm -rf ~", "-n"]

    monkeypatch.setattr(completers, "_listed", listed)
    return requests


def test_commands_are_completed_without_those_that_the_help_hides():
    assert complete("va") == ["validate"]
    assert complete("") == list(COMMANDS)
    assert not set(HIDDEN) & set(complete(""))
    assert {"list", "logs", "report", "rm", "prune"} <= set(complete("runs "))
    assert "--dry-run" in complete("submit --")


@pytest.mark.parametrize(
    "line",
    [
        *(
            "run jo",
            "convert a",
            "validate ",
            "render ./",
            "submit a.yaml b",
            "run -f ",
            "validate --filename ",
            "report -f ",
        ),
        *("get --kubeconfig ", "report --output pen"),
    ],
)
def test_files_are_completed_by_the_shell(line):
    assert complete(line) in (["<files>"], ["<paths>"])


def test_a_format_or_a_file_is_completed():
    assert complete("report -o ") == ["text", "html", "json", "diff", "csv"]
    assert complete("report -o ht") == ["html"]
    assert complete("report -o ./") == ["<files>"]


JOBS = ("get", "list", "describe", "top", "logs", "wait", "suspend", "resume", "restart", "scale", "delete", "report")


@pytest.mark.parametrize("command", JOBS)
def test_names_of_jobs_are_completed(command, asked, here):
    assert complete(f"{command} -n team peng") == ["penguins", "penguins-8"]
    assert asked == [("/apis/allranks.dev/v1alpha1/namespaces/team/distributedtrainings", ("team", None, None))]


def test_a_name_that_is_given_already_is_not_completed_again(asked):
    assert complete("delete penguins ") == ["digits", "penguins-8"]
    assert complete("describe --context prod --kubeconfig k ") == ["digits", "penguins", "penguins-8"]
    assert asked[-1][1] == (None, "prod", "k")


def test_namespaces_and_contexts_are_completed(asked, here):
    assert complete("get -n te") == ["team"]
    assert complete("submit job.yaml --namespace ") == ["other", "team"]
    config = {"contexts": [{"name": name, "context": {}} for name in ("prod", "test", "bad name")]}
    (here / "config").write_text(yaml.safe_dump(config))
    assert complete("get --kubeconfig config --context ") == ["prod", "test"]


def test_runs_are_completed(here, asked):
    for name in ("penguins/20260304-101500", "digits/20260304-101501"):
        (here / "runs" / name).mkdir(parents=True)
        (here / "runs" / name / "job.json").write_text("{}")
    assert complete("runs logs peng") == ["penguins", "penguins/20260304-101500"]
    assert complete("runs rm dig") == ["digits", "digits/20260304-101501"]
    assert complete("report dig") == ["digits", "digits/20260304-101501"]
    assert complete("runs logs --root nowhere p") == []


def test_without_a_cluster_nothing_is_printed_and_local_runs_are_completed(here, capfd):
    (here / "runs" / "penguins" / "1").mkdir(parents=True)
    (here / "runs" / "penguins" / "1" / "job.json").write_text("{}")
    assert complete("get ") == []
    assert complete("report ") == ["penguins", "penguins/1"]
    (here / "config").write_text("text")
    assert complete("get --kubeconfig config ") == []
    assert complete("get --kubeconfig config --context ") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.timeout(300)
def test_a_cluster_that_does_not_answer_is_not_waited_for(monkeypatch):
    waiting = threading.Event()
    monkeypatch.setattr(completers, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(completers, "_listed", lambda _context, _path: waiting.wait(600) and ["late"])
    assert complete("get ") == []
    waiting.set()


def test_a_login_program_cannot_ask_during_completion(here, monkeypatch):
    streams: list[object] = []

    def listed(_context: click.Context, _path: object) -> list[str]:
        streams.extend([sys.stdin, sys.stderr])
        return []

    monkeypatch.setattr(completers, "_listed", listed)
    complete("get ")
    assert streams == [None, None]
    assert sys.stderr is not None


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(shell):
    result = CliRunner().invoke(cli, ["completion", shell], catch_exceptions=False)
    assert result.exit_code == 0
    assert f"_ALLRANKS_COMPLETE={shell}_complete" in result.stdout
    assert f"allranks completion {shell} > " in CliRunner().invoke(cli, ["completion", "--help"]).stdout


def test_bash_completes_with_the_script(here):
    script = CliRunner().invoke(cli, ["completion", "bash"]).stdout
    (here / "allranks").write_text(f'#!/bin/sh\nexec {sys.executable} -m allranks "$@"\n')
    (here / "allranks").chmod(0o755)
    words = "COMP_WORDS=(allranks va); COMP_CWORD=1; _allranks_completion ./allranks; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{words}"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.stderr) == ("validate\n", "")


def test_completing_a_command_imports_no_command():
    code = (
        "import sys; from click.shell_completion import ShellComplete; from allranks.cli.main import cli\n"
        "print(len(ShellComplete(cli, {}, 'allranks', '_X').get_completions([], '')))\n"
        "print([name for name in sys.modules if name.startswith(('allranks.cli.commands.', 'pydantic', 'yaml'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == f"{len(COMMANDS)}\n[]\n"
