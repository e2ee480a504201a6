"""What the workflow of a release does: images and a chart in a registry, signatures that are verified, and the pages.

The images are of one file each: what is tested is how they are published.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.version import __version__
from support import environment, helm, processes, tools
from support.live import eventually

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
ARCHITECTURES = ("amd64", "arm64")
IMAGES = ("operator", "mpi")
OPERATOR_BILL = f"allranks-operator-{__version__}.cdx.json"


@pytest.fixture(scope="module")
def signing() -> Path:
    return tools.built("go-tools.sh", "signing")


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The user's environment, with caches of the tests and a password for a key."""
    home = tmp_path_factory.mktemp("home")
    return {
        **environment.USERS,
        "COSIGN_PASSWORD": "secret",
        "DOCKER_CONFIG": str(home),
        "TUF_ROOT": str(home / "tuf"),
        **{f"HELM_{name}_HOME": str(home / "helm") for name in ("CACHE", "CONFIG", "DATA")},
    }


@pytest.fixture(scope="module")
def registry(signing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("registry") / "log"
    process = processes.start(signing / "crane", "registry", "serve", "--address=127.0.0.1:0", log=log)
    try:
        line = eventually(
            lambda: next((line for line in log.read_text().splitlines() if "serving on port" in line), "")
        )
        yield f"127.0.0.1:{line.rpartition(' ')[2]}/test"
    finally:
        processes.end(process)


@pytest.fixture(scope="module")
def key(signing: Path, variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("key")
    subprocess.run([signing / "cosign", "generate-key-pair"], cwd=folder, env=variables, check=True, timeout=300)
    return folder / "cosign.key"


def build(folder: Path, architecture: str, variables: dict[str, str]) -> Path:
    """Write what `make dist` writes, with images of one file."""
    folder.mkdir()
    command = [helm.built("helm"), "package", ROOT / "charts" / "allranks", "--destination", folder]
    subprocess.run(command, env=variables, check=True, capture_output=True, timeout=300)
    for image in IMAGES:
        write_image(folder / f"allranks-{image}-image-{__version__}.tar", image, architecture)
    (folder / OPERATOR_BILL).write_text(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}))
    provenance = {"predicate": {"buildDefinition": {"buildType": "x"}, "runDetails": {"builder": {"id": "y"}}}}
    (folder / f"allranks-{__version__}.provenance.json").write_text(json.dumps(provenance))
    files = sorted(path.name for path in folder.iterdir())
    sums = subprocess.run(["sha256sum", *files], cwd=folder, check=True, capture_output=True, timeout=300)
    (folder / "SHA256SUMS").write_bytes(sums.stdout)
    return folder


def write_image(file: Path, name: str, architecture: str) -> None:
    """Write an image of one empty file, as `docker save` does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": architecture,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [f"localhost/{name}:x"], "Layers": ["layer.tar"]}]
    content = {"layer.tar": layer.getvalue()}
    content |= {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    with tarfile.open(file, "w") as archive:
        for path, data in content.items():
            about = tarfile.TarInfo(path)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))


@pytest.fixture(scope="module")
def folders(variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("dist")
    return [build(place / f"files-{name}", name, variables) for name in ARCHITECTURES]


def publish(
    folders: list[Path], registry: str, key: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        ROOT / "tools" / "publish.py",
        "--insecure",
        "--registry",
        registry,
        "--key",
        key,
        *folders,
    ]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=900)


@pytest.fixture(scope="module")
def published(folders: list[Path], registry: str, key: Path, variables: dict[str, str]) -> list[str]:
    done = publish(folders, registry, key, variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_an_image_has_all_architectures_and_the_chart_can_be_pulled(published, registry, signing, variables, tmp_path):
    crane, names = signing / "crane", [name.partition("@")[0] for name in published]
    assert names == [f"{registry}/mpi", f"{registry}/operator", f"{registry}/charts/allranks"]
    shown = subprocess.check_output([crane, "manifest", f"{registry}/operator:{__version__}"], timeout=300)
    assert [part["platform"]["architecture"] for part in json.loads(shown)["manifests"]] == list(ARCHITECTURES)
    pull = [helm.built("helm"), "pull", "--plain-http", f"oci://{registry}/charts/allranks", "--version", __version__]
    subprocess.run(pull, cwd=tmp_path, env=variables, check=True, capture_output=True, timeout=300)
    assert [path.name for path in tmp_path.iterdir()] == [f"allranks-{__version__}.tgz"]


def verified(command: list[Any], key: Path, variables: dict[str, str], signing: Path) -> str:
    """Return the answer of cosign to a verification with the public key; empty if it does not hold."""
    key_of = ["--key", key.with_suffix(".pub"), "--insecure-ignore-tlog=true"]
    call = [signing / "cosign", command[0], *key_of, *command[1:]]
    done = subprocess.run(call, env=variables, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout + done.stderr if done.returncode == 0 else ""


def test_images_and_their_attestations_are_verified_with_the_key(published, registry, key, signing, variables):
    plain = "--allow-http-registry"
    assert all(verified(["verify", plain, name], key, variables, signing) for name in published)
    amd64 = f"{registry}/operator:{__version__}-amd64"
    for kind in ("cyclonedx", "slsaprovenance1"):
        assert verified(["verify-attestation", plain, "--type", kind, amd64], key, variables, signing)
    assert not verified(["verify-attestation", plain, "--type", "vuln", amd64], key, variables, signing)


def test_another_image_under_the_name_is_not_verified(published, registry, key, signing, variables):
    name = f"{registry}/operator:other"
    changed = ["mutate", "--insecure", "--label", "a=b", f"{registry}/mpi:{__version__}-amd64", "--tag", name]
    subprocess.run([signing / "crane", *changed], check=True, capture_output=True, timeout=300)
    assert not verified(["verify", "--allow-http-registry", name], key, variables, signing)


def test_every_file_has_a_signature_that_its_content_breaks(published, folders, key, signing, variables, tmp_path):
    files = {path.name for path in folders[0].iterdir()}
    assert {name for name in files if f"{name}.sigstore.json" not in files} == {
        name for name in files if name.endswith(".sigstore.json")
    }
    chart = folders[0] / f"allranks-{__version__}.tgz"
    bundle = ["--bundle", chart.with_name(chart.name + ".sigstore.json")]
    assert verified(["verify-blob", *bundle, chart], key, variables, signing)
    (tmp_path / "changed.tgz").write_bytes(chart.read_bytes() + b"x")
    assert not verified(["verify-blob", *bundle, tmp_path / "changed.tgz"], key, variables, signing)


def test_a_file_that_has_changed_since_the_build_is_not_published(folders, registry, key, variables, tmp_path):
    folder = tmp_path / "files-amd64"
    subprocess.run(["cp", "-r", folders[0], folder], check=True, timeout=60)
    with (folder / OPERATOR_BILL).open("a") as bill:
        bill.write(" ")
    done = publish([folder], registry, key, variables)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"publish: error: {folder / OPERATOR_BILL} has changed since it was built\n"


def test_without_a_key_and_outside_a_workflow_nothing_is_signed(folders, registry, variables, tmp_path):
    folder = tmp_path / "files-amd64"
    subprocess.run(["cp", "-r", folders[0], folder], check=True, timeout=60)
    command = [sys.executable, ROOT / "tools" / "publish.py", "--registry", registry, folder]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (1, "publish: error: this is no workflow: name a key with --key\n")


def test_the_notes_of_a_release_are_its_section_of_the_change_log():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "release_notes.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("- ")
    assert "\n## " not in done.stdout


def test_the_pages_of_a_branch_and_of_a_tag_are_versions_of_one_site(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    subprocess.run([*git, "clone", "--quiet", "--bare", ROOT, origin], check=True, timeout=300)
    subprocess.run([*git, "branch", "-D", "gh-pages"], cwd=origin, check=False, capture_output=True, timeout=60)
    (ROOT / "build").mkdir(exist_ok=True)
    for tag in ("", "v9.8.7"):
        folder = clone.with_name(f"clone{tag}")
        subprocess.run([*git, "clone", "--quiet", "--no-tags", origin, folder], check=True, timeout=300)
        (folder / "build").symlink_to(ROOT / "build")
        if tag:
            subprocess.run([*git, "tag", tag], cwd=folder, check=True, timeout=60)
        script = folder / "tools" / "workflows" / "docs.sh"
        subprocess.run([script, "--push"], env=environment.USERS, check=True, capture_output=True, timeout=900)
    versions = subprocess.check_output(["git", "show", "gh-pages:versions.json"], cwd=origin, timeout=60)
    sites = {entry["version"]: entry["aliases"] for entry in json.loads(versions)}
    assert sites == {"dev": [], "9.8": ["latest"]}
    assert os.fsdecode(subprocess.check_output(["git", "show", "gh-pages:index.html"], cwd=origin, timeout=60)).count(
        "latest"
    )
