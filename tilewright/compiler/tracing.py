"""Machine code of a plan that writes down what its loads and stores touch, for `counting`.

Every kernel gets one more view, its *trace*, with a region for each program of the grid. Before each load and store the
tile program stores there which one it is, its offset, bounds and mask, and the counters of the loops around it. Passes
and code generation then run as always, so that what is written down is what the machine code has computed. A region
that is too small says how large it should be, and the program is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FunctionType, MemRefType, ModuleOp, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tilewright.codegen.cpu import pipeline
from tilewright.compiler.interface import interface_of
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement
from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.integers import binary, index_constant
from tilewright.kernel.interpreter import Access, Observer
from tilewright.kernel.passes.cpu.table import CPU, run_passes
from tilewright.kernel.printing import print_module
from tilewright.kernel.views import READ, WRITE
from tilewright.lower.builder import view_type
from tilewright.lower.whereabouts import Notes
from tilewright.machine.description import Cpu
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.module import Module

Array = np.ndarray[Any, Any]
Insert = Callable[[Operation], SSAValue]

FIRST_WORDS = 1 << 15  # of the region of one program
RUNS = 1 << 12  # of accesses that are read from a trace together


def run_traced(
    make: Callable[[], tuple[ModuleOp, Mapping[str, Notes]]], plan: Plan, placement: Placement, machine: Cpu,
    inputs: Sequence[Array], observer: Observer,
) -> list[Array]:  # fmt: skip
    """Run a plan's machine code on one thread; its outputs. The observer gets each kernel's last launch.

    `make` makes the tile program, before all passes, and the notes about its kernels, anew each time.
    """
    words = FIRST_WORDS
    while True:
        program, notes = make()
        traces = [_instrumented(func, notes[func.sym_name.data], words) for func in _kernels(program, notes)]
        _give_traces(program, traces, len(plan.graph.outputs))
        run_passes(program, CPU)
        *results, most = _run(program, plan, placement, machine, inputs, traces)
        if most <= words:
            break
        words = most
    for trace in traces:
        observer.launch(trace.kernel)
        for access in trace.accesses():
            observer.access(access)
    return results


def _kernels(program: ModuleOp, notes: Mapping[str, Notes]) -> list[tile.FuncOp]:
    return [op for op in program.body.ops if isinstance(op, tile.FuncOp) and op.sym_name.data in notes]


# The program ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Site:
    """A load, store or gather, and what is written down each time it runs: `values`, and elements of `tiles`."""

    op: tile.LoadOp | tile.StoreOp | tile.GatherOp
    kind: str
    view: SSAValue
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    bounds: int
    masked: bool
    counters: tuple[SSAValue, ...]

    @property
    def words(self) -> int:
        """The number of the site, an offset or one of each element, bounds, the mask, counters."""
        points = prod(self.extents)
        offsets = points if isinstance(self.op, tile.GatherOp) else 1
        return 1 + offsets + self.bounds + (points if self.masked else 0) + len(self.counters)

    def accesses(self, program: int, written: Array) -> Iterator[Access]:
        """What the words behind the number of the site say: each row of `written` has those of one run."""
        points, gathers = prod(self.extents), isinstance(self.op, tile.GatherOp)
        ends = np.cumsum([points if gathers else 1, self.bounds, points if self.masked else 0])
        offsets, bounds, mask, counters = np.split(written, ends, axis=1)
        places = offsets.reshape(-1, *(self.extents if gathers else [1] * len(self.extents)))
        active = np.ones((len(written), *self.extents), np.bool_)
        for axis, (extent, stride) in enumerate(zip(self.extents, self.strides, strict=True)):
            along = np.arange(extent).reshape([-1 if n == axis else 1 for n in range(len(self.extents))])
            places = places + along * stride
            if self.bounds:
                active &= along < bounds[:, axis].reshape([-1] + [1] * len(self.extents))
        if self.masked:
            active &= mask.reshape(active.shape) != 0
        places, active = (each.reshape(len(written), -1) for each in (places, active))
        whole = np.all(active, axis=1)
        for run, row in enumerate(counters.tolist()):
            elements = places[run] if whole[run] else places[run][active[run]]
            known = dict(zip(self.counters, row, strict=True))
            yield Access(self.op, self.view, self.kind, program, elements, known.__getitem__)


@dataclass
class _Trace:
    """The trace of one kernel: sites by number, words of the region of a program, and after the run what it holds."""

    kernel: tile.FuncOp
    sites: list[_Site]
    words: int
    written: Array | None = None

    @property
    def type(self) -> MemRefType[Attribute]:
        """The type of the view: a region for each program."""
        return view_type("i64", self.words * self.kernel.programs)

    def accesses(self) -> Iterator[Access]:
        """What each program has touched, one program after the other."""
        assert self.written is not None, "the program has run"
        for program, region in enumerate(self.written.reshape(-1, self.words)):
            numbers, places = self._runs(region)
            for part in range(0, len(numbers), RUNS):
                yield from self._accesses(program, region, numbers[part : part + RUNS], places[part : part + RUNS])

    def _runs(self, region: Array) -> tuple[Array, Array]:
        """The numbers of the sites that ran, in the order of time, and where their words begin."""
        words, written = [site.words for site in self.sites], region.data
        numbers, places = [], []
        at, end = 1, written[0]
        while at < end:
            numbers.append(written[at])
            places.append(at)
            at += words[numbers[-1]]
        return np.array(numbers), np.array(places)

    def _accesses(self, program: int, region: Array, numbers: Array, places: Array) -> Iterator[Access]:
        """Some runs in the order of time; those of one site are read together."""
        accesses = {}
        for number in np.unique(numbers).tolist():
            site = self.sites[number]
            written = region[places[numbers == number][:, None] + np.arange(1, site.words)]
            accesses[number] = site.accesses(program, written)
        for number in numbers.tolist():
            yield next(accesses[number])


def _instrumented(func: tile.FuncOp, notes: Notes, words: int) -> _Trace:
    """Add the trace to a kernel, and the stores to it."""
    block = func.body.block
    ops = [op for op in func.walk() if op in notes.accesses]
    view = block.insert_arg(view_type("i64", words * func.programs), len(block.args))
    func.properties["function_type"] = FunctionType.from_lists([arg.type for arg in block.args], [])
    first = block.first_op
    assert first is not None, "a kernel returns"
    insert = _before(first)
    number = insert(index_constant(0))
    for axis, extent in enumerate(func.extents):
        number = insert(binary(arith.MuliOp, number, insert(index_constant(extent))))
        number = insert(binary(arith.AddiOp, number, insert(tile.ProgramIdOp(axis))))
    base = insert(binary(arith.MuliOp, number, insert(index_constant(words))))
    insert(tile.StoreOp(insert(arith.ConstantOp.from_int_and_width(1, 64)), view, base))
    sites = []
    for op in ops:
        assert isinstance(op, tile.LoadOp | tile.StoreOp | tile.GatherOp), "it is an access"
        sites.append(_site(op, notes))
        _write_down(sites[-1], len(sites) - 1, view, base, words)
    return _Trace(func, sites, words)


def _before(op: Operation) -> Insert:
    """Inserts operations before another one."""
    block = op.parent
    assert block is not None, "it is in a kernel"

    def insert(new: Operation) -> SSAValue:
        block.insert_op_before(new, op)
        return new.results[0] if new.results else None  # type: ignore[return-value]

    return insert


def _site(op: tile.LoadOp | tile.StoreOp | tile.GatherOp, notes: Notes) -> _Site:
    values = notes.accesses[op].values()
    kind = WRITE if isinstance(op, tile.StoreOp) else READ
    if isinstance(op, tile.GatherOp):
        extents = tile.shape(op.offsets)
        return _Site(op, kind, op.view, extents, (0,) * len(extents), 0, op.mask is not None, values)
    extents = tile.shape(op.value if isinstance(op, tile.StoreOp) else op.results[0])
    strides = tuple(int(stride) for stride in tile.strides_of(op))
    return _Site(op, kind, op.view, extents, strides, len(op.bounds), op.mask is not None, values)


def _write_down(site: _Site, number: int, view: SSAValue, base: SSAValue, words: int) -> None:
    """Store what a site touches at the next words of a region, if they are in the region, and go on behind them."""
    insert, op = _before(site.op), site.op
    at = insert(arith.IndexCastOp(insert(tile.LoadOp(view, base, (), ())), tile.INDEX))
    fits = insert(tile.CompareOp("le", at, insert(index_constant(words - site.words))))
    block = Block()

    def inside(new: Operation) -> SSAValue:
        block.add_op(new)
        return new.results[0] if new.results else None  # type: ignore[return-value]

    place = inside(binary(arith.AddiOp, base, at))

    def put(value: SSAValue, position: int, extents: tuple[int, ...] = ()) -> None:
        strides = [prod(extents[axis + 1 :]) for axis in range(len(extents))]
        here = inside(binary(arith.AddiOp, place, inside(index_constant(position))))
        inside(tile.StoreOp(value, view, here, strides))

    put(inside(arith.ConstantOp.from_int_and_width(number, 64)), 0)
    position = 1
    if isinstance(op, tile.GatherOp):
        put(op.offsets, position, site.extents)
        position += prod(site.extents)
        scalars: list[SSAValue] = []
    else:
        scalars = [op.offset, *op.bounds]
    for value in scalars:
        put(inside(arith.IndexCastOp(value, i64)), position)
        position += 1
    if op.mask is not None:
        put(inside(tile.CastOp(op.mask, i64, unsigned=True)), position, site.extents)
        position += prod(site.extents)
    for value in site.counters:
        put(inside(arith.IndexCastOp(value, i64)), position)
        position += 1
    assert position == site.words, "each word has its place"
    inside(scf.YieldOp())
    insert(scf.IfOp(fits, [], Region(block), Region(Block([scf.YieldOp()]))))
    behind = insert(binary(arith.AddiOp, at, insert(index_constant(site.words))))
    insert(tile.StoreOp(insert(arith.IndexCastOp(behind, i64)), view, base))


def _give_traces(program: ModuleOp, traces: Sequence[_Trace], outputs: int) -> None:
    """Traces are outputs of the program, behind its own; each launch gives its kernel the one it has."""
    main = next(op for op in program.body.ops if isinstance(op, tile.MainOp))
    first = main.body.block.first_op
    assert first is not None, "something is launched"
    given = {}
    for number, trace in enumerate(traces):
        buffer = tile.BufferOp("output", outputs + number, trace.type)
        main.body.block.insert_op_before(buffer, first)
        given[trace.kernel.sym_name.data] = buffer.result
    for op in [op for op in main.walk() if isinstance(op, tile.LaunchOp)]:
        name = op.kernel.root_reference.data
        if name in given:
            block = op.parent
            assert block is not None, "it is in the host sequence"
            block.insert_op_before(tile.LaunchOp(name, [*op.arguments, given[name]]), op)
            block.erase_op(op)


# The run --------------------------------------------------------------------------------------------------------------


def _run(
    program: ModuleOp, plan: Plan, placement: Placement, machine: Cpu, inputs: Sequence[Array], traces: Sequence[_Trace]
) -> list[Any]:
    """The outputs of the plan, and the most words that a program would have written; traces are filled."""
    made = pipeline.generate(program)
    interface = interface_of(plan, machine, [tensor.name for tensor in plan.graph.outputs])
    own: tuple[TensorSpec, ...] = interface["outputs"]
    names = (f"trace of {trace.kernel.sym_name.data}" for trace in traces)
    added = tuple(TensorSpec(name, "i64", trace.type.get_shape()) for name, trace in zip(names, traces, strict=True))
    manifest = replace(Manifest(**interface, **made.parts()), outputs=(*own, *added))
    artifact = Artifact(manifest, made.code, placement.packed(plan), print_module(program), "{}", "{}")
    found = Module(artifact, threads=1, options=Options(cache=False))(*inputs)
    results = list(found) if isinstance(found, tuple) else [found]
    most = 0
    for trace, written in zip(traces, results[len(own) :], strict=True):
        trace.written = np.asarray(written)
        most = max(most, int(trace.written.reshape(-1, trace.words)[:, 0].max(initial=0)))
    return [*(np.asarray(each) for each in results[: len(own)]), most]
