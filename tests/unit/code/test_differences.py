"""The differences of code from its commit: what is shown, what is only named, and what is masked."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from allranks.code import differences, ship
from allranks.code.bundle import EMPTY, MAX_SHIPPED_BYTES, Bundle, collect
from allranks.code.differences import MAX_CHARACTERS, MAX_FILE_CHARACTERS, MAX_NAMED, File, compressed, decompressed

from .test_bundle import committed, git, write

KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nx\n"


def test_the_differences_of_tracked_and_new_files_are_a_patch_that_gives_the_shipped_files(tmp_path: Path) -> None:
    """Also with a configuration of git that changes the form of its output."""
    here = committed(
        tmp_path / "here", {"train.py": "1\n2\n", "gone.py": "old\n", "strange \u00e9 name.py": "a\n", "tool.sh": "x\n"}
    )
    there = tmp_path / "there"
    git(tmp_path, "clone", "-q", str(here), str(there))
    for name, value in (("diff.noprefix", "true"), ("color.ui", "always"), ("diff.renames", "copies")):
        git(here, "config", name, value)
    write(here, {"train.py": "1\n3\n", "lib/new.py": "a\nb", "empty.py": "", "strange \u00e9 name.py": "b\n"})
    (here / "gone.py").unlink()
    (here / "tool.sh").chmod(0o755)
    bundle = collect(here)
    assert bundle.differences.startswith(f"# differences from commit {bundle.commit}\ndiff --git a/")
    assert "\n-2\n+3\n" in bundle.differences
    subprocess.run(["git", "apply", "-"], input=bundle.differences.encode(), cwd=there, check=True)
    assert collect(there).sha256 == bundle.sha256


def test_code_without_changes_or_without_a_commit_has_no_differences(tmp_path: Path) -> None:
    assert collect(committed(tmp_path / "a", {"train.py": ""})).differences == ""
    git(write(tmp_path / "b", {"train.py": ""}), "init", "-q")
    assert collect(tmp_path / "b").differences == ""


def test_the_differences_do_not_change_the_hash_of_the_code(tmp_path: Path) -> None:
    committed(tmp_path, {"train.py": "1\n"})
    write(tmp_path, {"train.py": "2\n"})
    dirty = collect(tmp_path)
    git(tmp_path, "commit", "-aqm", "second")
    assert dirty.differences
    assert (collect(tmp_path).sha256, collect(tmp_path).differences) == (dirty.sha256, "")


def test_binary_files_and_what_is_not_shipped_are_only_named(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"a.npy": b"\0", ".env": "A=1\n", "old.env": "B=hush\n", "notes.txt": "n\n"}
    committed(tmp_path, {**files, ".allranksignore": "notes.txt\n"})
    write(tmp_path, {"a.npy": b"\0\1", ".env": "A=2\n", "notes.txt": "m\n", "b.npy": b"\0", "id": KEY})
    (tmp_path / "old.env").unlink()
    text = collect(tmp_path).differences
    assert "Binary files a/a.npy and b/a.npy differ\n" in text
    assert "Binary files /dev/null and b/b.npy differ\n" in text
    assert "# .env is not shown: it usually holds credentials\n" in text
    assert "# old.env is not shown: it usually holds credentials\n" in text
    assert "# notes.txt is not shown: it is not shipped\n" in text
    assert not any(secret in text for secret in ("A=1", "A=2", "hush", "PRIVATE"))


def test_secrets_in_lines_that_were_removed_are_masked(tmp_path: Path) -> None:
    token = "ghp_" + "a" * 36
    committed(tmp_path, {"train.py": f'password = "hunter22"\nx = "{token}"\n', "run.sh": "export API_KEY=abcdefgh\n"})
    write(tmp_path, {"train.py": "y = sorted(x, key=lambda z: z)\ntokenizer = load(vocabulary)\n", "run.sh": "true\n"})
    text = collect(tmp_path).differences
    assert '-password = "<masked>"\n-x = "<masked>"\n' in text
    assert "-export API_KEY=<masked>\n" in text
    assert "+y = sorted(x, key=lambda z: z)\n+tokenizer = load(vocabulary)\n" in text


def test_a_file_that_held_a_private_key_is_only_named() -> None:
    patch = f"diff --git a/x.txt b/x.txt\n--- a/x.txt\n+++ b/x.txt\n@@ -1,2 +0,0 @@\n-{KEY}"
    text = differences.text_of("c", patch, (), lambda _name: "")
    assert text == "# differences from commit c\n# x.txt is not shown: it holds a private key\n"


def test_a_long_file_is_cut_and_leaves_room_for_the_others(tmp_path: Path) -> None:
    committed(tmp_path, {"a.txt": "", "z.py": "1\n"})
    write(tmp_path, {"a.txt": "line\n" * 100_000, "z.py": "2\n"})
    text = collect(tmp_path).differences
    assert "# the rest of a.txt is not shown: it has more than 65,536 characters\n" in text
    assert "\n-1\n+2\n" in text
    assert len(text) < MAX_FILE_CHARACTERS + 1000


def test_many_long_files_are_named_up_to_a_bound(tmp_path: Path) -> None:
    committed(tmp_path, {"a.py": ""})
    write(tmp_path, {f"file-{number:03}.txt": "line\n" * 20_000 for number in range(MAX_NAMED + 10)})
    text = collect(tmp_path).differences
    assert len(text) < MAX_CHARACTERS + 10_000
    assert text.count("the differences have more than 262,144 characters") == MAX_NAMED
    assert text.endswith(" more files are not shown\n")


def test_the_config_map_has_the_differences_beside_the_archive_as_far_as_there_is_room(tmp_path: Path) -> None:
    text = "".join(f"+{number * 7919 % 100_003}\n" for number in range(20_000))
    bundle = Bundle((File("train.py", b"x"),), differences=text)
    assert decompressed(base64.b64decode(ship.manifest(bundle, "team")["binaryData"][ship.DIFFERENCES])) == text
    cut = decompressed(compressed(text, 10_000))
    first, _, last = cut[:-1].rpartition("\n")
    assert text.startswith(first)
    assert last == "# the rest is not shown: it has no room beside the code"
    assert compressed(text, 20) == b""
    assert ship.DIFFERENCES not in ship.manifest(EMPTY, "team")["binaryData"]


def test_a_full_config_map_has_the_archive_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle((File("train.py", b"x"),), differences="+x\n" * 1000)
    monkeypatch.setattr(ship, "MAX_SHIPPED_BYTES", len(bundle.archive) + 10)
    assert list(ship.manifest(bundle, "team")["binaryData"]) == ["code.tar.gz"]
    assert MAX_SHIPPED_BYTES == 2**20


def test_what_is_no_archive_is_an_error_and_a_huge_one_is_cut() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decompressed(b"nothing")
    assert len(decompressed(compressed("x" * 50_000_000, 2**20))) < 5 * MAX_CHARACTERS
