"""Which module of a package imports which, and where they go round in circles."""

from __future__ import annotations

import grimp
import networkx


def module_graph(package: str) -> networkx.DiGraph:
    """Module -> modules that it imports, inside functions too, but not for type checkers alone.

    The package itself, whose public names are loaded when they are used, is left out.
    """
    found = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    modules = found.modules - {package}
    graph = networkx.DiGraph()
    graph.add_nodes_from(modules)
    graph.add_edges_from((m, o) for m in modules for o in found.find_modules_directly_imported_by(m) if o in modules)
    return graph


def folders_of(graph: networkx.DiGraph) -> networkx.DiGraph:
    """The same for folders; imports between a folder and one inside it are left out."""
    packages = {module.rpartition(".")[0] for module in graph}
    folders = networkx.DiGraph()
    for edge in graph.edges:
        a, b = (module if module in packages else module.rpartition(".")[0] for module in edge)
        if a != b and not a.startswith(f"{b}.") and not b.startswith(f"{a}."):
            folders.add_edge(a, b)
    return folders


def circles(graph: networkx.DiGraph) -> list[list[str]]:
    """Sets of two and more nodes that all reach each other."""
    return sorted(sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1)
