"""Trees of kernels in files: saved plans, and tile files with the expressions of a chain of products."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import Any

from tilewright.errors import InvalidFile
from tilewright.expr.names import claim
from tilewright.files import read_text
from tilewright.graph.groups import kernel_name
from tilewright.tiles.file import MAX_BYTES, parse_tile_file
from tilewright.tiles.parts import has_several_parts
from tilewright.tiles.tree import MicroKernelRef, TileTree, from_json, leaves, with_kernels

_PLAN = "a file that `--emit plan` wrote"
_NAMED = re.compile(r"\bas\s+([\w.]+)")


def saved_trees(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The trees of a saved plan as data, by kernel. Raises InvalidFile for a file that has none."""
    return _trees_of(read_text(path, InvalidFile), os.fspath(path))


def fused_trees(path: str | os.PathLike[str]) -> dict[str, TileTree]:
    """The trees of products in one kernel that a saved plan or a tile file has, by kernel.

    A tile file has one chain, and names micro-kernels only: `RECORD_ROWSxCOLUMNSxDEPTH`. Raises InvalidFile or
    InvalidTree for a file that is neither, or has no such tree.
    """
    text, where = read_text(path, InvalidFile, limit=MAX_BYTES), os.fspath(path)
    if text.lstrip().startswith("{"):
        trees = {name: from_json(tree, where=f"{where}: {name}") for name, tree in _trees_of(text, where).items()}
    else:
        named = {name: MicroKernelRef(name, "", (), ()) for name in _NAMED.findall(text)}
        file = parse_tile_file(text, named, where=where)
        trees = {kernel_name(file.graph.nodes): _numbered(file.tree)}
    found = {name: tree for name, tree in trees.items() if has_several_parts(tree)}
    if not found:
        help = "a plan that was made with fuse=always, or two leaves `op NAME as RECORD_ROWSxCOLUMNSxDEPTH`"
        raise InvalidFile("no kernel in it has several products", where=where, help=help)
    return found


def _numbered(tree: TileTree) -> TileTree:
    """The tree with a name of its own for every micro-kernel."""
    taken: set[str] = set()
    for _, leaf in leaves(tree):
        if leaf.kernel is not None:
            own = replace(leaf.kernel, name=claim(leaf.kernel.name, taken))
            tree = with_kernels(tree, {leaf.op: own})
    return tree


def _trees_of(text: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InvalidFile(f"is no JSON: {error}", where=where, help=_PLAN) from error
    trees = content.get("trees") if isinstance(content, dict) else None
    if not isinstance(trees, dict):
        raise InvalidFile("has no trees", where=where, help='an object {"trees": {KERNEL: TREE}}')
    return trees
