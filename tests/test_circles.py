"""Modules of the package import each other in one direction. Imports for annotations alone do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.test_structure import PACKAGE, modules

# Imports inside functions that close a circle, and why.
CLOSING = {
    (
        "expr.operators",
        "expr.core",
    ): "operators of a tensor, such as `a + b`, make expressions, whose base class has them",
    ("expr.operators", "expr.ops.elementwise"): "the same",
    ("expr.operators", "expr.ops.linalg"): "the same",
    ("expr.operators", "expr.ops.part"): "the same",
    ("expr.operators", "expr.ops.reduce"): "the same",
    ("expr.operators", "expr.ops.shape"): "the same",
    (
        "frontend.onnx.registry",
        "frontend.onnx.operators",
    ): "importers enter themselves in the table that is asked for one",
    ("frontend.torch.registry", "frontend.torch.operators"): "the same",
    ("machine.registry", "machine.detect"): "the host is a machine by name, and is described beside the one it is like",
    ("emulator.isa.load_store", "emulator.isa.bulk"): "a copy in bulk stores what a load takes",
}


def name_of(module: str) -> str:
    return module.removeprefix("tilewright.")


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules of the package that a module imports, wherever the statement stands."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                path = PACKAGE.parent.joinpath(*inner.split("."))
                is_module = path.with_suffix(".py").exists() or (path / "__init__.py").exists()
                yield name_of(inner if is_module else str(node.module))
        elif isinstance(node, ast.Import):
            yield from (name_of(alias.name) for alias in node.names if alias.name.startswith("tilewright."))
        yield from imports(node)


def graph() -> dict[str, set[str]]:
    """What each module imports."""
    found = {}
    for path in modules():
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = set(imports(ast.parse(path.read_text())))
    return found


def circle(found: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; empty if none do."""
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_but_those_with_a_reason() -> None:
    found = graph()
    assert len(found) > 400
    for importer, other in CLOSING:
        found[importer].remove(other)
    assert circle(found) == []


@pytest.mark.parametrize("closing", CLOSING, ids=" -> ".join)
def test_each_of_these_closes_a_circle(closing: tuple[str, str]) -> None:
    found = graph()
    for importer, other in CLOSING.keys() - {closing}:
        found[importer].remove(other)
    assert circle(found)
