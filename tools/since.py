"""What a change needs: `tools/test.py --since COMMIT`.

Tests in memory are chosen by folder: those of which a file has changed, or imports a module that has changed, directly
or through others, and `tests/unit/x` for `operator/allranks/x`. Everything else is chosen by AREAS, which maps paths to
parts, and to folders that do not import what they test. A path that no rule knows needs everything that runs for every
change.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

from parts import EVERY_CHANGE, PARTS, ROOT, Part

from support import import_graph

SOURCE = "operator/allranks/"
UNIT = ("tests/unit/", "tests/model/")
EVERYTHING = " ".join(part.name for part in EVERY_CHANGE)

AREAS: Sequence[tuple[str, str]] = (
    (f"{SOURCE}core/*", "unit-all processes frameworks apiserver more-scenarios"),
    (f"{SOURCE}core/objects/queueing/*", "queueing"),
    (f"{SOURCE}core/objects/gangs/*", "queueing"),
    (f"{SOURCE}kube/*", "processes apiserver more-scenarios"),
    (f"{SOURCE}operator/*", "processes apiserver more-scenarios"),
    (f"{SOURCE}api/*", "processes frameworks apiserver"),
    (f"{SOURCE}frameworks/*", "processes frameworks-all apiserver"),
    (f"{SOURCE}inpod/*", "processes more-processes frameworks-all"),
    (f"{SOURCE}report/*", "processes more-processes frameworks-all tests/unit/inpod"),
    (f"{SOURCE}local/*", "processes more-processes frameworks"),
    (f"{SOURCE}sdk/*", "processes more-processes frameworks apiserver"),
    (f"{SOURCE}data/*", "processes more-processes apiserver"),
    (f"{SOURCE}telemetry/*", "processes frameworks apiserver"),
    (f"{SOURCE}ui/*", "browser"),
    (f"{SOURCE}authoring/*", "processes apiserver tests/unit/cli tests/unit/local tests/unit/sdk"),
    (f"{SOURCE}client/*", "processes apiserver tests/unit/cli tests/unit/sdk tests/unit/ui"),
    (f"{SOURCE}views/*", "processes apiserver tests/unit/cli tests/unit/sdk tests/unit/ui"),
    (f"{SOURCE}cli/*", "processes apiserver tests/unit/local tests/unit/sdk"),
    ("charts/*", "tests/unit/chart apiserver pods"),
    ("crds/*", "tests/unit/api apiserver kubernetes-1.30 kubernetes-1.36"),
    ("images/*", "tests/unit/images tests/unit/frameworks nodes pods"),
    ("examples/*", "tests/unit/docs tests/model/golden frameworks-all"),
    ("examples/pipelines/*", "apiserver-all"),
    ("train/*", "tests/unit/docs tests/unit/cli frameworks-all"),
    ("bench/*", "tests/unit/bench"),
    ("docs/*", "tests/unit/docs tests/unit/authoring tests/unit/cli"),
    ("mkdocs.yml", "tests/unit/docs"),
    (".github/*", "tests/unit/tools"),
    ("tests/unit/*", "processes"),
    ("tests/model/scenarios/*.yaml", "apiserver more-scenarios"),
    ("tests/model/*", "unit"),
    ("tests/browser/*", "browser"),
    ("tests/apiserver/*", "apiserver"),
    ("tests/apiserver/test_scenarios.py", "more-scenarios"),
    ("tests/faults/*", "apiserver-all"),
    ("tests/queueing/*", "queueing"),
    ("tests/frameworks/*", "frameworks-all"),
    ("tests/images/*", "nodes"),
    ("tests/nodes/*", "nodes"),
    ("tests/e2e/*", "pods"),
    ("tests/support/*", "processes frameworks apiserver"),
    ("tools/kubernetes/*", "kubernetes-1.30 kubernetes-1.36"),
    ("tools/programs/*", "apiserver-all kubernetes-1.30 kubernetes-1.36"),
    ("tools/controlplane.sh", "apiserver kubernetes-1.30 kubernetes-1.36"),
    ("tools/queueing/*", "queueing"),
    ("tools/frameworks.sh", "frameworks-all"),
    ("tools/packages*", "frameworks-all apiserver-all"),
    ("tools/node/*", "nodes pods"),
    ("tools/*cluster.sh", "nodes pods"),
    ("tools/image*", "tests/unit/images nodes"),
    ("tools/e2e*", "pods"),
    ("tools/traces.py", "traces"),
    ("tools/dist/*.yaml", "apiserver-all"),
    ("tools/*", "tests/unit/tools tests/unit/docs tests/unit/frameworks tests/unit/images tests/unit/chart"),
    ("tests/conftest.py", f"{EVERYTHING} traces"),
    ("tests/support/environment.py", f"{EVERYTHING} traces"),
    ("pyproject.toml", EVERYTHING),
    ("Makefile", EVERYTHING),
)
"""A path -> the parts, and the folders of tests in memory, that it needs. Each pattern that matches counts."""
OTHER_PACKAGES = "processes frameworks apiserver"
"""What a package of allranks needs that AREAS does not name."""


class Choice(NamedTuple):
    """Parts to run, and why."""

    parts: list[Part]
    text: str


def changed_paths(commit: str) -> list[str]:
    """Return the paths that differ from the commit, with those that git does not know and does not ignore."""
    commands = (["diff", "--name-only", commit, "--"], ["ls-files", "--others", "--exclude-standard"])
    outputs = [
        subprocess.run(["git", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        for command in commands
    ]
    return sorted({line for output in outputs for line in output.splitlines()})


def choose(paths: Sequence[str], root: Path = ROOT) -> Choice:
    """Return the parts that a change of these paths needs."""
    reasons: dict[str, str] = {}
    if paths:
        reasons["static"] = "always"
    for path in paths:
        for need in needs_of(path):
            reasons.setdefault(need, path)
    for folder, reason in folders(paths, root).items():
        reasons.setdefault(folder, reason)
    if {"unit", "unit-all"} & reasons.keys():
        chosen_folders: list[str] = []
    else:
        chosen_folders = sorted(name for name in reasons if name.startswith(UNIT) and (root / name).is_dir())
    parts = [PARTS[name] for name in PARTS if name in reasons]
    if chosen_folders:
        parts.insert(1, _only(PARTS["unit"], chosen_folders))
    names = {part.name for part in parts}
    contained = {"unit": "unit-all", "processes": "unit-all", "more-processes": "unit-all", "browser": "unit-all",
                 "frameworks": "frameworks-all", "apiserver": "apiserver-all", "more-scenarios": "apiserver-all",
                 "queueing": "apiserver-all"}  # fmt: skip
    parts = [part for part in parts if contained.get(part.name) not in names]
    rows = [f"{part.name:<16} {part.minutes:>4g} min  {reasons.get(part.name, '')}" for part in parts]
    rows += [f"  {folder}: {reasons[folder]}" for folder in chosen_folders]
    return Choice(parts, "\n".join(rows) or "nothing has changed")


def needs_of(path: str) -> list[str]:
    """Return what AREAS names for a path; everything for an unknown path. Pages need the tests of pages."""
    if path.endswith(".md") and not path.startswith("docs/"):
        return ["tests/unit/docs"]
    needs = [need for pattern, need in AREAS if fnmatch(path, pattern)]
    return " ".join(needs or [OTHER_PACKAGES if path.startswith(SOURCE) else EVERYTHING]).split()


def _only(part: Part, folders: Sequence[str]) -> Part:
    [command] = part.commands
    top = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "unit").glob("test_*.py"))
    return replace(part, commands=[[*command, *top, *folders]])


def folders(paths: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Return the folders of tests in memory that import something that has changed -> the path of it."""
    files, importers = _importers(root)
    names = {path.relative_to(root).as_posix(): name for name, path in files.items()}
    reasons = {names[path]: path for path in paths if path in names}
    new = list(reasons)
    while new:
        target = new.pop(0)
        for name in sorted(importers.get(target, set()) - reasons.keys()):
            reasons[name] = reasons[target]
            new.append(name)
    places = {path: folder_of(path) for path in paths}
    out = {folder: path for path, folder in places.items()}
    for name, reason in reasons.items():
        if not name.startswith("allranks"):
            out.setdefault(folder_of(files[name].relative_to(root).as_posix()), reason)
    return {folder: reason for folder, reason in sorted(out.items()) if folder}


@cache
def _importers(root: Path) -> tuple[dict[str, Path], dict[str, set[str]]]:
    """Return module -> file, and module -> the modules that import it."""
    files = import_graph.modules(root, tests=True)
    importers: dict[str, set[str]] = {}
    for name, targets in import_graph.import_graph(files).items():
        for target in targets:
            importers.setdefault(target, set()).add(name)
    return files, importers


def folder_of(path: str) -> str:
    """Return the folder of tests in memory that a file belongs to: `tests/unit/cli`. Empty: to none."""
    if path.startswith(SOURCE):
        path = path.replace(SOURCE, "tests/unit/", 1)
    return "/".join(path.split("/")[:3]) if path.startswith(UNIT) and path.count("/") > 2 else ""
