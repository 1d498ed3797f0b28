"""Errors planted in the distributed form of small kernels, one at a time, and what its interpreter says of them.

    python -m tests.distributed_mutations [FAMILY]

For machines whose code nothing runs here: what passes make for them runs before it becomes code. Every kind of error is
planted at every operation that can have it: barriers, stores, products, masks and terms of addresses left out, other
constants, places, registers and fragments. An error is found if the program is refused, by the verifier or while it
runs, or if its result is not that of the program as it was. `EQUIVALENT` lists those that change nothing, with the
reason. Exit status 1 where another one survives.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Operation

from tests import equivalents
from tilewright.codegen.amdgpu.target import target_for
from tilewright.errors import CompileError
from tilewright.kernel.dialect import INDEX, LoadOp, SelectOp, StoreOp, shape, strides_of
from tilewright.kernel.indices import constant_index
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.rewrite import erase, insert_before, replace_by_values
from tilewright.kernel.simt import BarrierOp, MmaOp, PartOp
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module
from tilewright.kernel.verify import verify
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve

Array = np.ndarray[Any, Any]


def _arrays(result: Any, size: int, *given: tuple[int, Any]) -> tuple[Array, ...]:
    """Small whole numbers, none of them zero, whose sums are exact in any order; and a result that nobody wrote."""
    rng = np.random.default_rng(0)
    found = [(rng.integers(1, 4, n) * rng.choice([-1, 1], n)).astype(dtype) for n, dtype in given]
    return (*found, np.full(size, -1 if result is np.int32 else np.nan, result))


_H, _B, _S, _F = np.float16, ml_dtypes.bfloat16, np.int8, np.float32
FAMILIES: dict[str, tuple[str, str, tuple[Array, ...]]] = {
    "gfx1100, ragged": ("gfx1100", programs.ragged_matmul((40, 40, 88), (32, 32, 32), "wmmar3_16x16x16_f16_f32"),
                        _arrays(_F, 1600, (3520, _H), (3520, _H))),
    "gfx1201": ("gfx1201", programs.matmul((32, 64, 64), (32, 32, 32), "wmmar4_16x16x16_bf16_f32", "bf16"),
                _arrays(_F, 2048, (2048, _B), (4096, _B))),
    "gfx1201, s8, ragged": ("gfx1201", programs.ragged_matmul((40, 40, 80), (32, 32, 32), "wmmar4_16x16x16_s8_s32",
                            "i8", "", "i32"), _arrays(np.int32, 1600, (3200, _S), (3200, _S))),
    "gfx942": ("gfx942", programs.matmul((32, 32, 96), (32, 32, 32), "mfma_16x16x16_f16_f32"),
               _arrays(_F, 1024, (3072, _H), (3072, _H))),
    "gfx942, softmax": ("gfx942", programs.softmax(8, 1, 512),
                        (np.random.default_rng(0).standard_normal(4096).astype(_F), np.full(4096, np.nan, _F))),
    "gfx1100, transposition": ("gfx1100", programs.transposition(32, 32, "f16"),
                               (np.random.default_rng(0).standard_normal(1024).astype(_H), np.full(1024, np.nan, _H))),
}  # fmt: skip
"""Kernels: a machine, a tile program @k, its arguments, the last of which is the result."""


@cache
def program_of(name: str) -> ModuleOp:
    """The distributed form of a family, made once."""
    machine, text, _ = FAMILIES[name]
    found, module = resolve(machine), parse_module(text)
    assert isinstance(found, Gpu)
    target = target_for(found)
    module.attributes[ATTRIBUTE] = target.attribute()
    run_pipeline(module, "gpu", lanes=target.lanes)
    return module


def run(name: str, module: ModuleOp) -> Array:
    """The last argument after a run; CompileError where something is found."""
    arguments = [each.copy() for each in FAMILIES[name][2]]
    with np.errstate(all="ignore"):
        run_kernel(module, "k", arguments, races=True)
    return arguments[-1]


# Errors ---------------------------------------------------------------------------------------------------------------

Plant = Callable[[], object]


def _moved(op: Operation, index: int, distance: int) -> None:
    """Let an operation read an index that is larger by a distance."""
    constant = arith.ConstantOp(IntegerAttr(distance, INDEX))
    more = arith.AddiOp(op.operands[index], constant.result)
    insert_before(op, constant, more)
    op.operands[index] = more.result


def _missing(kind: type[Operation], op: Operation) -> Iterator[Plant]:
    if isinstance(op, kind):
        yield partial(erase, op)


def _no_mask(op: Operation) -> Iterator[Plant]:
    """An access without its mask; what is done under a condition done always."""
    if isinstance(op, LoadOp | StoreOp) and op.mask is not None:
        yield partial(_unmask, op)
    if isinstance(op, scf.IfOp) and not op.results:
        yield partial(_always, op)


def _unmask(op: LoadOp | StoreOp) -> None:
    strides, align = strides_of(op), None if op.align is None else op.align.value.data
    if isinstance(op, LoadOp):
        made = LoadOp(op.view, op.offset, shape(op.result), strides, op.bounds, None, align)
        insert_before(op, made)
        replace_by_values(op, [made.result])
    else:
        insert_before(op, StoreOp(op.value, op.view, op.offset, strides, op.bounds, None, False, align))
        erase(op)


def _always(op: scf.IfOp) -> None:
    condition = arith.ConstantOp(IntegerAttr(1, 1))
    insert_before(op, condition)
    op.operands[0] = condition.result


_TERMS = arith.XOrIOp | arith.AddiOp | arith.OrIOp | arith.AndIOp | arith.MuliOp | arith.ShLIOp


def _no_term(op: Operation) -> Iterator[Plant]:
    if isinstance(op, _TERMS):
        for value in op.operands if constant_index(op.operands[1]) is None else op.operands[:1]:
            yield partial(replace_by_values, op, [value])


def _other_constant(op: Operation) -> Iterator[Plant]:
    """A number that is more by its lowest bit, which then is another one."""
    for index, value in enumerate(op.operands):
        number = constant_index(value) if isinstance(value.type, IndexType) else None
        if number is not None:
            yield partial(_moved, op, index, max(1, number & -number))


def _other_place(op: Operation) -> Iterator[Plant]:
    """The next place of as many elements."""
    if isinstance(op, LoadOp | StoreOp):
        value = op.result if isinstance(op, LoadOp) else op.value
        yield partial(_moved, op, list(op.operands).index(op.offset), max(1, *shape(value), 1))


def _other_register(op: Operation) -> Iterator[Plant]:
    if isinstance(op, PartOp):
        start = (op.start.value.data + shape(op.result)[0]) % shape(op.value)[0]
        yield partial(op.properties.__setitem__, "start", IntegerAttr(start, 64))


def _other_fragment(op: Operation) -> Iterator[Plant]:
    """No product; a or b of the last product before that has another one."""
    if isinstance(op, MmaOp):
        yield partial(replace_by_values, op, [op.c])
        block = op.parent
        assert block is not None
        before = [each for each in block.ops if isinstance(each, MmaOp) and each.is_before_in_block(op)]
        for index in range(2):
            found = [each.operands[index] for each in before if each.operands[index] is not op.operands[index]]
            if found:
                yield partial(op.operands.__setitem__, index, found[-1])


def _other_choice(op: Operation) -> Iterator[Plant]:
    if isinstance(op, SelectOp):
        yield from (partial(replace_by_values, op, [value]) for value in op.operands[1:])


ERRORS: dict[str, Callable[[Operation], Iterator[Plant]]] = {
    "no barrier": partial(_missing, BarrierOp), "no store": partial(_missing, StoreOp), "no mask": _no_mask,
    "no term": _no_term, "other constant": _other_constant, "other place": _other_place,
    "other register": _other_register, "other fragment": _other_fragment, "other choice": _other_choice,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """An error at the operation of this number, the first, second … of its kind there; `was` is the operation."""

    family: str
    kind: str
    site: int
    turn: int
    was: str

    def __str__(self) -> str:
        return f"{self.family}: {self.kind} ({self.turn}) at operation {self.site}: {self.was}"


@cache
def mutants(name: str) -> tuple[Mutant, ...]:
    """Every error at every operation of a kernel."""
    return tuple(
        Mutant(name, kind, site, turn, _text(op))
        for site, op in enumerate(program_of(name).walk())
        for kind, errors in ERRORS.items()
        for turn, _ in enumerate(errors(op))
    )


def _text(op: Operation) -> str:
    """An operation in a line: names and numbers that it reads, names of what gives those that have none."""
    read = []
    for value in op.operands:
        number = constant_index(value)
        maker = value.owner.name if isinstance(value.owner, Operation) else "argument"
        read.append(str(number) if number is not None else value.name_hint or maker)
    return f"{op.name} {', '.join(read)} -> {', '.join(str(result.type) for result in op.results)}"


# What is found --------------------------------------------------------------------------------------------------------


@cache
def _unharmed(name: str) -> bytes:
    return run(name, program_of(name)).tobytes()


def seen(mutant: Mutant) -> str:
    """How an error shows: "refused" or "wrong result"; "" where it does not."""
    module = program_of(mutant.family).clone()
    op = next(op for site, op in enumerate(module.walk()) if site == mutant.site)
    list(ERRORS[mutant.kind](op))[mutant.turn]()
    try:
        verify(module)
        found = run(mutant.family, module)
    except CompileError:
        return "refused"
    return "" if found.tobytes() == _unharmed(mutant.family) else "wrong result"


_NO_OTHER_BITS = "The bits of a thread's number that go are shifted out, or no thread has them."
_WHOLE = "The first slice of k is whole: the bound along k lets all of it through."
_NOT_STORED = "Columns of b beyond the bound, in rows that others follow: what is read lies in b, their sums nowhere."
_ZEROS = "Beyond k: what is read is multiplied by zeros of the other factor, for which the bound stands."
_ALL_LANES = "All lanes of a wave have its result: another one of them writes it."
EQUIVALENT: list[equivalents.Entry] = [
    (".*", "no term", r"arith\.andi simt\.thread_id, (124|248|192|255) ", (0, 1), _NO_OTHER_BITS),
    ("gfx1.*", "no term", r"arith\.andi arith\.shrui, 1 ", (5,), _NO_OTHER_BITS),
    ("gfx942", "no term", r"arith\.andi arith\.shrui, 1 ", (6,), _NO_OTHER_BITS),
    (".*ragged", "no term", r"arith\.andi tile\.compare, tile\.compare", (0, 3, 5), _WHOLE),
    (".*ragged", "other constant", r"tile\.compare \S+, (88|80) ", (0, 1, 2), _WHOLE),
    (".*ragged", "no term", r"arith\.andi tile\.compare, tile\.compare", (2, 4, 8), _NOT_STORED),
    (".*ragged", "no mask", r"tile\.load b,", (0, 1), f"{_WHOLE} {_NOT_STORED}"),
    (".*ragged", "other constant", r"scf\.for 0, 64, 32", (1,), f"Two slices more. {_ZEROS}"),
    ("gfx1100, ragged", "other place", r"tile\.load simt\.shared, arith\.xori -> tensor<8xf16>", (8,), _ZEROS),
    ("gfx942, softmax", "other constant", r"tile\.compare arith\.andi, 0 ", (0,), _ALL_LANES),
]  # fmt: skip
"""Errors that change nothing: family and kind, a pattern of the operation, which of those that match, and why."""


def reason(mutant: Mutant) -> str:
    """Why an error changes nothing, from `EQUIVALENT`; "" where it is not listed."""
    return equivalents.reason(mutant, mutants(mutant.family), EQUIVALENT)


def main() -> int:
    """Plant every error in the families that are named, or in all."""
    counts: dict[str, Counter[str]] = {}
    left = []
    for mutant in (each for name in sys.argv[1:] or FAMILIES for each in mutants(name)):
        outcome = "found" if seen(mutant) else "equivalent" if reason(mutant) else "survived"
        left += [mutant] if outcome != "found" else []
        for each in ("all", mutant.family, mutant.kind):
            counts.setdefault(each, Counter())[outcome] += 1
    for name, outcomes in counts.items():
        print(f"{name:24}", *(f"{what} {count}" for what, count in sorted(outcomes.items())))
    for mutant in left:
        print(mutant, f"\n    {reason(mutant) or 'SURVIVED'}")
    return int(any(not reason(each) for each in left))


if __name__ == "__main__":
    sys.exit(main())
