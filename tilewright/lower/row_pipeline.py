"""Rows in a pipeline: one sweep over the inner loop takes one pass of each of several rows.

The passes of a nest are cut into stages. Stage s works on the row s behind the first stage's: while one row is read and
reduced, the row before it is computed on and the one before that is written. Memory and arithmetic are then busy
together, where passes of one row take turns. The first passes of all stages share a sweep; other passes of a stage
follow it. What a stage needs of its row is carried to the next sweep: the row's values, and row buffers with one slot
per row under way. The first and last rows of a program, and rows whose divisors have no safe reciprocals, take their
passes one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis, Expr
from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter, Value, computed_in
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Point, TileAxis, rows_of_program
from tilewright.lower.passes import Passes, Scratch, multiply_by_reciprocals, reciprocal_of
from tilewright.lower.row_tree import Pass, RowTree
from tilewright.operator.passes import values_read


@dataclass(frozen=True)
class Stage:
    """One pass with what follows it: `filled` are the row buffers it fills, `needed` the names of values that later
    stages read.
    """

    first: Pass
    after: tuple[Pass, ...]
    filled: tuple[str, ...]
    needed: tuple[str, ...]


def stages_of(tree: RowTree) -> list[Stage]:
    """The children of a `pipe` scope. Every stage that runs alone asks ahead as the first one does."""
    asked = tree.stages[0][0].asked
    reads = [
        {name for each in group for name in values_read(each.statement.body, tree.covering)} for group in tree.stages
    ]
    stages, made = [], set[str]()
    for number, group in enumerate(tree.stages):
        made |= {each.statement.name for each in group} - set(tree.covering)
        later = {name for names in reads[number + 1 :] for name in names}
        filled = tuple(sorted(name for each in group for name in each.fills))
        first, *after = group
        stages.append(Stage(replace(first, asked=asked), tuple(after), filled, tuple(sorted(made & later))))
    return stages


class RowPipeline:
    """Emits one kernel body for the only outer loop of a nest."""

    def __init__(self, builder: KernelBuilder, tree: RowTree, memory: Mapping[str, SSAValue]) -> None:
        self.builder, self.tree, self.memory = builder, tree, memory
        (self.loop,) = tree.loops
        self.stages = stages_of(tree)
        self.scratch = Scratch(builder, tree)
        self.counter: Axis = TileAxis(f"{self.loop.axis.name}.t", self.loop.extent)
        self.kinds = {name: computed_in(each.tensor.dtype) for name, each in tree.statements.items()}
        probe = self._passes(builder.index(0), {}, ())
        probe.kept = {name: Value(builder.index(0), kind) for name, kind in self.kinds.items()}
        last = self.stages[-1].first
        self.divisors = probe.invariant_divisors(last)
        self.finish = multiply_by_reciprocals(last, self.divisors)

    def run(self) -> None:
        """Fill the pipeline, run it, drain it."""
        builder, depth = self.builder, len(self.stages) - 1
        low, high = rows_of_program(builder, self.loop)
        first = builder.add(low, builder.index(depth))
        carried = [builder.number(0, kind) for kind in self._carried_kinds()]

        def alone(row: SSAValue, values: list[SSAValue]) -> list[SSAValue]:
            return self._one_by_one(row, low, high, values)

        carried = builder.loop(low, first, alone, carried)
        carried = builder.loop(first, high, lambda row, values: self._together(row, low, high, values), carried)
        rest = builder.insert(arith.MaxSIOp(first, high))
        builder.loop(rest, builder.add(high, builder.index(depth)), alone, carried)

    # What is carried: for every stage but the last, the values that later stages need; whether the divisors of the row
    # before the last stage have safe reciprocals, and these.

    def _carried_kinds(self) -> list[str]:
        kinds = [self.kinds[name] for stage in self.stages[:-1] for name in stage.needed]
        return [*kinds, "bool", *(self.kinds[name] for name in self.divisors)]

    def _unpacked(self, carried: Sequence[SSAValue]) -> tuple[list[dict[str, Value]], SSAValue]:
        """Per stage the values that its row has so far, and the flag; the last stage also has its reciprocals."""
        values = list(carried)
        before: list[dict[str, Value]] = [{}]
        for stage in self.stages[:-1]:
            before.append({name: Value(values.pop(0), self.kinds[name]) for name in stage.needed})
        safe = values.pop(0)
        for name in self.divisors:
            before[-1][reciprocal_of(name)] = Value(values.pop(0), self.kinds[name])
        return before, safe

    def _packed(self, passes: Sequence[Passes]) -> list[SSAValue]:
        """The values to carry on, after the stages of `passes` (all but the last)."""
        kept = [at.kept[name].ssa for at, stage in zip(passes, self.stages, strict=False) for name in stage.needed]
        builder, last = self.builder, passes[-1]
        safe = last.reciprocals(self.divisors) if self.divisors else builder.number(True, "bool")
        return [*kept, safe, *(last.kept[reciprocal_of(name)].ssa for name in self.divisors)]

    def _passes(self, row: SSAValue, kept: Mapping[str, Value], stored: Sequence[str]) -> Passes:
        counters = {self.counter: row}
        slots = self.scratch.slots
        if slots > 1:
            counters[self.scratch.slot] = self.builder.insert(arith.RemUIOp(row, self.builder.index(slots)))
        point = Point({self.loop.axis: self.counter}, counters)
        passes = Passes(self.builder, self.tree, self.memory, self.scratch, point)
        passes.kept = dict(kept)
        passes.stored = set(stored)
        return passes

    def _at_stages(self, row: SSAValue, before: Sequence[Mapping[str, Value]]) -> list[Passes]:
        """The passes of all stages when the first is at `row`."""
        filled: list[str] = []
        found = []
        for number, stage in enumerate(self.stages):
            behind = self.builder.add(row, self.builder.index(-number)) if number else row
            found.append(self._passes(behind, before[number], filled))
            filled = [*filled, *stage.filled]
        return found

    # One sweep ----------------------------------------------------------------------------------------------------

    def _together(self, row: SSAValue, low: SSAValue, high: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
        """All stages in one sweep, or one by one where the last cannot multiply by reciprocals."""
        if not self.divisors:
            return self._sweep(row, carried)
        _, safe = self._unpacked(carried)
        return self.builder.either(
            safe, lambda: self._sweep(row, carried), lambda: self._one_by_one(row, low, high, carried)
        )

    def _sweep(self, row: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
        before, _ = self._unpacked(carried)
        at = self._at_stages(row, before)
        reductions = [passes.reduction(stage.first) for passes, stage in zip(at, self.stages[:-1], strict=False)]
        write = at[-1].storing(self.finish)
        lead = at[0]

        def step(emitter: BodyEmitter, where: Mapping[Axis, Expr], values: list[SSAValue]) -> list[SSAValue]:
            inner = {axis: value for axis, value in emitter.loops.items() if axis not in lead.point.counters}

            def there(passes: Passes) -> BodyEmitter:
                loops = {**inner, **passes.point.counters}
                return passes.emitter_at(where, loops, emitter.dims, emitter.extents, emitter.bounds)

            totals = []
            for passes, stage, reduction, value in zip(at, self.stages, reductions, values, strict=False):
                here = there(passes) if passes is not lead else emitter
                with passes.at(stage.first.statement.name, where, here.loops):
                    totals += reduction.step(here, where, [value])
            last = there(at[-1])
            with at[-1].at(self.finish.statement.name, where, last.loops):
                write(last, where, [])  # after the loads, which would wait for it where addresses look alike
            return totals

        totals = lead.sweep(self.stages[0].first, step, [reduction.start for reduction in reductions])
        for passes, stage, reduction, total in zip(at, self.stages, reductions, totals, strict=False):
            passes.kept[stage.first.statement.name] = reduction.finish(total)
            passes.stored |= passes.pending
            for each in stage.after:
                passes.run_pass(each)
        return self._packed(at[:-1])

    def _one_by_one(self, row: SSAValue, low: SSAValue, high: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
        """Every stage whose row exists in a pass of its own, the last one first."""
        builder = self.builder
        before, _ = self._unpacked(carried)
        at = self._at_stages(row, before)
        kept = {}
        for number in reversed(range(len(self.stages))):
            row_here = at[number].point.counters[self.counter]
            begun, ended = _compare(builder, "ge", row_here, low), _compare(builder, "ge", row_here, high)
            running = builder.insert(arith.XOrIOp(ended, builder.number(True, "bool")))
            exists = builder.insert(arith.AndIOp(begun, running))
            kept[number] = self._alone(self.stages[number], at[number], exists)
        for number in range(len(self.stages) - 1):
            at[number].kept = kept[number]
        return self._packed(at[:-1])

    def _alone(self, stage: Stage, passes: Passes, exists: SSAValue) -> dict[str, Value]:
        """One stage in a pass of its own where its row exists; the values that later stages need."""

        def run() -> list[SSAValue]:
            for each in (stage.first, *stage.after):
                passes.run_pass(each)
            return [passes.kept[name].ssa for name in stage.needed]

        if not stage.needed:
            self.builder.branch(exists, lambda: _ignore(run()))
            return {}
        values = self.builder.either(
            exists, run, lambda: [self.builder.number(0, self.kinds[name]) for name in stage.needed]
        )
        return {name: Value(value, self.kinds[name]) for name, value in zip(stage.needed, values, strict=True)}


def _compare(builder: KernelBuilder, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
    return builder.insert(tile.CompareOp(predicate, a, b))


def _ignore(values: list[SSAValue]) -> None:
    assert not values
