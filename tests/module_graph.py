"""Which module of a package imports which, and where they go round in circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = dict[str, set[str]]


def module_graph(package: Path) -> Graph:
    """module -> modules of the package that it imports, inside functions too, but not for type checkers alone."""
    files = {_name(package, file): file for file in package.rglob("*.py")}
    graph: Graph = {}
    for name, file in files.items():
        inside = name if file.name == "__init__.py" else name.rpartition(".")[0]
        found = set[str]()
        for target, names in _imports(ast.parse(file.read_text("utf-8")), inside):
            for imported in names or [""]:
                full = f"{target}.{imported}"
                found.add(full if full in files else target)
        graph[name] = {other for other in found if other in files and other != name}
    return graph


def folder_of(graph: Graph, package: Path) -> Graph:
    """The same for folders; a folder and one inside it do not count."""
    folders = {name for name in graph if (package.parent / name.replace(".", "/")).is_dir()}

    def folder(name: str) -> str:
        return name if name in folders else name.rpartition(".")[0]

    found: Graph = {}
    for name, others in graph.items():
        for other in others:
            a, b = folder(name), folder(other)
            if a != b and not a.startswith(f"{b}.") and not b.startswith(f"{a}."):
                found.setdefault(a, set()).add(b)
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of nodes that all reach each other (Tarjan's strongly connected components), of two and more."""
    index, low = dict[str, int](), dict[str, int]()
    stack, found = list[str](), list[list[str]]()

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            component, stack[at:] = stack[at:], []
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def _name(package: Path, file: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(node: ast.AST, inside: str) -> Iterator[tuple[str, list[str]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            target = child.module or ""
            if child.level:
                base = inside.split(".")
                target = ".".join([*base[: len(base) - child.level + 1], *([target] if target else [])])
            yield target, [alias.name for alias in child.names]
        elif isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, []
        yield from _imports(child, inside)
