"""No circle of imports, neither of modules nor of sub-packages: each part can be read and tested after those below it.

An import under `TYPE_CHECKING` counts as well: a reader follows it. import-linter checks the layers that pyproject.toml
lists; this test needs no list.
"""

from __future__ import annotations

from functools import cache

import pytest

from support.import_graph import Graph, import_graph, modules

ALLOWED: dict[frozenset[str], str] = {}
"""A circle -> the reason why it stays."""


def children_of(package: str, graph: Graph) -> Graph:
    """The graph between the modules and sub-packages directly in a package: each stands for all that is below it."""

    def child(module: str) -> str | None:
        prefix = f"{package}."
        return prefix + module.removeprefix(prefix).partition(".")[0] if module.startswith(prefix) else None

    out: Graph = {}
    for module, targets in graph.items():
        if (source := child(module)) is not None:
            out.setdefault(source, set()).update({child(target) for target in targets} - {None, source})
    return out


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan), each sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                out.append(sorted(component))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return out


def imports_inside(circle: list[str], graph: Graph) -> str:
    """Every import that is part of a circle, one a line, for the message of a failed test."""
    inside = {module for module in graph if any(module == part or module.startswith(f"{part}.") for part in circle)}
    pairs = sorted((module, target) for module in inside for target in graph[module] & inside)

    def part(module: str) -> str:
        return next(part for part in circle if module == part or module.startswith(f"{part}."))

    return "\n".join(f"  {module} imports {target}" for module, target in pairs if part(module) != part(target))


def assert_no_circle(found: list[list[str]], graph: Graph) -> None:
    unexpected = [circle for circle in found if frozenset(circle) not in ALLOWED]
    report = "\n".join(f"{' <-> '.join(circle)}:\n{imports_inside(circle, graph)}" for circle in unexpected)
    assert not unexpected, f"circles of imports:\n{report}"


FILES = modules()
GRAPH = import_graph(FILES)


def test_no_modules_import_each_other_in_a_circle():
    assert_no_circle(circles(GRAPH), GRAPH)


@pytest.mark.parametrize("package", sorted(name for name, path in FILES.items() if path.name == "__init__.py"))
def test_no_sub_packages_import_each_other_in_a_circle(package):
    assert_no_circle(circles(children_of(package, GRAPH)), GRAPH)


MOST_CORE_STEPS = 11
"""Modules of the longest chain of imports from `reconcile` down, both ends included."""


def test_a_reader_of_the_core_follows_a_short_chain_of_imports():
    core = {name: {t for t in targets if t.startswith("allranks.core.")} for name, targets in GRAPH.items()}
    chain = longest_chain("allranks.core.reconcile", core)
    assert len(chain) <= MOST_CORE_STEPS, " -> ".join(chain)


def longest_chain(start: str, graph: Graph) -> tuple[str, ...]:
    """Return the longest chain of imports from a module, in a graph without circles."""

    @cache
    def longest(module: str) -> tuple[str, ...]:
        return (module, *max((longest(target) for target in sorted(graph[module])), key=len, default=()))

    return longest(start)


def test_every_allowed_circle_has_a_reason():
    assert all(ALLOWED.values())


# What the search itself must find.


def test_a_circle_through_a_function_and_three_modules_is_found(tmp_path):
    sources = {
        "p": "",
        "p.a": "import p.b",
        "p.b": "def f():\n    from p import c",
        "p.c": "from p.a import x",
        "p.d": "from p.a import x",
    }
    files = {}
    for name, source in sources.items():
        files[name] = tmp_path / name
        files[name].write_text(source)
    graph = import_graph(files)
    assert circles(graph) == [["p.a", "p.b", "p.c"]]
    with pytest.raises(AssertionError, match=r"p\.b imports p\.c"):
        assert_no_circle(circles(graph), graph)


def test_an_import_for_type_checkers_closes_a_circle(tmp_path):
    files = {name: tmp_path / name for name in ("p", "p.a", "p.b")}
    files["p"].write_text("")
    files["p.a"].write_text("from p import b")
    files["p.b"].write_text("if TYPE_CHECKING:\n    from p.a import x")
    assert circles(import_graph(files)) == [["p.a", "p.b"]]


def test_sub_packages_form_a_circle_though_their_modules_do_not():
    graph = {"p.one.a": {"p.two.b"}, "p.two.b": set(), "p.two.c": {"p.one.d"}, "p.one.d": set()}
    assert circles(graph) == []
    assert circles(children_of("p", graph)) == [["p.one", "p.two"]]
