"""The passes of each target, in order, and how to run them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from tilewright.errors import InvalidArgument, InvalidProgram, nearest
from tilewright.kernel.passes.common.canonicalise import CanonicalisePass
from tilewright.kernel.passes.common.cse import CsePass
from tilewright.kernel.passes.common.dce import DcePass
from tilewright.kernel.passes.common.licm import LicmPass
from tilewright.kernel.passes.common.ranges import RangesPass
from tilewright.kernel.passes.cpu.table import CPU, run_passes
from tilewright.kernel.passes.gpu.allocate_shared import AllocateSharedPass
from tilewright.kernel.passes.gpu.assign_layouts import AssignLayoutsPass
from tilewright.kernel.passes.gpu.barriers import BarriersPass
from tilewright.kernel.passes.gpu.distribute import DistributePass
from tilewright.kernel.passes.gpu.forms import (
    DISTRIBUTED,
    LAYOUTS,
    TILE,
    Phase,
    check_form,
    not_distributed,
    odd_extents,
    without_layout,
)
from tilewright.kernel.passes.gpu.hoist_accumulators import HoistAccumulatorsPass
from tilewright.kernel.passes.gpu.pad_tiles import PadTilesPass
from tilewright.kernel.passes.gpu.pipeline_loads import PipelineLoadsPass
from tilewright.kernel.passes.gpu.pipeline_registers import PipelineRegistersPass
from tilewright.kernel.passes.gpu.prefetch_fragments import PrefetchFragmentsPass
from tilewright.kernel.passes.gpu.remove_conversions import RemoveConversionsPass
from tilewright.kernel.passes.gpu.round_to_tf32 import RoundToTf32Pass
from tilewright.kernel.passes.gpu.split_k import SplitKPass
from tilewright.kernel.passes.gpu.swizzle_blocks import SwizzleBlocksPass
from tilewright.kernel.passes.gpu.tf32x3 import Tf32x3Pass
from tilewright.kernel.passes.hopper.multicast import MulticastPass
from tilewright.kernel.passes.hopper.overlap_launches import OverlapLaunchesPass
from tilewright.kernel.passes.hopper.persistent import PersistentPass
from tilewright.kernel.passes.hopper.pipeline_chains import PipelineChainsPass
from tilewright.kernel.passes.hopper.pipeline_tensor_copies import PipelineTensorCopiesPass
from tilewright.kernel.passes.hopper.pipeline_wgmma import PipelineWgmmaPass
from tilewright.kernel.passes.hopper.tensor_copies import TensorCopiesPass
from tilewright.kernel.passes.hopper.tensor_stores import TensorStoresPass
from tilewright.kernel.passes.hopper.warp_products import WarpProductsPass
from tilewright.kernel.passes.hopper.warp_specialize import WarpSpecializePass
from tilewright.kernel.text import print_module
from tilewright.kernel.verify import Checked

PHASES = (
    Phase(TILE, "every extent of a tile is a power of two", odd_extents, (
        PadTilesPass(),  # required
        CanonicalisePass(),
        HoistAccumulatorsPass(),
        SplitKPass(),
        TensorCopiesPass(),
        TensorStoresPass(),
        MulticastPass(),
        SwizzleBlocksPass(),
        PersistentPass(),
        PipelineTensorCopiesPass(),
        PipelineWgmmaPass(),
        PipelineChainsPass(),
        WarpProductsPass(),  # required
    )),
    Phase(LAYOUTS, "every tile has a layout", without_layout, (
        AssignLayoutsPass(),  # required
        RemoveConversionsPass(),
        PipelineLoadsPass(),
        PipelineRegistersPass(),  # what cannot be copied asynchronously
    )),
    Phase(DISTRIBUTED, "every operation is that of one thread", not_distributed, (
        DistributePass(),  # required
        WarpSpecializePass(),
        RangesPass(),
        CanonicalisePass(),
        LicmPass(),
        PrefetchFragmentsPass(),
        RoundToTf32Pass(),
        Tf32x3Pass(),  # required
        CsePass(),
        DcePass(),
        AllocateSharedPass(),
        BarriersPass(),  # places of shared memory decide what must be ordered
        OverlapLaunchesPass(),
    )),
)  # fmt: skip
"""The passes of GPUs. Those that are not required are optimisations: switching one off needs no other one off."""

PIPELINES: dict[str, tuple[ModulePass, ...]] = {
    "cpu": CPU,
    "gpu": tuple(each for phase in PHASES for each in phase.passes),
}

REQUIRED = frozenset(
    each.name for each in (PadTilesPass, WarpProductsPass, AssignLayoutsPass, DistributePass, Tf32x3Pass)
)
"""What later phases need: these cannot be switched off."""

RENAMED = {
    "warp-roles": "warp-specialize", "share-copies": "multicast", "order-blocks": "swizzle-blocks",
    "overlap-products": "pipeline-wgmma", "pack-shared": "allocate-shared", "split-products": "tf32x3",
    "round-operands": "round-to-tf32",
}  # fmt: skip
"""Passes by the names that they had before, for messages."""

_OFF = {"splits": 1, "group": 1, "stages": 1, "cluster": 1}  # settings with which a pass does nothing

_MAKERS = tuple(phase.maker for phase in PHASES)
_AGAIN = frozenset({AssignLayoutsPass.name})  # works on what it has made too


def _works_on() -> Iterator[tuple[str, tuple[int, int]]]:
    common = {each.name for each in CPU}
    for phase in PHASES:
        for each in phase.passes:
            first = max(TILE, phase.form - 1) if each.name == phase.maker else phase.form
            if each.name not in common:
                yield each.name, (first, phase.form if each.name in _AGAIN else first)


WORKS_ON = dict(_works_on())
"""First and last form of the kernels that a pass works on; other passes work on all."""

PASSES: dict[str, ModulePass] = {each.name: each for pipeline in PIPELINES.values() for each in pipeline}
OPTIMISATIONS = tuple(name for name in PASSES if name not in REQUIRED)


def pipeline(
    target: str = "cpu",
    disable: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    lanes: int = 32,
) -> tuple[ModulePass, ...]:
    """The passes for a target whose warps have `lanes`, in order, without those named in `disable`.

    `options` are other settings than the usual, by pass.

    >>> passes = pipeline("gpu", options={"pipeline-loads": {"stages": 4}})
    >>> [each.stages for each in passes if isinstance(each, PipelineLoadsPass)]
    [4]
    """
    if target not in PIPELINES:
        raise InvalidArgument(f"no pipeline for target {target!r}", help=f"one of {', '.join(PIPELINES)}")
    return _configured(PIPELINES[target], disable, options, lanes)


def _configured(
    passes: Sequence[ModulePass], disable: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None, lanes: int
) -> tuple[ModulePass, ...]:
    """These passes without those named in `disable`, with other settings and so many lanes in a warp."""
    for name in (*disable, *(options or ())):
        _named(name)
    for name in disable:
        if name in REQUIRED:
            raise InvalidArgument(f"pass {name!r} cannot be switched off", where="disable", help="later phases need it")
    warps = {each.name: {"lanes": lanes} for each in (AssignLayoutsPass(), DistributePass())}
    return tuple(
        _with(each, {**warps.get(each.name, {}), **(options or {}).get(each.name, {})})
        for each in passes
        if each.name not in disable
    )


def run_pipeline(
    module: ModuleOp,
    target: str = "cpu",
    disable: Sequence[str] = (),
    verify_each: bool = False,
    lanes: int = 32,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Optimise a program in place: every pass of `pipeline`, one after the other.

    With `verify_each`, a pass after which the program or the invariant of the phase does not hold is an AssertionError.
    """
    if target != "gpu":
        run_passes(module, pipeline(target, disable, options, lanes), verify_each)
        return
    checked = Checked()
    for phase in PHASES:
        run_passes(module, _configured(phase.passes, disable, options, lanes), verify_each, phase.check, checked)


def run_pass(module: ModuleOp, name: str, verify_each: bool = True) -> None:
    """Run one pass in place, by name, perhaps with settings: ``distribute{memory=padded}``.

    Whoever names a pass means it: InvalidProgram where no kernel is in the form that it works on, and where settings
    are given and nothing changes. Of a pipeline, passes that find nothing to do are a part.
    """
    each = _named(name)
    if each.name in WORKS_ON:
        check_form(module, each.name, *WORKS_ON[each.name], _MAKERS)
    before = print_module(module) if _asks(each) else None
    run_passes(module, [each], verify_each)
    if before is not None and before == print_module(module):
        raise InvalidProgram(f"pass {name!r} changes nothing here", help=_legal(each))


def _asks(each: ModulePass) -> bool:
    """Whether a pass has other settings than the usual, and is not switched off by them."""
    return each != PASSES[each.name] and not any(getattr(each, key, None) == value for key, value in _OFF.items())


def _legal(each: ModulePass) -> str:
    """The sentence in which a pass says where it is legal."""
    found = re.search(r"Legal .*?[.;](?= |$)", " ".join((type(each).__doc__ or "").split()))
    assert found is not None, "every pass says so"
    return found[0]


def _named(text: str) -> ModulePass:
    name, brace, settings = text.partition("{")
    if name not in PASSES:
        if name in RENAMED:
            raise InvalidArgument(f"pass {name!r} has another name now", help=f"write {RENAMED[name]}")
        near = "".join(f"did you mean {close}? " for close in nearest(name, PASSES))
        raise InvalidArgument(f"no pass {name!r}", help=f"{near}one of {', '.join(PASSES)}")
    if brace and (not settings.endswith("}") or "{" in settings):
        raise InvalidArgument(f"settings {brace}{settings} of pass {name!r}", help="in braces: {key=value key=value}")
    given: dict[str, Any] = {}
    for item in settings.removesuffix("}").split():
        key, equals, value = item.partition("=")
        if not equals or key in given:
            wrong = "two values for" if equals else "no value for"
            raise InvalidArgument(f"{wrong} {key!r} of pass {name!r}", help="{key=value key=value}")
        number = re.fullmatch(r"-?[0-9]+", value)
        given[key] = value == "true" if value in ("true", "false") else int(value) if number else value
    return _with(PASSES[name], given)


def _with(each: ModulePass, given: Mapping[str, Any]) -> ModulePass:
    """A pass with other settings; raises InvalidArgument for one that it does not have."""
    own = {field.name: getattr(each, field.name) for field in fields(each)}
    for key, value in given.items():
        if key not in own or type(value) is not type(own[key]):
            known = " ".join(f"{name}={value}" for name, value in own.items()) or "no settings"
            raise InvalidArgument(f"pass {each.name!r} has no {key}={value}", help=f"it has {known}")
    return replace(each, **given) if given else each
