"""The files of a run: listed and sent, and nothing outside of its directory is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks.ui import files
from allranks.ui.changes import Hub
from allranks.ui.problems import Problem
from allranks.ui.users import NoRuns
from support.live import eventually
from support.ui_samples import HOSTILE, a_run
from support.ui_server import UiServer

TIME = "20260304-101500"
RUN = f"/runs/digits/{TIME}"
FILES = f"/api/v1{RUN}/files"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("outside")
    return a_run(tmp_path / "runs", "digits", TIME, "Succeeded", {"digits-worker-0-0": b"the whole log\n"})


@pytest.fixture
def server(tmp_path: Path, run: Path) -> Iterator[UiServer]:
    with UiServer(tmp_path / "none", tmp_path / "runs") as server:
        yield server


def test_the_files_of_a_run_are_listed_and_sent(server: UiServer, run: Path) -> None:
    (run / "volumes" / "checkpoints").mkdir(parents=True)
    (run / "volumes" / "checkpoints" / "step 5 é.pt").write_bytes(bytes(range(256)))
    (run / "empty").touch()
    listed = server.get(FILES).json
    assert [(file["name"], file["kind"]) for file in listed["files"]] == [
        ("logs", "folder"),
        ("volumes", "folder"),
        ("empty", "file"),
        ("job.json", "file"),
    ]
    assert server.get(f"{FILES}/empty").text == ""
    assert server.get(f"{FILES}/logs/digits-worker-0-0.log").text == "the whole log\n"
    page = server.get(f"{RUN}/files?folder=volumes/checkpoints").text
    (address,) = re.findall(r'<a href="([^"]+)" download>step 5 é.pt</a>', page)
    with server.open("GET", address) as answer:
        assert answer.read() == bytes(range(256))
        assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''step%205%20%C3%A9.pt"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["content-type"] == "application/octet-stream"
    assert f'<a href="{RUN}/files?folder=volumes">volumes</a>' in page
    assert f'href="{RUN}/files" aria-current="page">Files</a>' in server.get(f"{RUN}/files").text


@pytest.mark.parametrize(
    "path",
    [
        *("..", "../../../secret.txt", "%2e%2e/%2e%2e/%2e%2e/secret.txt", "logs/../job.json", "logs%2f..%2fjob.json"),
        *(
            "/etc/passwd",
            "%2fetc%2fpasswd",
            "logs//x",
            "./job.json",
            "job.json%00",
            "logs",
            "",
            "none",
            "a/" * 100 + "b",
        ),
        *("link", "folder/secret.txt", "pipe", "job.json/x", "%ff", "x" * 300),
    ],
)
def test_nothing_but_a_file_of_the_run_is_sent(server: UiServer, run: Path, path: str) -> None:
    (run / "link").symlink_to(run.parents[2] / "secret.txt")
    (run / "folder").symlink_to(run.parents[2])
    os.mkfifo(run / "pipe")
    answer = server.get(f"{FILES}/{path}")
    assert answer.status in (404, 307)
    assert "outside" not in answer.text


@pytest.mark.parametrize("folder", ["..", "logs/../..", "/", "folder", "job.json", "none", "%00"])
def test_nothing_but_a_folder_of_the_run_is_listed(server: UiServer, run: Path, folder: str) -> None:
    (run / "folder").symlink_to(run.parents[2])
    for address in (f"{FILES}?folder={folder}", f"{RUN}/files?folder={folder}"):
        answer = server.get(address)
        assert answer.status == 404
        assert "secret" not in answer.text


def test_links_pipes_and_hostile_names_are_listed_as_text(server: UiServer, run: Path) -> None:
    (run / "link").symlink_to("/etc/passwd")
    os.mkfifo(run / "pipe")
    (run / HOSTILE.replace("/", "")).touch()
    (run / os.fsdecode(b"\xff.png")).touch()
    kinds = {file["name"]: file["kind"] for file in server.get(FILES).json["files"]}
    assert [kinds[name] for name in ("link", "pipe", "?.png")] == ["other"] * 3
    page = server.get(f"{RUN}/files").text
    assert "<script>" not in page.partition("<main")[2]
    assert "a link or a special file: not opened here" in page


def test_the_page_of_a_log_offers_the_whole_log(server: UiServer) -> None:
    (address,) = re.findall(r'<a href="([^"]+)" download>Whole log</a>', server.get(f"{RUN}/logs").text)
    assert server.get(address).text == "the whole log\n"


def test_a_folder_with_too_many_files_says_so(server: UiServer, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_READ", 20)
    monkeypatch.setattr(files, "MOST_LISTED", 10)
    for number in range(40):
        (run / "logs" / f"{number}.txt").touch()
    listed = server.get(f"{FILES}?folder=logs").json
    assert (len(listed["files"]), listed["more"]) == (10, True)
    assert "The folder has more entries" in server.get(f"{RUN}/files?folder=logs").text


def test_a_file_that_is_larger_than_the_memory_is_sent_in_parts(server: UiServer, run: Path) -> None:
    size = 40 * 2**30
    with (run / "huge").open("wb") as file:
        file.truncate(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with server.open("GET", f"{FILES}/huge") as answer:
        assert answer.headers["content-length"] == str(size)
        for _ in range(256):
            assert len(answer.read(2**20)) == 2**20
        assert _is_open("huge")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 100, f"{grown} MB"
    eventually(lambda: not _is_open("huge"))  # long before its end


def _is_open(name: str) -> bool:
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(link.readlink().name)
    return name in links


def test_only_three_large_files_are_sent_at_the_same_time(server: UiServer, run: Path) -> None:
    with (run / "huge").open("wb") as file:
        file.truncate(2**40)
    with contextlib.ExitStack() as stack:
        answers = [stack.enter_context(server.open("GET", f"{FILES}/huge")) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 503]
        assert server.get(f"{FILES}/job.json").status == 200
    eventually(lambda: not _is_open("huge"))


def test_pictures_are_shown_but_not_large_ones_and_no_svg(server: UiServer, run: Path) -> None:
    for name, size in (("loss.png", 10), ("large.png", 5 * 2**20), ("plot.svg", 10)):
        (run / name).write_bytes(b"x" * size)
    page = server.get(f"{RUN}/files").text
    assert re.findall(r'<img src="[^"]+/([^"/]+)"', page) == ["loss.png"]
    with server.open("GET", f"{FILES}/loss.png") as answer:
        assert answer.headers["content-type"] == "image/png"


def test_a_job_of_a_cluster_has_no_files_here(tmp_path: Path, run: Path) -> None:
    with UiServer(tmp_path / "none", tmp_path / "runs") as server:
        assert server.get("/api/v1/jobs/team/digits/files").status == 404
        assert server.get("/api/v1/runs/digits/none/files/job.json").status == 404
        assert server.get(f"{FILES}/job.json", cookie="a=b").status == 401


def test_a_server_in_the_cluster_shows_nothing_of_its_own_directory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parents[1])
    (run / "trials" / "one").mkdir(parents=True)
    for file in (run / "sweep.json", run / "trials" / "one" / "job.json"):
        file.write_text("{}")
    runs = NoRuns(Hub())
    assert runs.sweeps() == asyncio.run(runs.all()) == asyncio.run(runs.trials()) == []
    with pytest.raises(Problem, match="there is no run"):
        asyncio.run(runs.get("digits", TIME))
