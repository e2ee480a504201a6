"""Installs the packages of a job: `python3 install_packages.py [--cache DIR] DIRECTORY REQUIREMENT...`.

DIRECTORY/site becomes a directory for PYTHONPATH with the packages that this Python does not have yet. pip resolves
them beside the installed ones, so that a requirement of torch does not install torch again. With a cache
(PIP_CACHE_DIR, or --cache) it is a link to a directory that later pods and runs share. Needs pip 22.2.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

LAYERS = "allranks-packages"
"""Folder in a cache."""
_LAST_LINES = 5


class Failed(Exception):
    """The packages cannot be installed. The message is a sentence for the user."""


def main(argv: list[str]) -> int:
    cache = os.environ.get("PIP_CACHE_DIR", "")
    if argv[:1] == ["--cache"]:
        cache, argv = argv[1], argv[2:]
    if len(argv) < 2:
        print("usage: install_packages.py [--cache DIR] DIRECTORY REQUIREMENT...", file=sys.stderr)
        return 2
    try:
        provide(Path(argv[0]), argv[1:], Path(cache) if cache else None)
    except (Failed, OSError) as error:
        print(f"allranks: the packages {', '.join(argv[1:])} cannot be installed: {error}", file=sys.stderr)
        return 1
    return 0


def provide(directory: Path, requirements: list[str], cache: Path | None) -> None:
    """Make DIRECTORY/site. Raise Failed, OSError."""
    site = directory / "site"
    directory.mkdir(parents=True, exist_ok=True)
    remove(site)
    if cache is None:
        install(site, requirements, directory)
        return
    layers = cache / LAYERS
    layers.mkdir(parents=True, exist_ok=True)
    layer = layers / key(requirements)
    if not layer.exists():
        install(layer, requirements, layers)
    site.symlink_to(layer.absolute())


def key(requirements: list[str]) -> str:
    """Return a key that changes with everything that the result depends on: requirements, Python, installed
    packages."""
    parts: list[Any] = [sorted(requirements), sys.version, sysconfig.get_platform(), installed()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def installed() -> list[str]:
    from importlib import metadata

    distributions = metadata.distributions(path=own_path())
    return sorted({f"{package.metadata['Name']}=={package.version}" for package in distributions})


def own_path() -> list[str]:
    """Return the path on which this Python itself finds packages: neither the code of the job nor this helper."""
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return [path for path in sys.path if path in paths or "-packages" in path]


def install(target: Path, requirements: list[str], scratch: Path) -> None:
    """Install into `target`, which appears as a whole. Another pod may install the same at the same time: the first
    one counts."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".installing-", dir=scratch) as name:
        folder = Path(name)
        packages = resolve(requirements, folder)
        site = folder / "site"
        site.mkdir()
        if packages:
            pip(folder, "install", "--no-deps", "--target", str(site), *packages)
        site.chmod(0o755)
        try:
            site.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    summary = ", ".join(packages) or "nothing, because all are there"
    print(f"allranks: installed {summary} in {time.monotonic() - began:.1f} s", flush=True)


def resolve(requirements: list[str], folder: Path) -> list[str]:
    """Return the exact packages that are missing."""
    report = folder / "report.json"
    # Installed packages count, which is not so with --target: therefore two steps.
    pip(folder, "install", "--dry-run", "--report", str(report), *requirements)
    missing = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(requirement(item) for item in missing)


def requirement(item: dict[str, Any]) -> str:
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    if not item.get("is_direct"):
        return f"{name}=={version}"
    info = item["download_info"]
    vcs = info.get("vcs_info")
    url = f"{vcs['vcs']}+{info['url']}@{vcs['commit_id']}" if vcs else info["url"]
    return f"{name} @ {url}"


def pip(folder: Path, *words: str) -> None:
    """Raise Failed with the last lines of pip."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_TARGET", "PIP_USER")}
    env.setdefault("PIP_CACHE_DIR", str(folder / "cache"))  # the second step downloads nothing again
    env["TMPDIR"] = str(folder)  # the root file system may be read-only
    env["HOME"] = env.get("HOME") or str(folder)
    options = ("--no-input", "--disable-pip-version-check", "--quiet", "--no-warn-script-location")
    done = subprocess.run(
        [sys.executable, "-m", "pip", words[0], *options, *words[1:]],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return
    if "No module named pip" in done.stdout:
        raise Failed(f"{sys.executable} has no pip: use an image with pip, or one that has the packages")
    if "no such option: --report" in done.stdout or "no such option: --dry-run" in done.stdout:
        raise Failed(f"{sys.executable} has a pip older than 22.2: upgrade pip in the image")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    raise Failed("; ".join(line.removeprefix("ERROR: ") for line in errors[-_LAST_LINES:]))


def remove(path: Path) -> None:
    """Remove what an earlier start of the init container has made."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
