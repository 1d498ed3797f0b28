"""What the kernels of a plan move between memory levels, counted from the addresses that their programs touch.

The tile programs run in the interpreter on inputs. Of every load and store it knows the elements, and lowering has
noted of which statement it is and where in its loops (`lower.whereabouts`). `tiles.touched` counts with these what each
step of a kernel's tree brings and takes; beside it stands what `tiles.movement` says of the tree alone.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tilewright.codegen.cpu.target import described
from tilewright.compiler.compile import import_any, plan_graph, resolve_target, thread_count
from tilewright.compiler.count_reasons import IN_REGISTERS, Reasons
from tilewright.compiler.gathered_runs import Gathered, Gathering, Runs, Site
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement, sizes, steps
from tilewright.compiler.source import Shapes
from tilewright.compiler.targets import target_of
from tilewright.compiler.tracing import run_traced
from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidArgument
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.ordered import Ordered
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.interpreter import Access, run_main
from tilewright.kernel.views import WRITE
from tilewright.lower.module import build_module
from tilewright.lower.numbers import numbers_as_arguments
from tilewright.lower.steps import Step, anonymous
from tilewright.lower.whereabouts import Notes
from tilewright.machine.description import Cpu, Gpu
from tilewright.options import Options
from tilewright.runtime.loader import missing_features, same_platform
from tilewright.tiles.dimensions import with_dimensions
from tilewright.tiles.held_values import HeldValues, read_by_points
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.machines import program_resources
from tilewright.tiles.movement import movement
from tilewright.tiles.problem import Problem, problem_of
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.touch import PADDING, Touch
from tilewright.tiles.touched import Touched
from tilewright.tiles.traffic import Moved, Traffic

Array = np.ndarray[Any, Any]
Where = Literal["interpreter", "cpu"]

NOTHING = Moved(0, 0, 0)
MOST_GATHERED = 1 << 20  # elements that wait to be counted together


class NotCounted(CompileError):
    """A machine whose programs are not counted."""

    code = "not-counted"


@dataclass(frozen=True)
class TensorCount:
    """What one tensor moves between a level and the one outside it (fills), or inside it (reads, updates).

    `model` is what the tree says, `counted` what the program does, in elements of all programs together. `padding` is
    counted besides: elements of memory that no point of the loops has. `why` says of a difference what it is; it is
    empty where both are equal.
    """

    tensor: str
    model: Moved
    counted: Moved
    padding: Moved
    why: str

    @property
    def expected(self) -> bool:
        """Whether both are equal, or the value has no address."""
        return self.why in ("", IN_REGISTERS)


@dataclass(frozen=True)
class KernelCount:
    """The counts of one kernel, by level, outermost first; `refused` says why there are none."""

    kernel: str
    levels: Mapping[str, Sequence[TensorCount]]
    refused: str = ""

    @property
    def equal(self) -> bool:
        """Whether the program moves exactly what the tree says, but for values that stay in registers."""
        return not self.refused and all(each.expected for level in self.levels.values() for each in level)


def count(
    model: Any,
    inputs: Sequence[Array],
    *,
    shapes: Shapes | None = None,
    machine: str | os.PathLike[str] = "host",
    threads: int | None = None,
    options: Options | None = None,
    on: Where = "interpreter",
) -> list[KernelCount]:
    """What each kernel of a model moves between memory levels on these inputs, counted from what its program touches.

    The arguments are those of `tilewright.compile`; `inputs` are NumPy arrays of the shapes and types of the model's,
    in its order. Programs run in the interpreter, or as machine code that writes down what it touches: small shapes
    only. Raises NotCounted for a machine that is no CPU, and for machine code that this one does not execute.
    """
    options = options or Options()
    target = resolve_target(machine, options)
    _cpu(target)
    plan = plan_graph(import_any(model, None, shapes), target, thread_count(threads), options)
    return count_plan(plan, target, inputs, on)[1]


def count_plan(
    plan: Plan, machine: Cpu | Gpu, inputs: Sequence[Array], on: Where = "interpreter"
) -> tuple[list[Array], list[KernelCount]]:
    """Run a plan for a CPU; its outputs, and the counts of each of its kernels.

    A kernel that is launched several times is counted once. Raises NotCounted as `count` does.
    """
    if on not in get_args(Where):
        raise InvalidArgument(f"counts cannot be on {on!r}", where="on", help=" or ".join(get_args(Where)))
    inputs = _checked(plan.graph.inputs, inputs)
    cpu, placement = _cpu(machine), Placement(plan)
    watch = _Watch(resources_of(cpu))

    def make() -> tuple[ModuleOp, Mapping[str, Notes]]:
        notes: dict[str, tuple[Step, Notes]] = {}
        module, _ = build_module(
            numbers_as_arguments(steps(plan)), sizes(plan), placement.places, placement.sections,
            described(cpu).attribute(), program_resources(cpu), notes,
        )  # fmt: skip
        return module, watch.of(notes)

    if on == "cpu":
        lacking = ", ".join(missing_features(cpu.features))
        if lacking or not same_platform(cpu.llvm.triple):
            what = f"lacks {lacking}" if lacking else f"is no {cpu.llvm.triple}"
            raise NotCounted(f"this machine {what}", where="machine", help="count in the interpreter")
        return run_traced(make, plan, placement, cpu, inputs, watch), watch.counts()
    module, _ = make()
    outputs = [np.zeros(spec.size, dtypes.numpy_dtype(spec.dtype)) for spec in plan.graph.outputs]
    run_main(module, [_flat(each) for each in inputs], outputs, placement.packed(plan), observer=watch)
    shapes = [static_shape(spec.shape) for spec in plan.graph.outputs]
    results = [out.reshape(shape) for out, shape in zip(outputs, shapes, strict=True)]
    return results, watch.counts()


def resources_of(machine: Cpu) -> Resources:
    """The levels on which programs are counted: each program reads by itself."""
    return Resources(tuple(replace(level, multicast=False) for level in program_resources(machine).levels))


def by_levels(traffic: Traffic, levels: Sequence[Level]) -> dict[str, dict[str, Moved]]:
    """What moves at each level, outermost first, by tensor: reads and updates by what is inside, fills from outside."""
    *outside, last = (level.name for level in levels)
    found = {}
    for name in (*outside, last):
        inner = traffic.at(name) if name != last else {}
        outer = traffic.into(name)
        found[name] = {
            tensor: Moved(
                inner.get(tensor, NOTHING).loads, outer.get(tensor, NOTHING).fills, inner.get(tensor, NOTHING).stores
            )
            for tensor in {*inner, *outer}
        }
    return found


def _cpu(machine: Cpu | Gpu) -> Cpu:
    if not target_of(machine).on_host:
        message = f"programs for {machine.name} are not counted"
        raise NotCounted(message, where="machine", help="a CPU; `tilewright machines` lists them")
    return cast(Cpu, machine)


def _checked(wanted: Sequence[Tensor], given: Any) -> list[Array]:
    """The inputs, if they are arrays of the shapes and types of the model's; raises InvalidArgument for others."""
    shown = ", ".join(f"{each.name}: {each.dtype}{list(each.shape)}" for each in wanted)
    if not isinstance(given, list | tuple):
        raise InvalidArgument(f"inputs are a {type(given).__name__}", where="inputs", help=f"a list of {shown}")
    if len(given) != len(wanted):
        raise InvalidArgument(f"{len(given)} inputs for {len(wanted)}", where="inputs", help=shown or "none")
    for tensor, array in zip(wanted, given, strict=True):
        shape, dtype = static_shape(tensor.shape), dtypes.numpy_dtype(tensor.dtype)
        help = f"an array {dtype}{list(shape)}"
        if not isinstance(array, np.ndarray):
            raise InvalidArgument(f"{tensor.name} is a {type(array).__name__}", where="inputs", help=help)
        if array.shape != shape or array.dtype != dtype:
            found = f"{array.dtype}{list(array.shape)}"
            raise InvalidArgument(f"{tensor.name} is {found}", where="inputs", help=help)
    return list(given)


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)


class _Watch:
    """Gives the accesses of the first launch of each kernel to its counting."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.notes: Mapping[str, tuple[Step, Notes]] = {}
        self.kernels: dict[str, _Counting] = {}
        self.current: _Counting | None = None

    def of(self, notes: Mapping[str, tuple[Step, Notes]]) -> dict[str, Notes]:
        """The notes about kernels, which are counted from now on."""
        self.notes = notes
        return {name: noted for name, (_, noted) in notes.items()}

    def counts(self) -> list[KernelCount]:
        """What was counted."""
        return [each.counts() for each in self.kernels.values()]

    def launch(self, kernel: FuncOp) -> None:
        name = kernel.sym_name.data
        self.current = None
        if name in self.notes and name not in self.kernels:
            self.current = self.kernels[name] = _Counting(*self.notes[name], self.resources)
            self.current.begin(kernel)

    def access(self, access: Access) -> None:
        if self.current is not None:
            self.current.access(access)


class _Counting:
    """The counting of one kernel."""

    def __init__(self, step: Step, notes: Notes, resources: Resources) -> None:
        self.step, self.notes, self.resources = step, notes, resources
        self.sites: dict[Operation, Site | None] = {}
        self.gathering = Gathering()
        self.views: dict[SSAValue, str] = {}
        self.refused, self.touched = "", None
        kernel = step.kernel
        nameless = anonymous(step).kernel
        self.names = {v.name: s.name for v, s in zip(nameless.statements, kernel.statements, strict=True)}
        self.names |= {f"t{number}": tensor.name for number, (tensor, _) in enumerate(step.arguments)}
        self.names[""] = ""
        if any(isinstance(each.accum, Ordered) for each in kernel.statements):
            self.refused = "scans, sorts and scatters are not counted"
            return
        try:
            self.problem: Problem = with_dimensions(problem_of(kernel))
            self.model = movement(kernel.tree, self.problem, resources=resources)
            self.touched = Touched(kernel.tree, self.problem, resources)
        except Unanalysable as error:
            self.refused = error.message
            return
        arguments = {tensor.name for tensor, _ in step.arguments}
        self.reasons = Reasons(kernel, self.problem, arguments, set(map(self._name, notes.buffers.values())))
        self.values = HeldValues()
        self.spans = {each.name: {axis.name: axis.size for axis in each.axes} for each in kernel.statements}
        for name, loop, extent in self._most_extents():
            self.spans[name][loop] += extent
        self.exist = {
            tensor.name: found
            for tensor, size in step.arguments
            if (found := read_by_points(kernel, tensor.name, size)) is not None
        }

    def _most_extents(self) -> Iterator[tuple[str, str, int]]:
        """The most points along each loop of a value that one of its buffers has, of those in `Notes.extents`."""
        found: dict[tuple[str, str], int] = {}
        for view, loops in self.notes.extents.items():
            for loop, extent in loops:
                key = self._name(self.notes.buffers[view]), loop
                found[key] = max(found.get(key, 0), extent)
        return ((*key, extent) for key, extent in found.items())

    def begin(self, kernel: FuncOp) -> None:
        arguments = zip(kernel.body.block.args, self.step.arguments, strict=False)
        self.views = {view: tensor.name for view, (tensor, _) in arguments}
        self.views |= {view: self._name(name) for view, name in self.notes.buffers.items()}

    def _name(self, name: str) -> str:
        """The name of a value that lowering knows by another one, or that is made of such a name."""
        return self.names.get(name, name)

    def access(self, access: Access) -> None:
        """Take a run of an access, which is counted with later ones."""
        if self.touched is None or not access.elements.size:
            return
        site = self._site(access)
        if site is None:
            return
        if site.where.copies or access.program != self.gathering.program or self.gathering.count > MOST_GATHERED:
            self._settle()
        if site.where.copies:  # the tree has the values where they were
            self.values.copy(access.view, self._scratch_of(access.view, access.program), access.elements, site.writes)
        else:
            self.gathering.add(site, access)

    def _site(self, access: Access) -> Site | None:
        """What is the same at each run of an access; None where it is not one that lowering has noted."""
        if access.op not in self.sites:
            where = self.notes.accesses.get(access.op)
            self.sites[access.op] = None if where is None else Site(
                access.op, access.view, where, self._name(where.statement), self.views[access.view],
                access.kind == WRITE, where.values(),
            )  # fmt: skip
        return self.sites[access.op]

    def _scratch_of(self, view: SSAValue, program: int) -> int | None:
        """The program whose scratch memory a view is."""
        return program if view in self.notes.buffers else None

    def _settle(self) -> None:
        """Count the runs that were gathered."""
        if self.touched is None or not self.gathering.count:
            return
        gathered = self.gathering.take()
        numbers, ready = self._values(gathered)
        self.touched.touch([
            self._touch(gathered.program, runs, numbers[runs.rows], ready[runs.rows])
            for runs in gathered.runs
            if runs.site.statement  # without, memory is given its first values, which is no step of the tree
        ])  # fmt: skip

    def _values(self, gathered: Gathered) -> tuple[Array, Array]:
        """The numbers of the values that runs touch, and which are first values of sums, or a border."""
        views: dict[SSAValue, list[Runs]] = defaultdict(list)
        for runs in gathered.runs:
            views[runs.site.view].append(runs)
        numbers, ready = np.empty(len(gathered.elements), np.int64), np.empty(len(gathered.elements), np.bool_)
        for view, parts in views.items():
            rows = np.concatenate([runs.rows for runs in parts])
            order = np.argsort(rows)  # that of time
            flags = np.array([[runs.site.writes, runs.site.own, not runs.site.statement] for runs in parts])
            writes, own, begins = np.repeat(flags, [len(runs.rows) for runs in parts], axis=0)[order].T
            known = np.concatenate([self._points(runs) for runs in parts])[order]
            rows, scratch = rows[order], self._scratch_of(view, gathered.program)
            numbers[rows], ready[rows] = self.values.touched(
                view, scratch, gathered.elements[rows], writes, own, begins, known
            )
        return numbers, ready

    def _touch(self, program: int, runs: Runs, numbers: Array, ready: Array) -> Touch:
        """Runs of an access as they count, where the numbers of the values are known."""
        site = runs.site
        padding = self._beyond(runs) | (ready & (not site.own))  # first values are of sums, or a border
        places = site.where.at(site.where.forms(site.where.places), runs.value)
        position = {loop: np.broadcast_to(place, runs.times.shape) for loop, place in places.items()}
        scratch = site.view in self.notes.buffers
        return Touch(
            program, site.statement, site.tensor, site.writes, runs.times, position, runs.runs, numbers,
            ready & ~padding, padding, scratch,
        )  # fmt: skip

    def _beyond(self, runs: Runs) -> Array:
        """Which elements no point of the loops has."""
        found, site = np.zeros(len(runs.elements), np.bool_), runs.site
        if site.where.bounds:
            found |= ~site.where.are_points(site.extents, len(runs.times), runs.value).reshape(-1)
        exist = self.exist.get(site.tensor)
        if exist is not None and not site.writes:
            found |= ~exist[runs.elements]
        return found

    def _points(self, runs: Runs) -> Array:
        """Numbers below zero for the points of a value that is computed, where blocks compute some again; else 0."""
        site, number = runs.site, np.zeros(len(runs.elements), np.int64)
        loops = self.notes.extents.get(site.view)
        if not (site.writes and site.own and loops):
            return number
        begins = site.where.at(site.where.forms(site.where.begins), runs.value)
        indices = np.unravel_index(runs.elements, [extent for _, extent in loops])
        for (loop, _), index in zip(loops, indices, strict=True):
            begin = np.broadcast_to(begins.get(loop, 0), runs.times.shape)
            number = number * self.spans[site.tensor][loop] + index + begin[runs.runs]
        return -1 - number

    def counts(self) -> KernelCount:
        """What was counted, beside what the tree says."""
        if self.touched is None:
            return KernelCount(self.step.name, {}, self.refused)
        self._settle()
        model, counted = (by_levels(each, self.resources.levels) for each in (self.model, self.touched.traffic()))
        found = {
            level: [
                self._tensor(name, said.get(name, NOTHING), counted[level])
                for name in sorted({*said, *(name.removesuffix(PADDING) for name in counted[level])})
            ]
            for level, said in model.items()
        }
        return KernelCount(self.step.name, found)

    def _tensor(self, name: str, model: Moved, done: Mapping[str, Moved]) -> TensorCount:
        counted, padding = done.get(name, NOTHING), done.get(name + PADDING, NOTHING)
        return TensorCount(name, model, counted, padding, self.reasons.of(name, model, counted))
