"""A list of kernels with their buffers to one tile program.

Kernels once each, the host sequence, the plan of the arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.builder import Builder
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import InsertPoint

from tilewright.kernel import dialect as tile
from tilewright.lower.block_nest import lower_block_nest
from tilewright.lower.blocks import lower_blocks
from tilewright.lower.builder import view_type
from tilewright.lower.contraction import lower_contraction
from tilewright.lower.nest import lower_nest
from tilewright.lower.steps import Place, Step
from tilewright.operator.blocks import BlockSchedule
from tilewright.operator.contraction import ContractionSchedule
from tilewright.operator.nest import Nest, NestSchedule
from tilewright.operator.nest_blocks import NestBlocks


def build_module(
    steps: Sequence[Step], places: Mapping[str, Place], arena_bytes: int, constants_bytes: int, target: DictionaryAttr
) -> tuple[ModuleOp, list[str]]:
    """The tile program and the kernel of every launch. Kernels that came out equal are emitted once."""
    functions: list[tile.FuncOp] = []
    known: dict[str, str] = {}
    launched: list[str] = []
    main = tile.MainOp(arena_bytes, constants_bytes)
    builder = Builder(InsertPoint.at_end(main.body.block))
    buffers: dict[tuple[str, int, str], SSAValue] = {}
    names: set[str] = set()
    for step in steps:
        anonymous = _without_names(step)
        key = repr((anonymous.work, anonymous.schedule, anonymous.arguments, step.flops, step.bytes))
        if key not in known:
            known[key] = _unique(step.name, names)
            functions.append(_lowered(anonymous, known[key]))
        launched.append(known[key])
        views = [
            _buffer(builder, buffers, places[tensor.name], view_type(tensor.dtype, size))
            for tensor, size in step.arguments
        ]
        builder.insert(tile.LaunchOp(known[key], views))
    return ModuleOp([*functions, main], {"tile.target": target}), launched


def _without_names(step: Step) -> Step:
    """The step with its tensors called by their position, so that equal layers become one kernel."""
    names = {tensor.name: f"t{number}" for number, (tensor, _) in enumerate(step.arguments)}
    if isinstance(step.work, Nest):
        names.update(
            (node.tensor.name, f"v{number}") for number, node in enumerate(step.work.nodes) if node.index is None
        )
    else:
        names.setdefault(step.work.accumulator.name, "accumulator")
    schedule = step.schedule
    if isinstance(schedule, NestSchedule):
        schedule = replace(
            schedule,
            nontemporal=tuple(names[name] for name in schedule.nontemporal),
            prefetch=tuple(replace(ahead, tensor=names[ahead.tensor]) for ahead in schedule.prefetch),
            moments=None if schedule.moments is None else (names[schedule.moments[0]], names[schedule.moments[1]]),
        )
    arguments = tuple((replace(tensor, name=names[tensor.name]), size) for tensor, size in step.arguments)
    return replace(step, work=step.work.renamed(names), schedule=schedule, arguments=arguments)


def _lowered(step: Step, name: str) -> tile.FuncOp:
    if isinstance(step.schedule, NestBlocks):
        assert isinstance(step.work, Nest)
        func = lower_block_nest(name, step.work, step.schedule, step.arguments)
    elif isinstance(step.work, Nest):
        assert isinstance(step.schedule, NestSchedule)
        func = lower_nest(name, step.work, step.schedule, step.arguments)
    elif isinstance(step.schedule, BlockSchedule):
        func = lower_blocks(name, step.work, step.schedule, step.arguments)
    else:
        assert isinstance(step.schedule, ContractionSchedule)
        func = lower_contraction(name, step.work, step.schedule, step.arguments)
    func.properties["cost"] = DictionaryAttr(
        {"flops": IntegerAttr(step.flops, 64), "bytes": IntegerAttr(step.bytes, 64)}
    )
    return func


def _unique(name: str, taken: set[str]) -> str:
    plain = "".join(c if c.isalnum() or c in "._" else "_" for c in name)
    plain = plain if plain[:1].isalpha() else f"k{plain}"
    unique, count = plain, 0
    while unique in taken:
        count += 1
        unique = f"{plain}.{count}"
    taken.add(unique)
    return unique


def _buffer(builder: Builder, known: dict[tuple[str, int, str], SSAValue], place: Place, type_: Attribute) -> SSAValue:
    key = (place.space, place.index, str(type_))
    if key not in known:
        op = tile.BufferOp(place.space, place.index, type_)  # type: ignore[arg-type]
        builder.insert(op)
        known[key] = op.result
    return known[key]
