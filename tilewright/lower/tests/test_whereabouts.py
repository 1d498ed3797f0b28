"""What lowering notes of the accesses of a kernel: none is left out, and places are those of the addresses."""

from __future__ import annotations

import pytest
from xdsl.ir import Block

from tests.graph_texts import CHAIN, NORM
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.program import steps
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Const
from tilewright.expr.text import parse_graph
from tilewright.kernel.dialect import INDEX, AllocOp, GatherOp, LoadOp, StoreOp
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
                assert set(where.counters) >= {
                    axis for form in where.forms(where.places).values() for axis in form.terms
                }
            elif isinstance(op, AllocOp):
                assert notes.buffers[op.result] in {each.name for each in step.kernel.statements}


def test_forms_leave_out_points_inside_a_tile() -> None:
    counter, inside, block = Axis("m.t", 4), Axis("m.i", 6), Axis("m", 24)
    values = dict.fromkeys([counter])
    where = Whereabouts("C", {block: counter * 6 + inside + 2, Axis("n", 5): Const(3, "i64")}, values)  # type: ignore[arg-type]
    forms = where.forms(where.places)
    assert forms["m"] == affine(counter * 6 + 2)
    assert where.at(forms, lambda _: 3) == {"m": 20, "n": 3}


def test_the_last_of_several_loops_with_one_name_counts() -> None:
    part, whole = Axis("l", 16), Axis("l", 37)
    where = Whereabouts("P", {part: Const(1, "i64"), whole: Const(17, "i64")}, {})
    assert where.at(where.forms(where.places), lambda _: 0) == {"l": 17}


def test_the_values_of_an_access_say_where_its_block_begins() -> None:
    """Also where no place of its loops does."""
    number, counter = Axis("i.b", 5), Axis("i.t", 4)
    values = {number: Block(arg_types=[INDEX]).args[0], counter: Block(arg_types=[INDEX]).args[0]}
    where = Whereabouts("C", {Axis("i", 20): counter + 1}, values, begins={Axis("i", 20): number * 4 - 1})
    assert where.values() == (values[counter], values[number])
    assert where.at(where.forms(where.begins), {values[number]: 2}.__getitem__) == {"i": 7}
