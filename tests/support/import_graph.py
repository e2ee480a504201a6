"""Which modules import which: of the package `allranks`, and of the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
Graph = dict[str, set[str]]


def modules(root: Path = ROOT, tests: bool = False) -> dict[str, Path]:
    """Return module name -> file. A package is the module of its `__init__.py`. Names of tests begin below `tests`."""
    source = root / "operator"
    files = [(source, path) for path in source.joinpath("allranks").rglob("*.py")]
    if tests:
        files += [(root / "tests", path) for path in root.joinpath("tests").rglob("*.py")]
    out = {}
    for top, path in files:
        parts = path.relative_to(top).with_suffix("").parts
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return out


def import_graph(files: Mapping[str, Path]) -> Graph:
    """Return module -> the modules that it imports, also inside functions and under `TYPE_CHECKING`."""
    out = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        out[name] = set(imported(ast.parse(path.read_text()), files, package)) - {name}
    return out


def imported(tree: ast.AST, files: Mapping[str, Path], package: str = "") -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module in files:
                for alias in node.names:
                    inner = f"{module}.{alias.name}"
                    yield inner if inner in files else module
