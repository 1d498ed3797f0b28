"""The number of a step among those of its block, as kernels compute it."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, SSAValue

from tilewright.lower.builder import KernelBuilder
from tilewright.lower.prefetch import StepsOfBlock


@pytest.mark.parametrize("low", [0, 6])
@pytest.mark.parametrize("counts", [(1,), (5,), (3, 1), (2, 4), (2, 2, 2, 3)])
def test_every_number_up_to_the_last_occurs(counts: tuple[int, ...], low: int) -> None:
    """Whatever the last number is: without a limit, they are those of the steps in order."""
    for last in range(prod(counts)):
        numbers = [_number(counts, low, steps, last) for steps in product(*map(range, counts))]
        assert set(numbers) == set(range(last + 1))
    assert numbers == list(range(prod(counts)))


def _number(counts: tuple[int, ...], low: int, steps: tuple[int, ...], last: int) -> int:
    builder = KernelBuilder(Block())
    first, *others = steps
    counters = [builder.index(low + first), *map(builder.index, others)]
    return _value(StepsOfBlock(builder.index(low), counts).number(builder, counters, last))


def _value(value: SSAValue) -> int:
    owner = value.owner
    if isinstance(owner, arith.ConstantOp):
        assert isinstance(owner.value, IntegerAttr)
        return int(owner.value.value.data)
    compute = {
        arith.AddiOp: lambda a, b: a + b,
        arith.SubiOp: lambda a, b: a - b,
        arith.MuliOp: lambda a, b: a * b,
        arith.MinSIOp: min,
    }[type(owner)]
    return int(compute(*map(_value, owner.operands)))
