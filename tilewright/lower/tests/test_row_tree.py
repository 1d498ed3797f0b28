"""Trees of rows on CPUs that were edited: they change the code and not the result, or are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright.compiler.rows as rows_module
from tilewright.compiler.compile import compile_graph
from tilewright.errors import CompileError
from tilewright.expr import GraphBuilder
from tilewright.expr.ops.norm import softmax
from tilewright.options import Options
from tilewright.tiles.notation import parse_tree, print_tree

STAGE = r"stage ([\w.]+) in L1 \{ (.*) \}"
LAST = r"@L1 for (\w+):\d+ \{ @REG unroll \w+:\d+ \{ par \w+:\d+ \{ op softmax \} \} \}"
EDITS = {
    "another vector in one pass": (LAST, r"@L1 for \1:13 { @REG par \1:8 with lanes(8) { op softmax } }"),
    "one number at a time in one pass": (LAST, r"@L1 for \1:100 { @REG for once:1 { op softmax } }"),
}
REFUSED = {
    "too few steps": (LAST, r"@L1 for \1:2 { @REG par \1:8 with lanes(8) { op softmax } }", "L1 coverage"),
    "too many steps": (LAST, r"@L1 for \1:14 { @REG par \1:8 with lanes(8) { op softmax } }", "loops at L1|coverage"),
    "no buffer for a value that a pass fills": (STAGE, r"\2", "the passes are"),
    "a buffer of what is stored": (STAGE, r"stage softmax in L1 { \2 }", "is stored"),
    "too few rows": (r"^@L2 for (\w+):\d+", r"@L2 for \1:3", "L1 coverage"),
    "too many rows": (r"^@L2 for (\w+):\d+", r"@L2 for \1:9", "programs walk 9 tiles|coverage"),
}


def _run(monkeypatch: pytest.MonkeyPatch, pattern: str = "", other: str = "") -> tuple[Any, str]:
    """The softmax of 7 rows of 100 numbers with an edited tree, and its tile program."""
    scheduled = rows_module.schedule_statements

    def edited(*arguments: Any) -> Any:
        kernel, decision = scheduled(*arguments)
        text = print_tree(kernel.tree)
        changed = re.sub(pattern, other, text) if pattern else text
        assert not pattern or changed != text, text
        return replace(kernel, tree=parse_tree(changed)), decision

    b = GraphBuilder()
    graph = b.finish([softmax(b.input("x", (7, 100), "f32"), axis=-1)])
    with monkeypatch.context() as patch:
        patch.setattr(rows_module, "schedule_statements", edited)
        module = compile_graph(graph, threads=1, options=Options(cache=False))
    x = np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32)
    return module(x), module.artifact.program


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_passes_may_have_other_vectors(edit: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, before = _run(monkeypatch)
    found, after = _run(monkeypatch, *edit)
    assert before != after
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("edit", REFUSED.values(), ids=REFUSED)
def test_other_trees_are_refused(edit: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, other, fact = edit
    with pytest.raises(CompileError, match=fact):
        _run(monkeypatch, pattern, other)
