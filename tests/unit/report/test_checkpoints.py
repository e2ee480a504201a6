"""The checkpoints in a directory: what is listed, what is complete, from which a program continues, what is moved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks import report
from allranks.report import checkpoints
from support.builders import table
from support.fake_report_server import SOURCE
from support.live import eventually


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*checkpoints.RANK, "JAX_PROCESS_ID", "ALLRANKS_INDEX", checkpoints.DIRECTORY, checkpoints.RESUME_STEP):
        monkeypatch.delenv(name, raising=False)


def write(folder: Path, *names: str, content: str = "weights") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def paths(folder: Path) -> list[tuple[int, str]]:
    return [(checkpoint.step, Path(checkpoint.path).name) for checkpoint in checkpoints.stored(folder)]


@table(
    ("files", ["step-0004.pkl", "step-0008.pkl"], [(4, "step-0004.pkl"), (8, "step-0008.pkl")]),
    ("folders of Hugging Face", ["checkpoint-500/model.bin"], [(500, "checkpoint-500")]),
    ("Lightning", ["epoch=1-step=500.ckpt"], [(500, "epoch=1-step=500.ckpt")]),
    ("folders of orbax", ["100/_METADATA"], [(100, "100")]),
    ("the files of TensorFlow", ["checkpoint", "ckpt-8.index", "ckpt-8.data-00000-of-00001"], [(8, "ckpt-8")]),
    ("a file of each rank", ["step-8.0.pt", "step-8.1.pt"], [(8, "step-8")]),
    ("no step", ["model.pt", "best.ckpt", "logs-20261130/x"], []),
    ("unfinished", ["step-8.pt.tmp", ".step-8.pt", "step-9.partial"], []),
    ("a number that is a time", ["step-1700000000000.pt"], []),
)
def test_checkpoints_are_found_by_the_steps_in_their_names(case, tmp_path: Path):
    names, expected = case
    write(tmp_path, *names)
    assert paths(tmp_path) == expected


def test_a_checkpoint_is_complete_if_its_files_have_the_sizes_in_its_manifest(tmp_path: Path):
    write(tmp_path, "step-4/rank-0.pt", "step-4/rank-1.pt", "step-8/rank-0.pt")
    checkpoints.write_manifest(tmp_path / "step-4", 4)
    assert [checkpoint.complete for checkpoint in checkpoints.stored(tmp_path)] == [True, None]
    (tmp_path / "step-4/rank-1.pt").unlink()
    assert [checkpoint.complete for checkpoint in checkpoints.stored(tmp_path)] == [False, None]


def test_a_name_without_a_step_has_the_step_of_its_manifest(tmp_path: Path):
    write(tmp_path, "model.pt")
    checkpoints.write_manifest(tmp_path / "model.pt", 7)
    assert paths(tmp_path) == [(7, "model.pt")]


def test_manifests_of_deleted_checkpoints_are_deleted(tmp_path: Path):
    write(tmp_path, "step-4.pt", "step-8.pt")
    checkpoints.write_manifest(tmp_path / "step-4.pt", 4)
    (tmp_path / "step-4.pt").unlink()
    checkpoints.write_manifest(tmp_path / "step-8.pt", 8)
    assert [path.name for path in (tmp_path / checkpoints.MANIFESTS).iterdir()] == ["step-8.pt.json"]


@table(
    ("no manifests: the newest", [], "", "step-12.pt"),
    ("after one that could not be read", [], "8", "step-8.pt"),
    ("torn: the newest with a manifest", [4, 8], "", "step-8.pt"),
    ("the last with a manifest that may be used", [4, 8], "7", "step-4.pt"),
    ("all are newer", [], "3", None),
)
def test_a_program_resumes_from_the_newest_complete_checkpoint(case, tmp_path: Path, monkeypatch):
    complete, limit, expected = case
    write(tmp_path, "step-4.pt", "step-8.pt", "step-12.pt")
    for step in complete:
        checkpoints.write_manifest(tmp_path / f"step-{step}.pt", step)
    monkeypatch.setenv(checkpoints.DIRECTORY, str(tmp_path))
    monkeypatch.setenv(checkpoints.RESUME_STEP, limit)
    assert report.resume_from() == (str(tmp_path / expected) if expected else None)


def test_a_file_that_is_shorter_than_in_its_manifest_is_skipped(tmp_path: Path):
    write(tmp_path, "step-4.pt", "step-8.pt")
    for step in (4, 8):
        checkpoints.write_manifest(tmp_path / f"step-{step}.pt", step)
    (tmp_path / "step-8.pt").write_text("wei")
    assert report.resume_from(tmp_path) == str(tmp_path / "step-4.pt")


def test_without_a_directory_a_program_starts_at_the_beginning(tmp_path: Path):
    assert report.resume_from() is None
    assert report.resume_from(tmp_path / "none") is None


def test_only_the_first_rank_writes_a_manifest_and_its_hashes_follow(tmp_path: Path, monkeypatch):
    write(tmp_path, "step-4.pt")
    manifest = tmp_path / checkpoints.MANIFESTS / "step-4.pt.json"
    monkeypatch.setenv("RANK", "1")
    checkpoints.record(tmp_path / "step-4.pt", 4)
    assert not manifest.exists()
    monkeypatch.setenv("RANK", "0")
    checkpoints.record(tmp_path / "step-4.pt", 4)
    assert manifest.exists()
    eventually(lambda: "sha256" in json.loads(manifest.read_text())["files"]["step-4.pt"])
    assert checkpoints.verify(tmp_path, "step-4.pt") is True
    (tmp_path / "step-4.pt").write_text("wrights")  # the same size
    assert checkpoints.verify(tmp_path, "step-4.pt") is False
    assert checkpoints.stored(tmp_path)[0].verified is False
    assert report.resume_from(tmp_path) is None


def test_a_checkpoint_that_cannot_be_read_is_moved_with_all_its_files(tmp_path: Path):
    write(tmp_path, "ckpt-4.index", "ckpt-4.data", "ckpt-8.index", "ckpt-8.data", "model.txt")
    text = checkpoints.set_aside(tmp_path, 8, "job-1")
    assert text == f"{tmp_path}/ckpt-8 cannot be read: it is set aside in {tmp_path}/{checkpoints.SET_ASIDE}/job-1"
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [
        checkpoints.SET_ASIDE,
        "ckpt-4.data",
        "ckpt-4.index",
        "model.txt",
    ]
    moved = tmp_path / checkpoints.SET_ASIDE / "job-1"
    assert sorted(path.name for path in moved.iterdir()) == ["ckpt-8.data", "ckpt-8.index"]
    assert "there is no checkpoint of step 8" in checkpoints.set_aside(tmp_path, 8, "job-1")


@table(
    (
        "TensorFlow",
        [f"ckpt-{step}.{part}" for step in (8, 10) for part in ("index", "data-00000-of-00001")],
        "checkpoint",
        'model_checkpoint_path: "ckpt-10"\nall_model_checkpoint_paths: "ckpt-8"\n',
        'model_checkpoint_path: "ckpt-8"\nall_model_checkpoint_paths: "ckpt-8"\n',
    ),
    ("DeepSpeed", ["global_step8/0.pt", "global_step10/0.pt"], "latest", "global_step10", "global_step8"),
    ("Megatron", ["iter_08/0.pt", "iter_10/0.pt"], "latest_checkpointed_iteration.txt", "10", "8"),
    ("another file", ["step-8.pt", "step-10.pt"], "best", "step-10.pt", "step-10.pt"),
)
def test_files_that_name_the_newest_checkpoint_name_the_one_before(case, tmp_path: Path):
    names, pointer, before, after = case
    write(tmp_path, *names)
    write(tmp_path, pointer, content=before)
    checkpoints.set_aside(tmp_path, 10, "job-1")
    assert (tmp_path / pointer).read_text() == after
    copy = tmp_path / checkpoints.SET_ASIDE / "job-1" / pointer
    assert not copy.exists() if after == before else copy.read_text() == before


def test_a_checkpoint_whose_files_have_their_hashes_stays(tmp_path: Path):
    write(tmp_path, "step-8.pt")
    manifest = checkpoints.write_manifest(tmp_path / "step-8.pt", 8)
    assert manifest
    checkpoints._add_hashes(manifest)
    assert "is not set aside: its files have the hashes" in checkpoints.set_aside(tmp_path, 8, "job-1")
    assert (tmp_path / "step-8.pt").exists()
    assert checkpoints.stored(tmp_path)[0].verified is True


def test_older_complete_checkpoints_are_deleted_but_not_those_in_use_or_without_a_manifest(tmp_path: Path):
    for step in (1, 2, 3, 4, 5):
        write(tmp_path, f"step-{step}/rank-0.pt", f"step-{step}/rank-1.pt")
        if step != 3:
            checkpoints.write_manifest(tmp_path / f"step-{step}", step)
    checkpoints.prune(tmp_path, 2, {str(tmp_path / "step-1")})
    assert paths(tmp_path) == [(step, f"step-{step}") for step in (1, 3, 4, 5)]
    assert not (tmp_path / checkpoints.MANIFESTS / "step-2.json").exists()
    (tmp_path / "step-5/rank-1.pt").unlink()
    checkpoints.prune(tmp_path, 1, ())
    assert 4 in [step for step, _ in paths(tmp_path)], "the only complete one"


def test_the_first_rank_keeps_as_many_checkpoints_as_the_job_says(hub, tmp_path: Path):
    folder = tmp_path / "checkpoints"
    write(folder, "step-1.pt", "step-2.pt")
    for step in (1, 2):
        checkpoints.write_manifest(folder / f"step-{step}.pt", step)
    program = f"""
from pathlib import Path
from allranks.report import report
from allranks.report import checkpoints
for step in range(3, 7):
    path = Path({str(folder)!r}, f"step-{{step}}.pt")
    path.write_text("weights")
    report(step=step, checkpoint=path)
    if step < 6:
        checkpoints._background.join()
"""
    run(hub, folder, program, RANK="0", **{checkpoints.KEEP: "1"})
    assert [step for step, _ in paths(folder)] == [2, 6], "the newest, and the one from which it resumed"
    [*_, last] = [message["checkpoints"] for message in hub.messages if "checkpoints" in message]
    assert [entry["step"] for entry in last] == [2, 6]


def test_what_is_no_manifest_is_ignored(tmp_path: Path):
    write(tmp_path, "step-8.pt")
    for number, content in enumerate(("", "[]", '{"step": "8", "files": {}}', '{"step": 8, "files": {"a": 1}}')):
        write(tmp_path, f"{checkpoints.MANIFESTS}/{number}.json", content=content)
    assert [checkpoint.complete for checkpoint in checkpoints.stored(tmp_path)] == [None]


# --- what is reported ------------------------------------------------------------------------------------------------

FAILS_AT_ONCE = (
    "import allranks.report, subprocess, sys; subprocess.run([sys.executable, '-c', 'import allranks.report']); 1 / 0"
)


def run(hub, folder: Path, program: str, **env: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(SOURCE),
        checkpoints.DIRECTORY: str(folder),
        **hub.environment,
        **env,
    }
    subprocess.run([sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL, timeout=60)


def test_a_program_that_fails_while_it_loads_has_listed_its_checkpoints_once(hub, tmp_path: Path):
    folder = tmp_path / "checkpoints"
    write(folder, *(f"step-{step}.pt" for step in range(1, 8)))
    run(hub, folder, FAILS_AT_ONCE, RANK="0")
    [message] = hub.messages
    assert [entry["step"] for entry in message["checkpoints"]] == [3, 4, 5, 6, 7], "the newest five"
    entry = message["checkpoints"][-1]
    assert (entry["path"], entry["complete"], entry["verified"]) == (str(folder / "step-7.pt"), None, None)
    assert 0 <= entry["ago"] < 60


@table(("another rank", {"RANK": "1"}), ("another pod", {"ALLRANKS_INDEX": "1"}))
def test_another_rank_lists_the_checkpoints_only_if_it_fails(case, hub, tmp_path: Path):
    [env] = case
    folder = tmp_path / "checkpoints"
    write(folder, "step-7.pt")
    run(hub, folder, "import allranks.report", **env)
    assert hub.messages == []
    run(hub, folder, FAILS_AT_ONCE, **env)
    assert [[entry["step"] for entry in message["checkpoints"]] for message in hub.messages] == [[7]]


@table(("the first process", {}), ("below one that lists them", {"ALLRANKS_CHECKPOINTS_WATCHED_BY": "1"}))
def test_a_program_that_reports_nothing_is_listed_by_the_startup_code(case, hub, tmp_path: Path):
    [env] = case
    folder = tmp_path / "checkpoints"
    write(folder, "step-7.pt")
    startup = SOURCE / "allranks" / "inpod" / "startup"
    run(hub, folder, "1 / 0", RANK="0", PYTHONPATH=f"{startup}{os.pathsep}{SOURCE}", **env)
    assert [[entry["step"] for entry in message["checkpoints"]] for message in hub.messages] == [[7]]


def test_a_reported_path_gets_a_manifest_before_the_report_is_sent(hub, tmp_path: Path):
    folder = tmp_path / "checkpoints"
    write(folder, "step-4.pt")
    program = f"from allranks.report import report; report(step=4, checkpoint={str(folder / 'step-4.pt')!r})"
    run(hub, folder, program, RANK="0")
    listed = [message["checkpoints"] for message in hub.messages if "checkpoints" in message]
    assert listed[-1][0]["complete"] is True
    [*_, last] = [message["checkpoint"] for message in hub.messages if "checkpoint" in message]
    assert last["step"] == 4
