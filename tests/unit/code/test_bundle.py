"""Which files are shipped, and the archive that they make."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from allranks.code import bundle as bundles
from allranks.code import repository, selection
from allranks.code.bundle import EMPTY, Bundle, collect
from allranks.errors import CannotShip
from allranks.local.code import CodeVersion

KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nx\n"


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=Me", "-c", "user.email=me@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *identity, *words), cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(folder: Path, files: dict[str, str | bytes]) -> Path:
    write(folder, files)
    git(folder, "init", "-q")
    git(folder, "add", "--force", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def names(bundle: Bundle) -> list[str]:
    return [file.name for file in bundle.files]


def test_tracked_modified_and_new_files_are_shipped_and_ignored_and_deleted_ones_are_not(tmp_path) -> None:
    committed(tmp_path, {"train.py": "1", "gone.py": "", "lib/net.py": "", ".gitignore": "out/\n"})
    write(tmp_path, {"train.py": "2", "new.py": "", "out/log.txt": ""})
    (tmp_path / "gone.py").unlink()
    bundle = collect(tmp_path)
    assert names(bundle) == [".gitignore", "lib/net.py", "new.py", "train.py"]
    assert bundle.files[-1].data == b"2"


def test_the_commit_and_what_differs_from_it_are_recorded(tmp_path) -> None:
    committed(tmp_path, {"train.py": "1\n2\n", "weights.npy": b"\0"})
    clean = collect(tmp_path)
    assert (clean.commit, clean.dirty, clean.changes) == (git(tmp_path, "rev-parse", "HEAD"), False, "")
    write(tmp_path, {"train.py": "1\n2\n3\n", "new.py": "", "weights.npy": b"\0\1"})
    assert collect(tmp_path).changes == "train.py +1 -0, weights.npy binary, new.py new"
    assert collect(tmp_path).dirty


def test_many_changes_fit_into_the_field(tmp_path) -> None:
    committed(tmp_path, {"a.py": ""})
    write(tmp_path, {f"a_module_with_a_long_name_{number}.py": "" for number in range(100)})
    changes = collect(tmp_path).changes
    assert len(changes) <= 1024
    assert changes.endswith(" more files")


def test_only_the_directory_is_shipped_not_the_rest_of_its_repository(tmp_path) -> None:
    committed(tmp_path, {"README": "", "project/train.py": ""})
    write(tmp_path, {"README": "changed"})
    bundle = collect(tmp_path / "project")
    assert names(bundle) == ["train.py"]
    assert not bundle.dirty


def test_without_git_all_files_are_shipped_that_no_gitignore_names(tmp_path) -> None:
    files = {"train.py": "", "data/.gitignore": "*.csv\n!small.csv\n", "data/big.csv": "", "data/small.csv": ""}
    write(tmp_path, {**files, ".gitignore": "/out\n", "out/a": "", "lib/out/b": ""})
    bundle = collect(tmp_path)
    assert names(bundle) == [".gitignore", "data/.gitignore", "data/small.csv", "lib/out/b", "train.py"]
    assert (bundle.commit, bundle.dirty) == (None, None)


def test_a_directory_that_an_outer_repository_ignores_is_shipped_like_one_without_git(tmp_path) -> None:
    committed(tmp_path, {".gitignore": "*\n"})
    write(tmp_path, {"work/train.py": ""})
    assert names(collect(tmp_path / "work")) == ["train.py"]


def test_a_submodule_and_a_repository_inside_are_shipped_with_their_files(tmp_path) -> None:
    committed(write(tmp_path, {"outer/train.py": ""}) / "outer", {"train.py": ""})
    committed(tmp_path / "outer" / "lib", {"net.py": "", ".gitignore": "*.log\n"})
    write(tmp_path, {"outer/lib/x.log": ""})
    assert names(collect(tmp_path / "outer")) == ["lib/.gitignore", "lib/net.py", "train.py"]


@pytest.mark.parametrize("with_git", [True, False])
def test_allranksignore_leaves_files_out_that_git_tracks_too(tmp_path, with_git) -> None:
    files = {"train.py": "", "docs/a.md": "", "docs/b.py": "", ".allranksignore": "docs/*\n!docs/b.py\n"}
    (committed if with_git else write)(tmp_path, files)
    assert names(collect(tmp_path)) == [".allranksignore", "docs/b.py", "train.py"]


@pytest.mark.parametrize("with_git", [True, False])
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (".env", "TOKEN=x", "it usually holds credentials"),
        ("conf/.env.production", "TOKEN=x", "it usually holds credentials"),
        ("id_ed25519", "x", "it usually holds credentials"),
        ("deploy.txt", KEY, "it holds a private key"),
        ("gcp.json", '{"type": "service_account", "private_key": "x"}', "it holds a private key"),
        (".netrc", "x", "it usually holds credentials"),
        *(
            (name, "x", "it usually holds credentials")
            for name in (
                *("kaggle.json", "application_default_credentials.json", ".pgpass", ".s3cfg", ".boto", "rclone.conf"),
                *(".databrickscfg", "pip.conf", "token", ".vault-token", "secrets.toml", ".streamlit/secrets.toml"),
                *("secrets.yaml", "prod.tfvars", "terraform.tfstate", "azure.json"),
            )
        ),
        ("chain.pem", f"-----BEGIN CERTIFICATE-----\n{'x' * 30_000}\n{KEY}", "it holds a private key"),
        ("adc.json", '{"client_id": "x", "refresh_token": "1//0abcdefgh"}', "it holds a token"),
        ("login.py", "login('hf_" + "aB3" * 12 + "')", "it holds a token"),
        ("deploy.sh", "export AWS_ACCESS_KEY_ID=AKIA" + "ABCD1234" * 2, "it holds a token"),
    ],
)
def test_credentials_are_not_shipped_even_if_git_tracks_them(tmp_path, with_git, file, content, message) -> None:
    (committed if with_git else write)(tmp_path, {"train.py": "", file: content})
    bundle = collect(tmp_path)
    assert names(bundle) == ["train.py"]
    cure = f"; to ship it, add the line !{file} to .allranksignore"
    assert bundle.notes() == [f"{file} is not shipped: {message}{cure}"]
    write(tmp_path, {".allranksignore": f"!{file}\n"})
    assert file in names(collect(tmp_path))


def test_a_folder_with_credentials_is_named_once(tmp_path) -> None:
    write(tmp_path, {"train.py": "", ".aws/credentials": "", ".aws/config": ""})
    cure = "; to ship it, add the line !.aws/ to .allranksignore"
    assert collect(tmp_path).notes() == [f".aws/ is not shipped: it usually holds credentials{cure}"]
    write(tmp_path, {".allranksignore": "!.aws/\n"})
    assert ".aws/config" in names(collect(tmp_path))


def test_words_that_only_look_like_tokens_are_shipped(tmp_path) -> None:
    files = {
        "page.html": '<div class="sk-estimator-doc-link-of-the-pipeline">',
        "oauth.py": 'fields = {"refresh_token": token, "client_secret": secret}',
        "check.py": 'if "PRIVATE KEY" in text or "-----BEGIN RSA PRIVATE KEY-----" in text: pass',
    }
    write(tmp_path, files)
    assert names(collect(tmp_path)) == sorted(files)


def _program(folder: Path) -> str:
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {folder}/ran\ncat\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("place", ["the repository", "a submodule", "an unpacked data set"])
def test_no_program_runs_that_a_repository_names(tmp_path, place) -> None:
    program, project = _program(tmp_path), tmp_path / "project"
    committed(tmp_path / "origin", {"data.bin": "1", ".gitattributes": "*.bin filter=own diff=own\n"})
    committed(project, {"train.py": "", "a.bin": "1", ".gitattributes": "*.bin filter=own diff=own\n"})
    inner = {"the repository": project, "a submodule": project / "lib"}.get(place, project / "data")
    if place == "a submodule":
        git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"{tmp_path}/origin", "lib")
        git(project, "commit", "-q", "-m", "submodule")
    elif inner != project:
        git(tmp_path, "clone", "-q", "origin", str(inner))
    for name in ("core.fsmonitor", "filter.own.clean", "filter.own.process", "diff.own.textconv", "diff.external"):
        git(inner, "config", name, program)
    git(inner, "config", "filter.own.required", "true")
    git(inner, "config", "core.hooksPath", str(tmp_path))
    write(inner, {"data.bin" if inner != project else "a.bin": "2"})
    bundle = collect(project)
    assert {"train.py", "a.bin"} <= set(names(bundle))
    assert inner == project or f"{inner.name}/data.bin" in names(bundle)
    version = CodeVersion(project)
    version.write(tmp_path / "code.json", 60)
    assert json.loads((tmp_path / "code.json").read_text())["commit"] == git(project, "rev-parse", "HEAD")
    assert repository.patch(project) or inner != project
    assert not (tmp_path / "ran").exists()


def test_an_example_of_an_env_file_and_a_certificate_are_shipped(tmp_path) -> None:
    files = {".env.example": "TOKEN=", "ca.pem": "-----BEGIN CERTIFICATE-----\n"}
    write(tmp_path, files)
    assert names(collect(tmp_path)) == sorted(files)


@pytest.mark.parametrize("with_git", [True, False])
def test_virtual_environments_and_caches_are_not_shipped(tmp_path, with_git) -> None:
    if with_git:
        committed(tmp_path, {"train.py": ""})
    files = {"env/pyvenv.cfg": "", "env/lib/site.py": "", "conda/conda-meta/history": "", "conda/bin/python": ""}
    write(tmp_path, {"train.py": "", **files, "__pycache__/train.cpython-311.pyc": "", "node_modules/x.js": ""})
    bundle = collect(tmp_path)
    assert names(bundle) == ["train.py"]
    cure = "; to ship it, add the line !conda/ to .allranksignore"
    assert bundle.notes() == [f"conda/, env/ are not shipped: a virtual environment{cure}"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("best.ckpt", b"x", "a checkpoint, which git does not track"),
        ("data.csv", bytes(2**20 + 1), "larger than 1 MiB, and git does not track it"),
    ],
)
def test_checkpoints_and_large_files_are_shipped_only_if_git_tracks_them(tmp_path, file, content, message) -> None:
    committed(tmp_path, {"train.py": ""})
    write(tmp_path, {file: content})
    bundle = collect(tmp_path)
    assert names(bundle) == ["train.py"]
    [note] = bundle.notes()
    assert f"{file} is not shipped: {message}" in note
    assert not bundle.dirty
    git(tmp_path, "add", file)
    assert file in names(collect(tmp_path))


def test_runs_of_allranks_are_not_shipped(tmp_path) -> None:
    run = "runs/train/2026-01-01"
    write(tmp_path, {"train.py": "", f"{run}/job.json": "{}", f"{run}/logs/a.log": "", f"{run}/code/train.py": ""})
    assert names(collect(tmp_path)) == ["train.py"]


@pytest.mark.parametrize("with_git", [False, True])
def test_the_links_to_runs_and_sweeps_of_allranks_are_left_out_without_a_note(tmp_path, with_git: bool) -> None:
    job, sweep = "runs/train/2026-01-01", "runs/tune/2026-01-02"
    if with_git:
        committed(tmp_path, {"train.py": ""})
    trial = f"{sweep}/trials/tune-0"
    write(tmp_path, {"train.py": "", f"{job}/job.json": "{}", f"{job}/logs/a.log": "", f"{sweep}/sweep.json": "{}"})
    write(tmp_path, {f"{trial}/job.json": "{}", f"{trial}/logs/a.log": ""})
    for run in (job, sweep):
        (tmp_path / run).parent.joinpath("latest").symlink_to(Path(run).name)
    bundle = collect(tmp_path)
    assert (names(bundle), bundle.left_out) == (["train.py"], ())


def test_a_link_inside_is_shipped_as_a_file_and_one_to_the_outside_is_not(tmp_path) -> None:
    folder = write(tmp_path / "code", {"train.py": "x", "lib/net.py": ""})
    write(tmp_path, {"secret": "x"})
    (folder / "same.py").symlink_to("train.py")
    (folder / "outside").symlink_to(tmp_path / "secret")
    (folder / "dangling").symlink_to("nothing")
    (folder / "folder").symlink_to("lib")
    os.mkfifo(folder / "pipe")
    bundle = collect(folder)
    assert names(bundle) == ["lib/net.py", "same.py", "train.py"]
    assert [(one.name, one.reason) for one in bundle.left_out] == [
        ("dangling", "a link to nothing"),
        ("folder", "a link to a directory"),
        ("outside", "a link to a place outside the directory"),
        ("pipe", "not a regular file"),
    ]
    write(folder, {".allranksignore": "!outside\n"})
    assert "outside" not in names(collect(folder))


def test_the_same_files_have_the_same_bytes_whatever_their_times_and_modes(tmp_path) -> None:
    files = {"train.py": "x", "run.sh": "#!/bin/sh\n", "naïve/änderung.py": "ü", "a" * 120 + "/b.py": ""}
    one, other = write(tmp_path / "1", files), write(tmp_path / "2", dict(reversed(files.items())))
    for folder, mode in ((one, 0o755), (other, 0o700)):
        (folder / "run.sh").chmod(mode)
    os.utime(other / "train.py", (1, 1))
    first, second = collect(one), collect(other)
    assert first.archive == second.archive
    assert first.sha256 == second.sha256 == hashlib.sha256(gzip.decompress(first.archive)).hexdigest()
    assert first.config_map == f"allranks-code-{first.sha256[:24]}"
    with tarfile.open(fileobj=io.BytesIO(first.archive)) as archive:
        modes = {entry.name: (entry.mode, entry.mtime, entry.uid) for entry in archive}
    assert modes["run.sh"] == (0o755, 0, 0)
    assert modes["train.py"] == (0o644, 0, 0)
    write(other, {"train.py": "y"})
    assert collect(other).sha256 != first.sha256


def test_files_that_are_not_on_disk_can_be_added_and_replaced(tmp_path) -> None:
    bundle = collect(write(tmp_path, {"train.py": "x"})).with_file(".allranks/function.pickle", b"1")
    assert names(bundle) == [".allranks/function.pickle", "train.py"]
    assert names(bundle.with_file("train.py", b"y")) == names(bundle)
    assert names(EMPTY.with_file("f", b"")) == ["f"]
    for wrong in ("/etc/passwd", "../x", "."):
        with pytest.raises(ValueError, match="must be a relative path"):
            bundle.with_file(wrong, b"")


def test_the_spec_names_the_config_map_and_the_commit(tmp_path) -> None:
    committed(tmp_path, {"train.py": "1\n"})
    bundle = collect(tmp_path)
    assert bundle.spec == {
        "configMap": bundle.config_map,
        "sha256": bundle.sha256,
        "commit": git(tmp_path, "rev-parse", "HEAD"),
        "dirty": False,
    }
    assert EMPTY.with_file("f", b"").spec.keys() == {"configMap", "sha256"}


def test_too_much_code_is_refused_with_the_largest_files_and_the_ways_out(tmp_path) -> None:
    committed(tmp_path, {"train.py": "x", "data.bin": os.urandom(2**20), "more.bin": os.urandom(1000)})
    bundle = collect(tmp_path)
    with pytest.raises(CannotShip) as error:
        _ = bundle.spec
    assert str(error.value) == (
        f"{tmp_path} has 1.0 MiB after compression, and a ConfigMap takes 1.0 MiB. The largest files: data.bin "
        "(1.0 MiB), more.bin (1000 B), train.py (1 B). Leave files out with .allranksignore; or keep the code on a "
        "volume claim (code: {claim: NAME}) or in an image (code: {image: REFERENCE})"
    )


def test_far_too_much_code_is_refused_before_it_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bundles, "MAX_BYTES", 10)
    with pytest.raises(CannotShip, match=r"has 11 B in 1 files, and at most 10 B can be shipped"):
        collect(write(tmp_path, {"train.py": "x" * 11}))
    monkeypatch.setattr(selection, "MAX_FILES", 1)
    with pytest.raises(CannotShip, match="has more than 1 files: name a smaller directory"):
        collect(write(tmp_path, {"other.py": ""}))


def test_a_directory_without_files_is_refused(tmp_path) -> None:
    with pytest.raises(CannotShip, match="has no files to ship"):
        collect(tmp_path)
    with pytest.raises(CannotShip, match="is not a directory"):
        collect(tmp_path / "missing")


def test_an_ignore_file_that_is_not_one_is_reported(tmp_path) -> None:
    with pytest.raises(CannotShip, match=r"\.allranksignore cannot be read"):
        collect(write(tmp_path, {"train.py": "", ".allranksignore": b"\xff"}))
