"""Creates stubs of the missing CUDA libraries that PyTorch is linked to, for tests on machines without a GPU.

The loader requires every library, symbol and version that PyTorch references, although without a GPU none is called.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.metadata import distribution, requires
from pathlib import Path

REAL = {"nvidia-cuda-runtime": "cudart", "nvidia-cuda-cupti": "cupti"}
"""Packages with small libraries that are called while PyTorch is loaded."""
DRIVER = "libcuda.so.1"
"""Part of the machine, not of an image; libraries that need it are loaded on demand."""
LOADERS_OWN = re.compile(r"_ITM_|__gmon_start__|_?Py|__cxa_finalize")
"""Symbols of the interpreter, or optional ones."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--requirements", action="store_true", help="print the packages that PyTorch needs besides the stubs"
    )
    if parser.parse_args().requirements:
        print("\n".join(requirements()))
        return
    site = Path(str(distribution("torch").locate_file("")))
    libraries = sorted((site / "torch").glob("lib/*.so*")) + sorted((site / "torch").glob("_C*.so"))
    for soname, symbols in missing(libraries, present(site)).items():
        compile_stub(soname, symbols, site / "torch" / "lib" / soname)
        print(f"stub: {soname}, {sum(map(len, symbols.values()))} symbols", file=sys.stderr)


def requirements() -> list[str]:
    """PyTorch's requirements without CUDA, except the two packages above, in the versions of its CUDA bundle."""
    kept, bundle = [], ""
    for line in requires("torch") or []:
        name = re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0]
        if name == "cuda-toolkit":
            bundle = re.findall(r"==([\d.]+)", line)[0]
        elif "extra ==" not in line and not name.startswith(("nvidia-", "cuda-", "triton")):
            kept.append(line)
    minor = ".".join(bundle.split(".")[:2])
    return [*kept, *(f"{package}=={minor}.*" for package in REAL)]


def present(site: Path) -> dict[str, Path]:
    """Libraries that the loader finds, by name: PyTorch's, installed ones of NVIDIA, and the system's."""
    found = {path.name: path for path in (site / "torch" / "lib").glob("*.so*")}
    found |= {path.name: path for path in (site / "nvidia").rglob("*.so*")}
    for line in run("/sbin/ldconfig", "-p").splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow:
            found.setdefault(name.split(" ")[0], Path(path))
    return found


def missing(libraries: list[Path], there: dict[str, Path]) -> dict[str, dict[str, set[str]]]:
    """Missing library -> version (empty for none) -> symbols required from it."""
    stubs: dict[str, dict[str, set[str]]] = {}
    wanted: set[tuple[str, str]] = set()  # symbol, version
    owner: dict[str, str] = {}  # version -> library
    for library in libraries:
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "--dynamic", "--wide", str(library)))
        for name in needed:
            if name not in there and name != DRIVER:
                stubs.setdefault(name, defaultdict(set))
        file = ""
        for line in run("readelf", "--version-info", "--wide", str(library)).splitlines():
            if match := re.search(r"File: (\S+)", line):
                file = match[1]
            elif (match := re.search(r"Name: (\S+)", line)) and file:
                owner[match[1]] = file
        wanted |= symbols(library, "--undefined-only")
    defined = {
        name for library in {*libraries, *there_of(libraries, there)} for name, _ in symbols(library, "--defined-only")
    }
    for name, version in wanted:
        if owner.get(version) in stubs:
            stubs[owner[version]][version].add(name)
        elif not version and name not in defined and not LOADERS_OWN.match(name):
            stubs[sorted(stubs)[0]][""].add(name)  # the loader searches all libraries for symbols without a version
    return stubs


def there_of(libraries: list[Path], there: dict[str, Path]) -> set[Path]:
    """Direct and transitive dependencies of these libraries."""
    found: set[Path] = set()
    todo = list(libraries)
    while todo:
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "--dynamic", "--wide", str(todo.pop()))):
            if name in there and there[name] not in found:
                found.add(there[name])
                todo.append(there[name])
    return found


def symbols(library: Path, which: str) -> set[tuple[str, str]]:
    """(name, version) of dynamic symbols, without optional weak ones."""
    found = set()
    for line in run("nm", "--dynamic", which, "--portability", str(library)).splitlines():
        name, kind = line.split(" ")[:2]
        if kind not in "wv" or which == "--defined-only":
            name, _, version = name.partition("@")
            found.add((name, version.lstrip("@")))
    return found


def compile_stub(soname: str, symbols: dict[str, set[str]], target: Path) -> None:
    """Compiles a library whose functions all return 1, an error code in all of CUDA."""
    with tempfile.TemporaryDirectory() as work:
        source, script = Path(work) / "stub.c", Path(work) / "stub.map"
        names = sorted({name for group in symbols.values() for name in group})
        source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in names) or "int allranks_stub;\n")
        groups = [
            f"{version} {{ global: {'; '.join(sorted(group))}; }};\n" for version, group in symbols.items() if version
        ]
        script.write_text("".join(groups))
        versions = [f"-Wl,--version-script={script}"] if groups else []
        run(
            "gcc",
            "-w",
            "-fno-builtin",
            "-shared",
            "-nostdlib",
            f"-Wl,-soname,{soname}",
            *versions,
            "-o",
            str(target),
            str(source),
        )


def run(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout


if __name__ == "__main__":
    main()
