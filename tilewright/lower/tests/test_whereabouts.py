"""What lowering notes of the accesses of a kernel: none is left out, and places are those of the addresses."""

from __future__ import annotations

import pytest

from tests.graph_texts import CHAIN, NORM
from tilewright.compiler.plan import make_plan
from tilewright.compiler.program import steps
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Const
from tilewright.expr.text import parse_graph
from tilewright.kernel.dialect import AllocOp, GatherOp, LoadOp, StoreOp
from tilewright.lower.module import lower_kernel
from tilewright.lower.steps import Repeated
from tilewright.lower.whereabouts import Notes, Whereabouts
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.machines import program_resources
from tilewright.tiles.tree import leaves

MACHINE = resolve_cpu("x86-64-v3")


@pytest.mark.parametrize("text", [CHAIN, NORM], ids=["products", "rows"])
def test_every_access_has_a_statement_and_scratch_memory_a_name(text: str) -> None:
    plan = make_plan(parse_graph(text), MACHINE, 1, Options(cache=False, fuse="always"))
    for step in steps(plan):
        assert not isinstance(step, Repeated)
        notes, resources = Notes(), program_resources(MACHINE)
        func = lower_kernel(step, "f", resources, notes)
        assert str(func) == str(lower_kernel(step, "f", resources))  # notes change nothing
        ops = {leaf.op for _, leaf in leaves(step.kernel.tree)}
        for op in func.walk():
            if isinstance(op, LoadOp | StoreOp | GatherOp):
                where = notes.accesses[op]
                assert where.statement in ops
                assert set(where.counters) >= {axis for form in where.forms().values() for axis in form.terms}
            elif isinstance(op, AllocOp):
                assert notes.buffers[op.result] in {each.name for each in step.kernel.statements}


def test_forms_leave_out_points_inside_a_tile() -> None:
    counter, inside, block = Axis("m.t", 4), Axis("m.i", 6), Axis("m", 24)
    values = dict.fromkeys([counter])
    where = Whereabouts("C", {block: counter * 6 + inside + 2, Axis("n", 5): Const(3, "i64")}, values)  # type: ignore[arg-type]
    forms = where.forms()
    assert forms["m"] == affine(counter * 6 + 2)
    assert where.at(forms, lambda _: 3) == {"m": 20, "n": 3}


def test_the_last_of_several_loops_with_one_name_counts() -> None:
    part, whole = Axis("l", 16), Axis("l", 37)
    where = Whereabouts("P", {part: Const(1, "i64"), whole: Const(17, "i64")}, {})
    assert where.at(where.forms(), lambda _: 0) == {"l": 17}
