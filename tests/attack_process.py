"""What the processes of `tests.attack` share: they are forked from one that imports this, and so start at once.

Importing it compiles, saves, loads and clears once. A process of another user, who may not be able to read this Python,
then has every module that it needs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright.compiler.compile import compile_graph
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import elementwise
from tilewright.options import Options
from tilewright.runtime.cache import Cache
from tilewright.runtime.module import Module


def compile_in(folder: Path, size: int, cache_dir: str = "cache", **options: Any) -> Module:
    """A module that was compiled with the cache in `folder`, and gives a right result."""
    b = GraphBuilder("relu")
    graph = b.finish([elementwise.relu(b.input("x", (size,), "f32"), name="y")])
    module = compile_graph(graph, threads=1, options=Options(cache_dir=folder / cache_dir, **options))
    assert np.array_equal(module(np.full(size, 2, np.float32)), np.full(size, 2)), "a wrong result"
    return module


def _import_everything() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(2):
            compile_in(folder, 9).save(folder / "a.twm")
        tilewright.load(folder / "a.twm", threads=1)
        Cache(folder / "cache", 1 << 30).clear()


_import_everything()
