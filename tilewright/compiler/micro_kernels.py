"""Hand-written bodies of micro-kernels (spec 1, section 4): registered once, proven against the semantics, then chosen.

A micro-kernel is the record of an outer product of registers: what it computes, the shapes and layouts of its operands,
its cost. Code generation makes its body from the mapping, step by step of the instruction. `register` takes a function
that emits the whole of it instead, runs it on this machine, and holds it against `execute`, the reference behaviour of
the record. Products whose register tile has the record's shape then take it, where `Options.intrinsics` has the record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType, EllipsisType, FunctionType
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.cpu import pipeline
from tilewright.codegen.cpu.dot import BODIES, Body
from tilewright.codegen.cpu.target import described
from tilewright.errors import CompileError, InvalidArgument, InvalidIntrinsic
from tilewright.expr import dtypes
from tilewright.intrinsics.composite import outer
from tilewright.intrinsics.elements import is_float, storage
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.intrinsic import Intrinsic, Operand
from tilewright.intrinsics.registry import Registry
from tilewright.kernel import dialect as tile
from tilewright.kernel.printing import print_module
from tilewright.kernel.records import carry
from tilewright.kernel.verify import verify
from tilewright.lower.builder import KernelBuilder, view_type
from tilewright.machine import host
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.loader import missing_features
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.memory import allocate
from tilewright.runtime.module import Module

Array = np.ndarray[Any, Any]

PROBED = 3  # calls of a body in a test of it, and one step more, which is left to the mapping's where it is no call


class WrongMicroKernel(CompileError):
    """A body that does not compute what its record says, or cannot be tested here."""

    code = "wrong-micro-kernel"


def register(name: str, base: Intrinsic, rows: int, registers: int, body: Body, *, steps: int = 1) -> Intrinsic:
    """A micro-kernel of `rows` x `registers` accumulators and `steps` of k, made of `base`, with a body of its own.

    `body(at, a, b, c)` emits ``c + a @ b`` with llvmlite: `at.builder` builds, `a(m, step)` is the scalar of a row (the
    word of its neighbours, for an instruction on groups), `b[step]()` the registers of a row of b, each to be asked for
    once; c has `rows` lists of registers, and the result is such lists. The record is for `Registry.add`; the name of
    its emitter has that of the record and a digest of `body`, so that no cache takes one for another.

    Raises InvalidArgument for a `base` that is no multiply-add of a scalar and a vector and for arguments of other
    types, InvalidIntrinsic for a base that code generation does not emit and for a name that is none, WrongMicroKernel
    for a body whose results differ from `intrinsics.execute`, that fails or has no digest, and where this machine
    cannot run it.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name):
        raise InvalidIntrinsic(f"{name!r} is no name of a micro-kernel", help="a letter, then letters, digits and _")
    if not isinstance(base, Intrinsic):
        raise InvalidArgument(f"base is a {type(base).__name__}", where="register", help="an Intrinsic")
    if any(type(number) is not int for number in (rows, registers, steps)):
        given = f"{rows!r} rows, {registers!r} registers, {steps!r} steps"
        raise InvalidArgument(given, where="register", help="whole numbers")
    if not base.emitter:
        raise InvalidIntrinsic(f"{base.name} is not emitted", help="a record with an emitter, as `multiply_add` makes")
    whole = outer(base, rows, registers, steps)
    full = f"{name}_{rows}x{registers}x{steps}_{base.name}"
    emitter = f"{full}.{_digest(body, full)}"
    record = replace(whole, name=full, emitter=emitter)
    known = Registry((record, base))
    before = BODIES.get(emitter)
    calls = _Calls(body)
    BODIES[emitter] = calls
    try:
        _prove(record, base, known, calls)
    except BaseException:
        del BODIES[emitter]
        if before is not None:
            BODIES[emitter] = before
        raise
    BODIES[emitter] = body
    return record


def _digest(body: Callable[..., Any], name: str) -> str:
    """A short text that changes with the code of a function and with the values it was made with; the same in each
    process. These are defaults, variables of the function around it, numbers of its module, arguments of `partial`.
    Raises WrongMicroKernel for values of other kinds.
    """
    try:
        return hashlib.sha256(repr(_parts(body)).encode()).hexdigest()[:8]
    except _NoDigest as error:
        fact = f"its body holds a value of type {error}, which gives it no digest"
        raise WrongMicroKernel(fact, where=name, help="a function, of numbers and texts and other functions") from error


class _NoDigest(Exception):
    """A value without a text that says all of it."""


def _parts(value: Any, around: tuple[Any, ...] = ()) -> Any:
    """What a function, a code object or a plain value consists of, as values whose `repr` is the same everywhere."""
    if any(value is each for each in around):
        return "itself"  # a function that calls itself
    inside = partial(_parts, around=(*around, value))
    match value:
        case CodeType():
            return value.co_code, value.co_names, tuple(map(inside, value.co_consts))
        case FunctionType():
            cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
            named = sorted((value.__kwdefaults__ or {}).items())
            seen = {each: value.__globals__.get(each) for each in value.__code__.co_names}
            numbers = [(each, found) for each, found in seen.items() if isinstance(found, bool | int | float | str)]
            return inside(value.__code__), *map(inside, (value.__defaults__ or (), named, cells, numbers))
        case partial():
            return inside(value.func), inside(value.args), inside(sorted(value.keywords.items()))
        case tuple() | list():
            return tuple(map(inside, value))
        case set() | frozenset():
            return tuple(sorted(repr(inside(each)) for each in value))
        case dict():
            return tuple((inside(key), inside(each)) for key, each in value.items())
        case None | bool() | int() | float() | complex() | str() | bytes() | EllipsisType():
            return value
        case Intrinsic():
            return repr(value)
    raise _NoDigest(type(value).__name__)


class _Calls:
    """A body that counts its calls."""

    def __init__(self, body: Body) -> None:
        self.body, self.count = body, 0

    def __call__(self, *arguments: Any) -> Sequence[Sequence[Any]]:
        self.count += 1
        return self.body(*arguments)


# Differential test ----------------------------------------------------------------------------------------------------


def _prove(record: Intrinsic, base: Intrinsic, known: Registry, calls: _Calls) -> None:
    """Hold a body against the semantics of its record on inputs that sum up exactly, and on what is no number."""
    lacking = ", ".join(missing_features(record.features))
    if lacking:
        raise _wrong(record, f"it cannot be tested on this machine, which lacks {lacking}", "a machine that has them")
    depth = PROBED * record.grid[2] + 1
    probe = replace(outer(base, *record.grid[:2], depth), name=f"probe of {record.name}")
    run = _compiled(record, base, known, depth)
    if not calls.count:
        registers = f"{record.grid[1]} registers of {record.extents['i2'] // record.grid[1]} elements"
        raise _wrong(record, f"tiles of this machine have no {registers}", "a `base` with registers as wide as its own")
    generator = np.random.default_rng(0)
    for special in (False, False, True):
        a, b, c = (_values(probe, operand, generator, special) for operand in probe.operands)
        with np.errstate(all="ignore"):
            _compare(record, run(a, b, c), execute(probe, c, a, b))


def _values(record: Intrinsic, operand: Operand, generator: np.random.Generator, special: bool) -> Array:
    """A tile of small whole numbers, which any order of sums adds up exactly; one of them is infinite or a NaN."""
    shape, kind = record.shape(operand), storage(operand.dtype)
    low = 0 if operand.dtype.startswith("u") else -8
    found: Array = generator.integers(low, 9, shape).astype(kind)
    if special and is_float(operand.dtype):
        found[tuple(int(generator.integers(extent)) for extent in shape)] = np.nan
        found[tuple(int(generator.integers(extent)) for extent in shape)] = np.inf
    elif special and operand.role != "Dst":
        found[...] = generator.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, endpoint=True, dtype=kind)
    return found


def _compare(record: Intrinsic, found: Array, wanted: Array) -> None:
    """Raises WrongMicroKernel at the first element that differs."""
    given, expected = (each.astype(np.float64) for each in (found, wanted))
    same = (given == expected) | (np.isnan(given) & np.isnan(expected))
    if same.all():
        return
    i1, i2 = map(int, np.argwhere(~same)[0])
    raise _wrong(
        record,
        f"Dst[i1={i1}, i2={i2}] is {given[i1, i2]:g}, and not {expected[i1, i2]:g}; {int((~same).sum())} of "
        f"{same.size} elements differ",
        f"{record.compute} over {PROBED} calls, from sums that are not 0",
    )


def _wrong(record: Intrinsic, message: str, help: str) -> WrongMicroKernel:
    return WrongMicroKernel(message, where=record.name, help=help)


def _compiled(
    record: Intrinsic, base: Intrinsic, known: Registry, depth: int
) -> Callable[[Array, Array, Array], Array]:
    """One product of tiles over `depth` steps as machine code: what it makes of a, b and sums."""
    m, n = record.shape(record.destination)
    group = record.extents["r1"] // record.grid[2]
    k = depth * group
    kinds = [operand.dtype for operand in record.operands]
    program = _program(base.name, (m, n, k), group, kinds)
    program.attributes["tile.target"] = described(host()).attribute()
    carry(program, known)
    verify(program)
    try:
        made = pipeline.generate(program)
    except CompileError as error:
        raise _wrong(record, error.message, error.help or "registers as they are given") from error
    except Exception as error:  # of a body, which may do anything, or of LLVM about what it has built
        raise _wrong(
            record, f"its body fails: {error}", "operations of llvmlite on registers as they are given"
        ) from error
    shapes = {"a": (m * k,), "b": (k * n,), "c": (m * n,)}
    specs = tuple(TensorSpec(name, kind, shape) for (name, shape), kind in zip(shapes.items(), kinds, strict=True))
    manifest = Manifest(
        name="micro-kernel", inputs=specs, outputs=(replace(specs[2], name="d"),),
        features=tuple(sorted(host().features)), triple=made.target.triple, **made.parts(),
    )  # fmt: skip
    artifact = Artifact(manifest, made.code, allocate(0), print_module(program), "{}", "{}")
    try:
        module = Module(artifact, threads=1, options=Options(cache=False))
    except CompileError as error:
        raise _wrong(record, f"its code cannot be loaded: {error.message}", "functions of LLVM alone") from error

    def run(a: Array, b: Array, c: Array) -> Array:
        if group > 1:  # steps, columns, neighbours
            b = b.reshape(depth, group, n).transpose(0, 2, 1)
        result = module(*(np.ascontiguousarray(each).reshape(-1) for each in (a, b, c)))
        return np.asarray(result).reshape(m, n)

    return run


def _program(instruction: str, shape: tuple[int, int, int], group: int, kinds: Sequence[dtypes.DType]) -> ModuleOp:
    """A tile program that multiplies one tile of a and b and adds it to one of c."""
    m, n, k = shape
    sizes = (m * k, k * n, m * n, m * n)
    views = [view_type(kind, size) for kind, size in zip((*kinds, kinds[2]), sizes, strict=True)]
    func = tile.FuncOp("product", views, [1])
    builder = KernelBuilder(func.body.block)
    zero = builder.index(0)
    in_a, in_b, in_c, out = func.body.block.args
    a = builder.insert(tile.LoadOp(in_a, zero, [m, k], [k, 1]))
    extents, strides = ([k // group, n, group], [n * group, group, 1]) if group > 1 else ([k, n], [n, 1])
    b = builder.insert(tile.LoadOp(in_b, zero, extents, strides))
    c = builder.insert(tile.LoadOp(in_c, zero, [m, n], [n, 1]))
    unsigned = "".join(label for label, kind in zip("ab", kinds, strict=False) if dtypes.is_unsigned(kind))
    builder.insert(tile.StoreOp(builder.insert(tile.DotOp(instruction, a, b, c, unsigned)), out, zero, [n, 1]))
    builder.insert(tile.ReturnOp())
    main = tile.MainOp(0, 0)
    places = [("input", 0), ("input", 1), ("input", 2), ("output", 0)]
    buffers = [tile.BufferOp(space, number, view) for (space, number), view in zip(places, views, strict=True)]
    main.body.block.add_ops([*buffers, tile.LaunchOp("product", [each.result for each in buffers])])
    return ModuleOp([func, main])
