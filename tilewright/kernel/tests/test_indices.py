"""What is known of the bounds of loops, and which indices their bodies take from outside."""

from __future__ import annotations

import pytest
from xdsl.dialects import scf
from xdsl.dialects.arith import AddiOp
from xdsl.ir import SSAValue

from tilewright.kernel.indices import indices_from_outside, is_sum_of_counters, runs_at_least_once
from tilewright.kernel.text import parse_module


def loops(low: str, end: str) -> list[scf.ForOp]:
    """A loop, and one in it with these bounds, whose body takes %p, %i and %r from outside."""
    text = f"""
    builtin.module attributes {{tile.target = "cpu"}} {{
      tile.func @f(%x : memref<64xf32>) grid [4] {{
        %p = tile.program_id 0
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c4 = arith.constant 4 : index
        %cm = arith.constant -1 : index
        scf.for %i = %c0 to %c4 step %c1 {{
          %s = arith.addi %i, %p : index
          %twice = arith.addi %p, %p : index
          %up = arith.addi %s, %c4 : index
          %down = arith.addi %s, %cm : index
          %most = arith.maxsi %s, %c1 : index
          %r = arith.muli %most, %c4 : index
          scf.for %k = {low} to {end} step %c1 {{
            %a = arith.addi %k, %r : index
            %b = arith.addi %a, %i : index
            %d = arith.addi %b, %p : index
            %e = arith.addi %d, %c4 : index
            %v = tile.load %x[%e] strides [1] : memref<64xf32> -> tensor<4xf32>
            tile.store %v, %x[%d] strides [1] : tensor<4xf32>, memref<64xf32>
          }}
        }}
        tile.return
      }}
    }}
    """
    return [op for op in parse_module(text).walk() if isinstance(op, scf.ForOp)]


@pytest.mark.parametrize(
    ("low", "end", "runs"),
    [
        ("%c0", "%c4", True),
        ("%c1", "%c1", False),
        ("%s", "%up", True),
        ("%s", "%down", False),
        ("%s", "%c4", False),
        ("%c0", "%s", False),
        ("%most", "%up", False),
        ("%p", "%twice", False),
    ],
)
def test_which_loops_surely_run(low: str, end: str, runs: bool) -> None:
    _, inner = loops(low, end)
    assert runs_at_least_once(inner) == runs


@pytest.mark.parametrize(
    ("low", "sums"), [("%c0", True), ("%s", True), ("%down", True), ("%most", False), ("%r", False)]
)
def test_which_indices_are_sums_of_counters(low: str, sums: bool) -> None:
    _, inner = loops(low, "%c4")
    assert is_sum_of_counters(inner.lb) == sums


def test_sums_of_the_same_index_again_and_again_take_no_time() -> None:
    _, inner = loops("%c0", "%c4")
    total: SSAValue = inner.body.block.args[0]
    for _ in range(100):
        total = AddiOp(total, total).result
    assert is_sum_of_counters(total)


def test_indices_from_outside_of_a_loop() -> None:
    outer, inner = loops("%c0", "%c4")
    assert [value.name_hint for value in indices_from_outside(inner)] == ["r", "i", "p"]
    assert [value.name_hint for value in indices_from_outside(outer)] == ["p"]
