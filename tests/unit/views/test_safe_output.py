"""Nothing that other people wrote (logs, messages, names) controls the terminal of a user of the command line."""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import json
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

import allranks.cli
from allranks.authoring.yaml_text import dump
from allranks.cli.live import dashboard
from allranks.cli.main import cli
from allranks.client import follow
from allranks.control_sequences import clean, clean_text
from allranks.kube.job_codec import status_of
from allranks.views.job_view import JobView
from allranks.views.live.renderer import Renderer
from allranks.views.live.terminal import FullScreen, terminal
from allranks.views.safe_output import console, guard_output
from support import reported
from support.reported import at, stamp

SGR = re.compile(r"\x1b\[[0-9;:]*m")
VISIBLE_FORMATS = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
"""Characters of the category Cf that are displayed: signs that enclose the numbers after them."""
INVISIBLE = "".join(
    char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) in ("Cf", "Zl", "Zp")
)
INVISIBLE = "".join(char for char in INVISIBLE if char not in VISIBLE_FORMATS)
CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{INVISIBLE}]")
ATTACKS = (
    *("\x1b]0;owned\x07", "\x1b]8;;http://evil\x1b\\", "\x1b]52;c;b3duZWQ=[m", "\x1b]2;[31m\x07", "\x9d0;owned\x9c"),
    *("\x1b[2J", "\x1b[9;9f", "\x1b[?1000h", "\x1b[>4;2m", "\x1b[31\x07m", "\x9b2J", "\x9b31m", "\x1b[\x9b31m"),
    *("\x1bP$q\x1b\\", "\x90q\x9c", "\x1b_x\x1b\\", "\x1bc", "\x1b7", "\x1b(0", "\x1b\x1b[3g", "\x1b"),
    *("\x07", "\x08", "\r", "\x00", "\x7f", "\x85", "\x0b", "\x0c", "\u202e", "\u2066", "\u2029"),
    *("\u200b", "\u200f", "\u2060", "\ufeff", "\u00ad", "\U000e0041"),
)
HOSTILE = "a" + "z".join(ATTACKS) + "z"
SHORT = "a\x1b]0;t\x07z\x1b[2Jz\x9b2Jz\u202ez\u200bz"
NAME = "penguins"


def assert_safe(text: str, *, colour: bool = False) -> None:
    left = CONTROL.search(SGR.sub("", text) if colour else text)
    assert not left, f"{left[0]!r} in {text[max(0, left.start() - 60) : left.end() + 60]!r}" if left else ""


# --- the filter, for any text ----------------------------------------------------------------------------------------

texts = st.lists(
    st.one_of(st.sampled_from(ATTACKS), st.sampled_from([*"\x1b[]m;:?0149 \n\x07\\Aé\U0001f600"]), st.text(max_size=3))
).map("".join)


@given(texts, st.booleans())
def test_no_control_sequence_but_colours_passes_the_filter(text, colour):
    assert_safe(clean_text(text, colour), colour=colour)
    assert_safe(clean(text.replace("\n", "").encode(errors="replace"), colour), colour=colour)
    assert clean_text(clean_text(text, colour), colour) == clean_text(text, colour)


@pytest.mark.parametrize(
    ("sequence", "kept"),
    [
        ("\x1b[31m", "\x1b[31m"),
        ("\x1b[1;92m", "\x1b[1;92m"),
        ("\x1b[8m", ""),  # conceal
        ("\x1b[1;8;32m", "\x1b[1;32m"),
        ("\x1b[30;40m", ""),  # black on black
        ("\x1b[31;41m", "\x1b[31m"),  # red on red
        ("\x1b[38;5;8;48;5;8m", ""),  # 8 is one of 256 colours, not conceal
        ("\x1b[38;2;1;1;1;48;2;1;1;1;4m", "\x1b[4m"),
        ("\x1b[38:2::1:1:1m", ""),
        ("\x1b[97m", ""),  # white on white
        ("\x1b[7;5;9;28;38m", ""),
        ("\x1b[" + "1;" * 5_000 + "31m", ""),
        ("\x1b[m", "\x1b[0m"),
        ("\x1b[38;5m", ""),
    ],
)
def test_only_colours_of_text_that_hide_nothing_pass(sequence, kept):
    assert clean_text(f"a{sequence}b\x1b[0m", colour=True) == f"a{kept}b\x1b[0m"
    assert clean(f"a{sequence}b".encode(), colour=True).removesuffix("\x1b[0m") == f"a{kept}b"
    assert clean_text(f"a{sequence}b", colour=False) == "ab"


@given(st.lists(texts), st.booleans())
def test_colours_end_with_their_line(lines, colour):
    for line in clean_text("\n".join(lines), colour).splitlines():
        *_, last = [*SGR.findall(line), "\x1b[0m"] if not SGR.search(line) else SGR.findall(line)
        assert last in ("\x1b[0m", "\x1b[m")


@given(st.lists(st.one_of(st.sampled_from(INVISIBLE), st.text(max_size=3))).map("".join), st.booleans())
def test_no_invisible_character_passes_the_filter(text, colour):
    """They include those of https://trojansource.codes, and characters of zero width."""
    assert_safe(clean_text(text, colour), colour=colour)
    assert_safe(clean(text.replace("\n", "").encode(errors="replace"), colour), colour=colour)


def test_every_invisible_character_of_unicode_is_removed_and_visible_formats_are_not():
    assert clean_text(INVISIBLE, colour=False) == ""
    assert clean(INVISIBLE.encode(), colour=False) == ""
    kept = "".join(sorted(VISIBLE_FORMATS))
    assert clean_text(kept, colour=False) == kept


@given(st.lists(st.one_of(st.sampled_from(INVISIBLE), st.text(st.characters(codec="utf-8"), max_size=3))).map("".join))
def test_yaml_escapes_what_the_filter_would_remove(text):
    printed = dump([{"text": text}])
    assert clean_text(printed, colour=False) == printed
    assert yaml.safe_load(printed) == {"text": text}


@given(st.text(st.characters(exclude_categories=("C", "Zl", "Zp"))))
def test_other_text_is_not_changed(text):
    assert clean_text(text, colour=True) == text


@given(st.lists(texts), st.booleans())
def test_no_control_sequence_but_colours_passes_the_consoles_of_live_views(parts, colour):
    out = io.StringIO()
    made = console(out, colour)
    made._force_terminal = True
    for part in parts:
        made.print(Text(part))
        made.print(part, soft_wrap=True)
    assert_safe(out.getvalue(), colour=True)


def test_every_output_of_the_command_line_passes_the_filter():
    """Nothing in cli/, client/ and views/ opens another way to the terminal than sys.stdout and sys.stderr, which are
    guarded."""
    forbidden = {"__stdout__", "__stderr__", "Console"}
    package = Path(allranks.cli.__file__).parent.parent
    for file in (file for folder in ("cli", "client", "views") for file in (package / folder).rglob("*.py")):
        if file.name == "safe_output.py":
            continue
        tree = ast.parse(file.read_text())
        hidden = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ]
        for node in hidden:
            node.body = []
        for node in ast.walk(tree):
            used = {node.attr} if isinstance(node, ast.Attribute) else set()
            used |= {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
            assert not used & forbidden, f"{file}: {ast.unparse(node)}"
            assert ast.unparse(node) not in ("sys.stdout.buffer", "sys.stderr.buffer"), file


# --- every command, with hostile objects -----------------------------------------------------------------------------

FIXED = {"phase", "status", "type", "state", "ready", "kind", "apiVersion", "uid", "resourceVersion", "framework"}
"""Fields with few values, which the API server checks."""


BOUNDED = {"reason", "role", "replica", "node", "pod", "summary", "eta", "curveMetric"}
"""Fields of at most 128 characters."""


def hostile(value: Any, field: str = "") -> Any:
    """Every text of the object with attacks at its end."""
    if isinstance(value, dict):
        return {key: hostile(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner, field) for inner in value]
    is_time = isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value)
    if not isinstance(value, str) or is_time or field in FIXED:
        return value
    return value + (SHORT if field in BOUNDED else HOSTILE)


def hostile_job(made: dict[str, Any], name: str = NAME) -> dict[str, Any]:
    job = hostile(copy.deepcopy(made))
    job["metadata"] |= {"name": name, "namespace": "team", "labels": {"team": HOSTILE, HOSTILE: "x"}}
    job["status"]["progress"]["metrics"] |= {SHORT: 1.0}
    job["status"]["conditions"].append(
        {"type": "Failed", "status": "True", "reason": SHORT, "message": HOSTILE, "lastTransitionTime": stamp(300)}
    )
    return job


def failed_job() -> dict[str, Any]:
    made = reported.finished()
    made["status"] |= {"phase": "Failed", "conditions": []}
    return hostile_job(made)


def hostile_pods() -> Iterator[dict[str, Any]]:
    waiting = {"waiting": {"reason": HOSTILE, "message": HOSTILE}}
    ended = {"terminated": {"exitCode": 1, "reason": HOSTILE, "message": HOSTILE, "finishedAt": stamp(300)}}
    for index, state in enumerate((waiting, ended, {"running": {"startedAt": stamp(10)}})):
        labels = {"job": NAME, "role": "worker", "index": str(index), "attempt": "2"}
        yield {
            "metadata": {
                "name": f"{NAME}-worker-{index}-1",
                "uid": f"uid-{index}",
                "namespace": "team",
                "resourceVersion": "5",
                "creationTimestamp": stamp(2),
                "labels": {f"allranks.dev/{key}": value for key, value in labels.items()},
                "ownerReferences": [{"uid": f"uid-{NAME}", "controller": True, "kind": "DistributedTraining"}],
            },
            "spec": {"nodeName": HOSTILE, "containers": [{"name": "trainer"}]},
            "status": {
                "phase": ("Pending", "Failed", "Running")[index],
                "reason": HOSTILE,
                "message": HOSTILE,
                "containerStatuses": [{"name": "trainer", "restartCount": 0, "state": state}],
            },
        }


def hostile_event() -> dict[str, Any]:
    about = {"kind": "Pod", "name": f"{NAME}-worker-1-1{HOSTILE}"}
    times = {"firstTimestamp": stamp(5), "lastTimestamp": stamp(9)}
    meta = {"name": "e", "creationTimestamp": stamp(5)}
    return {"metadata": meta, "involvedObject": about, "reason": HOSTILE, "type": HOSTILE, "message": HOSTILE} | times


class _HostileApi(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        jobs = [failed_job(), hostile_job(reported.running(), "walrus")]
        if path.endswith("/log"):
            lines = [f"{stamp(5)[:-1]}.{number:09}Z {attack}" for number, attack in enumerate((*ATTACKS, HOSTILE))]
            return self.answer("\n".join(lines).encode() + b"\nraw \x9b2J \xff\n")
        if "watch=" in query:
            return self.answer(b"")
        if path.endswith("/pods"):
            return self.items([*hostile_pods()])
        if path.endswith("/events"):
            return self.items([hostile_event()])
        if path.endswith("/forbidden"):
            return self.refuse()
        if "as=Table" in self.headers.get("Accept", ""):
            columns = [{"name": name, "type": "string"} for name in ("Name", "Phase", HOSTILE)]
            rows = [{"cells": [HOSTILE, HOSTILE, HOSTILE], "object": job} for job in jobs]
            return self.json({"kind": "Table", "metadata": {}, "columnDefinitions": columns, "rows": rows})
        if "fieldSelector" in query:
            return self.items(jobs[:1])
        named = [job for job in jobs if path.endswith("/" + job["metadata"]["name"])]
        return self.json(named[0]) if named else self.items(jobs)

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = {"kind": "Status", "reason": "Forbidden", "message": HOSTILE, "details": {"name": HOSTILE}}
        self.answer(json.dumps(status).encode(), 403)

    do_POST = do_PATCH = do_DELETE = refuse

    def items(self, items: list[dict[str, Any]]) -> None:
        self.json({"kind": "List", "metadata": {"resourceVersion": "100"}, "items": items})

    def json(self, body: dict[str, Any]) -> None:
        self.answer(json.dumps(body).encode())

    def answer(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The kubeconfig of an API server that is full of attacks."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _HostileApi)
    server.daemon_threads = True
    assert status_of(failed_job()).phase == "Failed"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    context = {"cluster": "some", "user": "me", "namespace": "team"}
    url = f"http://127.0.0.1:{server.server_address[1]}"
    config = {
        "clusters": [{"name": "some", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [{"name": "some", "context": context}],
        "current-context": "some",
    }
    kubeconfig = tmp_path_factory.mktemp("api") / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    yield str(kubeconfig)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Manifests with attacks in what a manifest may contain, in what it may not, and a program that prints them."""
    folder = tmp_path_factory.mktemp("files")
    job = reported.job()
    job.pop("status")
    job["metadata"] = {"name": NAME, "annotations": {"a": HOSTILE}}
    valid = copy.deepcopy(job)
    valid["spec"] |= {"command": ["sh", "-c", HOSTILE], "env": [{"name": "TEXT", "value": HOSTILE}]}
    invalid = copy.deepcopy(job)
    invalid["metadata"]["name"] = HOSTILE
    invalid["spec"] |= {"image": HOSTILE, HOSTILE: 1, "framework": HOSTILE}
    prints = copy.deepcopy(job)
    program = f"import sys; sys.stdout.write({HOSTILE!r} + '\\n'); sys.exit({HOSTILE!r})"
    prints["spec"] |= {"command": [sys.executable, "-c", program], "restart": {"maxRestarts": 0}}
    prints["spec"]["roles"] = {"worker": {"replicas": 1}}
    for name, document in (("valid", valid), ("invalid", invalid), ("prints", prints)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return folder


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not wait for further log lines of a pod that runs."""
    monkeypatch.setattr(follow, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(follow, "LAST_LINES_SECONDS", 0.2)


ON_CLUSTER = (
    *("get", "get -A -o wide", f"get {NAME} -o yaml", f"get {NAME} -o json", "get -o name", "list"),
    *(f"describe {NAME}", "top --once", f"top {NAME} --once", f"top {NAME} -o json"),
    *(
        f"report {NAME}",
        f"report {NAME} --html -",
        f"report {NAME} --json",
        f"logs {NAME}",
        f"logs {NAME} --timestamps",
    ),
    *(
        f"describe {NAME} -o yaml",
        f"describe {NAME} -o json",
        f"logs {NAME} -o json",
        "top -o yaml",
        "doctor --cluster",
    ),
    *(f"wait {NAME} -o yaml", "suspend walrus -o json", "delete walrus -o yaml", f"logs {NAME} --all-attempts"),
    *(f"wait {NAME}", f"wait {NAME} --logs", "submit FILES/valid.yaml", "submit FILES/invalid.yaml"),
    *("suspend walrus", "resume walrus", "scale walrus 2", "delete walrus", "describe forbidden", "report forbidden"),
)
LOCAL = (
    *("validate FILES/valid.yaml", "validate FILES/invalid.yaml", "validate FILES/invalid.yaml -o json"),
    *("render FILES/valid.yaml", "render FILES/valid.yaml -o json", "run --dry-run FILES/valid.yaml"),
    *("run FILES/invalid.yaml", "run FILES/prints.yaml --run-dir FILES/run"),
)


def arguments(command: str, api: str, files: Path) -> list[str]:
    given = [word.replace("FILES", str(files)) for word in command.split()]
    return [*given, "--kubeconfig", api] if command in ON_CLUSTER else given


@pytest.mark.parametrize("command", [*ON_CLUSTER, *LOCAL])
def test_no_command_prints_a_control_sequence(command, api, files):
    result = CliRunner().invoke(cli, arguments(command, api, files))
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    assert result.output
    assert_safe(result.output)


# --- on a terminal ---------------------------------------------------------------------------------------------------

MOVEMENTS = re.compile(r"\x1b\[(?:\?25|\?1049)[hl]|\x1b\[\d*[AHK]|\x1b\[H|\r")
"""Written by rich: hide the cursor, alternate screen, move up, erase a line. No attack is one of them, except \\r."""


@contextlib.contextmanager
def tty(monkeypatch: pytest.MonkeyPatch, **environ: str) -> Iterator[list[bytes]]:
    """Replaces stdout and stderr by a terminal. What was written to it is in the list at the end."""
    master, slave = os.openpty()
    written: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(master, 65536):
                written.append(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    stream = os.fdopen(slave, "w", encoding="utf-8", newline="")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        patched.setattr(sys, "stderr", stream)
        patched.setenv("TERM", "xterm-256color")
        patched.delenv("NO_COLOR", raising=False)
        for name, value in environ.items():
            patched.setenv(name, value)
        yield written
    stream.close()
    reader.join(30)
    os.close(master)


def assert_safe_on_terminal(written: list[bytes]) -> None:
    text = b"".join(written).decode(errors="replace")
    assert "z" in text
    for attack in ATTACKS:
        assert attack in ("\x1b", "\r") or attack not in text, repr(attack)
    assert_safe(MOVEMENTS.sub("", text), colour=True)


@pytest.mark.parametrize(
    "command", [f"describe {NAME}", f"logs {NAME}", f"wait {NAME} --logs", "get", "report forbidden"]
)
def test_no_command_sends_a_control_sequence_to_a_terminal(command, api, files, monkeypatch):
    with tty(monkeypatch) as written, pytest.raises(SystemExit):
        cli.main(arguments(command, api, files), standalone_mode=True)
    assert_safe_on_terminal(written)


def test_no_control_sequence_reaches_the_terminal_during_a_run(files, monkeypatch):
    with tty(monkeypatch) as written, pytest.raises(SystemExit):
        cli.main(arguments("run FILES/prints.yaml --run-dir FILES/run-on-terminal", "", files), standalone_mode=True)
    assert_safe_on_terminal(written)


def test_no_control_sequence_reaches_the_terminal_from_the_full_screen_view(monkeypatch):
    jobs = [JobView.decode(hostile_job(make()), at(500)) for make in (reported.running, reported.finished)]
    with tty(monkeypatch) as written:
        guard_output()
        made = terminal(sys.stdout, True)
        assert made is not None
        with FullScreen(made) as screen:
            screen.draw(lambda width, height, unicode: dashboard.job(jobs[0], width, height, unicode))
            screen.draw(lambda width, height, unicode: dashboard.jobs(jobs, width, height, unicode, namespaces=True))
    assert_safe_on_terminal(written)


def test_no_control_sequence_reaches_the_terminal_from_the_live_summary(monkeypatch):
    with tty(monkeypatch) as written:
        guard_output()
        renderer = Renderer(sys.stdout, live=True, colour=True, on_closed=lambda: None)
        renderer.begin(HOSTILE)
        renderer.status(status_of(hostile_job(reported.running())), ())
        renderer.message(HOSTILE)
        renderer.end()
    assert_safe_on_terminal(written)


COLOURED = (f"describe {NAME}", f"wait {NAME}", "describe forbidden", "validate FILES/invalid.yaml")
"""Commands that print colours on a terminal that has them."""


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "unknown"}], ids=str)
@pytest.mark.parametrize("command", COLOURED)
def test_colours_are_printed_only_where_they_are_wanted(command, environ, api, files, monkeypatch):
    with tty(monkeypatch, **environ) as written, pytest.raises(SystemExit):
        cli.main(arguments(command, api, files), standalone_mode=True)
    text = MOVEMENTS.sub("", b"".join(written).decode(errors="replace"))
    assert text
    assert bool(SGR.search(text)) == (not environ), text
