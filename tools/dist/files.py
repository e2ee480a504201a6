"""Builds each file of a release from an export of the commit."""

from __future__ import annotations

import gzip
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from dist.source import ROOT, DistError, Source

TOOLS = ("images/operator/build-requirements.txt", "tools/dist/requirements.txt")
"""Pinned with hashes: what builds the wheel, and what describes it."""
BILLS = ("operator", "ui", "data", "archiver")
"""Images of allranks itself, whose Python packages are described."""
SUMS = "SHA256SUMS"
BASE = "python:3.12-slim-bookworm"
EXTRAS = "cli,python,ui"
"""What the command line of a bundle can do."""
NAMESPACE = "allranks-system"


def python_packages(export: Path, out: Path, source: Source) -> None:
    """The source archive, and the wheel built from the source archive."""
    run([environment(TOOLS), "-m", "build", "--no-isolation", "--outdir", out, export], source)


def chart(export: Path, out: Path, source: Source) -> None:
    """The chart as an archive, for `helm install` and `helm push`."""
    helm = Path(run([ROOT / "tools" / "helm.sh"], source).strip()) / "helm"
    run([helm, "package", export / "charts" / "allranks", "--destination", out], source)


def manifests(export: Path, out: Path, source: Source) -> None:
    """A kustomization of the objects that the chart renders from its default values, for `kubectl apply -k`."""
    helm = Path(run([ROOT / "tools" / "helm.sh"], source).strip()) / "helm"
    folder = out / f"allranks-{source.version}-kustomize"
    folder.mkdir()
    shutil.copy(export / "tools" / "dist" / "kustomization.yaml", folder)
    namespace = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n"
    command = [helm, "template", "allranks", export / "charts" / "allranks", "--namespace", NAMESPACE, "--no-hooks"]
    (folder / "objects.yaml").write_text(namespace + run(command, source))
    with (
        (out / f"{folder.name}.tar.gz").open("wb") as file,
        gzip.GzipFile("", "wb", mtime=int(source.epoch), fileobj=file) as packed,
    ):
        pack(folder, packed, source)
    shutil.rmtree(folder)


def bundle(pythons: Sequence[str], out: Path, source: Source) -> None:
    """All that an air-gapped installation needs, in one archive. The wheels are the newest that the index has."""
    folder = out / f"allranks-{source.version}-airgap-{platform.machine()}"
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    for pattern in ("*.whl", "*.tgz", "*-kustomize.tar.gz"):
        for path in out.glob(pattern):
            os.link(path, (wheels if path.suffix == ".whl" else folder) / path.name)
    for path in filter(Path.exists, (archive(out, name, source) for name in BILLS)):
        os.link(path, folder / path.name)
    [wheel] = wheels.iterdir()
    for python in pythons:
        options = ["--only-binary", ":all:", "--python-version", python, "--dest", wheels]
        pip(Path(sys.executable), "download", *options, f"{wheel}[{EXTRAS}]")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    (folder / SUMS).write_text("".join(f"{digest(folder / path)}  {path}\n" for path in files))
    with out.joinpath(f"{folder.name}.tar").open("wb") as file:
        pack(folder, file, source)
    shutil.rmtree(folder)


def pack(folder: Path, file: IO[bytes], source: Source) -> None:
    """Writes a tar archive of a folder, with the time of the commit and without the user."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = int(source.epoch), 0, 0, "", ""
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with tarfile.open(fileobj=file, mode="w") as tar:
        for path in (folder, *sorted(folder.rglob("*"))):
            tar.add(path, path.relative_to(folder.parent), recursive=False, filter=anonymous)


def bill_of_materials(image: str, export: Path, out: Path, source: Source, scratch: Path) -> None:
    """CycloneDX: the Python packages of an image, as pip installs them from its pinned requirements."""
    [wheel] = out.glob("*.whl")
    installed = install(scratch / image, [export / "images" / image / "requirements.txt"])
    pip(installed, "install", "--no-deps", "--no-index", wheel)
    command = [environment(TOOLS), "-m", "cyclonedx_py", "environment", "--pyproject", export / "pyproject.toml"]
    name = f"allranks-{image}-{source.version}.cdx.json"
    run([*command, "--output-reproducible", "--output-file", out / name, installed], source)


def images(names: Sequence[str], base: str, out: Path, source: Source) -> str:
    """Archives for `docker load`. Empty, or why there are none."""
    if not source.clean:
        return "there are uncommitted changes or untracked files, which the images would contain"
    arguments = ["--test-base"] if base == "test" else ["--base", base]
    script = [ROOT / "tools" / "images.sh", *arguments, "--push-tar", out, *names]
    done = subprocess.run(script, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    for stamp in out.glob("*.tar.id"):
        stamp.unlink()
    for name in names:
        if (out / f"{name}.tar").exists():
            (out / f"{name}.tar").rename(archive(out, name, source))
    return done.stderr.strip().splitlines()[-1].removeprefix("images: error: ") if done.returncode else ""


def archive(out: Path, image: str, source: Source) -> Path:
    return out / f"allranks-{image}-image-{source.version}.tar"


def checksums(out: Path) -> None:
    """For `sha256sum --check`."""
    text = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(out.iterdir()))
    (out / SUMS).write_text(text)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def environment(requirements: Sequence[str]) -> Path:
    """The interpreter of build/dist/HASH, an environment that holds these requirements."""
    content = b"".join((ROOT / name).read_bytes() for name in requirements) + sys.version.encode()
    folder = ROOT / "build" / "dist" / hashlib.sha256(content).hexdigest()[:16]
    if not folder.exists():
        unfinished = folder.with_suffix(f".{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        install(unfinished, [ROOT / name for name in requirements])
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            shutil.rmtree(unfinished, ignore_errors=True)  # another process was faster
    return folder / "bin" / "python"


def install(folder: Path, requirements: Sequence[Path]) -> Path:
    """The interpreter of a new environment without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    files = [word for path in requirements for word in ("--requirement", path)]
    pip(python, "install", "--require-hashes", "--only-binary", ":all:", *files)
    return python


def pip(python: Path, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise DistError("pip failed, see above")


def run(command: Sequence[str | Path], source: Source) -> str:
    """The command's stdout. Raises DistError, after its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HELM_"))}
    clean |= {"SOURCE_DATE_EPOCH": source.epoch, "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise DistError(f"{' '.join(str(word) for word in command[:3])} failed, see above")
    return done.stdout
