"""Elementary functions against float64 and mpmath, for all targets, and no call of a library."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from tests.covering import rows, some
from tilewright.codegen.cpu.target import Target
from tilewright.codegen.math import MATH, coefficients
from tilewright.codegen.math.trigonometric import TRIGONOMETRIC_LIMIT
from tilewright.expr.special import erf as numpy_erf
from tilewright.expr.special import normal_cdf, normal_cdf_tanh
from tilewright.machine import Cpu, host, missing_features, resolve_cpu

mp = pytest.importorskip("mpmath")
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()

Array = np.ndarray[Any, Any]
MACHINES = ("x86-64-v4", "x86-64-v2", "aarch64", "x86-64-v3")
USUAL = {"f32": 16, "f64": 8}  # lanes by element: what is compiled for one test serves the others


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


WIDE: dict[str, Callable[..., Array]] = {  # truth for float32: float64
    "exp2": np.exp2, "exp_nonpositive": np.exp,
    "exp": np.exp, "expm1": np.expm1, "sigmoid": _sigmoid, "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh,
    "log": np.log, "log1p": np.log1p, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "pow": np.power, "erf": numpy_erf, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "normal_cdf": normal_cdf, "normal_cdf_tanh": normal_cdf_tanh,
}  # fmt: skip
EXACT: dict[str, Callable[..., Any]] = {  # truth for float64: 60 digits
    "exp2": lambda x: mp.power(2, x), "exp_nonpositive": mp.exp,
    "exp": mp.exp, "expm1": mp.expm1, "sigmoid": lambda x: 1 / (1 + mp.exp(-x)), "tanh": mp.tanh,
    "sinh": mp.sinh, "cosh": mp.cosh, "log": mp.log, "log1p": mp.log1p, "asinh": mp.asinh, "acosh": mp.acosh,
    "atanh": mp.atanh, "pow": mp.power, "erf": mp.erf, "sin": mp.sin, "cos": mp.cos, "tan": mp.tan,
    "asin": mp.asin, "acos": mp.acos, "atan": mp.atan,
    "normal_cdf": lambda x: mp.erfc(-max(min(x, mp.mpf(40)), mp.mpf(-60)) / mp.sqrt(2)) / 2,
    "normal_cdf_tanh": lambda x: 1 / (1 + mp.exp(-mp.sqrt(8 / mp.pi) * (x + mp.mpf("0.044715") * x**3))),
}  # fmt: skip
ULPS: dict[str, tuple[float, float]] = {  # bounds of f32 and f64, as the docstrings say
    "exp2": (1.2, 1.3), "exp_nonpositive": (91.0, 1.3),
    "exp": (1.2, 1.3), "expm1": (1.6, 2.0), "sigmoid": (2.2, 1.8), "tanh": (2.5, 2.7), "sinh": (2.3, 2.5),
    "cosh": (1.5, 1.4), "log": (1.0, 0.9), "log1p": (1.0, 0.9), "asinh": (1.8, 1.7), "acosh": (2.1, 1.8),
    "atanh": (2.0, 1.8), "pow": (0.51, 1.7), "erf": (1.9, 2.2), "sin": (1.6, 2.4), "cos": (1.6, 2.0),
    "tan": (3.1, 3.2), "asin": (2.4, 2.2), "acos": (1.2, 1.3), "atan": (1.9, 1.7),
    "normal_cdf": (4.1, 3.5), "normal_cdf_tanh": (3.5, 3.5),
}  # fmt: skip
NEAR: dict[str, tuple[float, float]] = {  # where most samples are taken, besides all magnitudes
    "exp2": (-155, 130), "exp_nonpositive": (-110, 0),
    "exp": (-110, 95), "expm1": (-20, 90), "sigmoid": (-110, 40), "tanh": (-12, 12), "sinh": (-90, 90),
    "cosh": (-90, 90), "log": (0, 8), "log1p": (-1, 3), "asinh": (-8, 8), "acosh": (1, 9), "atanh": (-1, 1),
    "erf": (-5, 5), "sin": (-50, 50), "cos": (-50, 50), "tan": (-50, 50), "asin": (-1, 1), "acos": (-1, 1),
    "atan": (-6, 6), "normal_cdf": (-14.5, 6), "normal_cdf_tanh": (-11, 6),
}  # fmt: skip


FLUSHED = ("exp_nonpositive",)  # of numbers of at most 0; what is no normal number in f32 may be 0


def module_for(name: str, element: str, lanes: int, target: Target | None) -> ir.Module:
    """``void apply(ptr x, ptr y, ptr out, i64 vectors)``, with `lanes` elements to a vector (0: scalars)."""
    scalar = ir.FloatType() if element == "f32" else ir.DoubleType()
    type_ = ir.VectorType(scalar, lanes) if lanes else scalar
    module = ir.Module()
    i64, pointer = ir.IntType(64), ir.PointerType()
    signature = ir.FunctionType(ir.VoidType(), [pointer, pointer, pointer, i64])
    function = ir.Function(module, signature, "apply")
    x, y, out, count = function.args
    entry, body, done = (function.append_basic_block(label) for label in ("entry", "body", "done"))
    builder = ir.IRBuilder(entry)
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(i64)
    index.add_incoming(i64(0), entry)
    offset = builder.mul(index, i64(max(lanes, 1)))
    align = 4 if element == "f32" else 8
    arguments = [
        builder.load(builder.gep(array, [offset], source_etype=scalar), typ=type_, align=align)
        for array in ((x, y) if name == "pow" else (x,))
    ]
    result = MATH[name](builder, *arguments, target)
    builder.store(result, builder.gep(out, [offset], source_etype=scalar), align=align)
    step = builder.add(index, i64(1))
    index.add_incoming(step, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", step, count), body, done)
    builder.position_at_end(done)
    builder.ret_void()
    return module


def target_for(machine: Cpu) -> Target:
    return Target(machine.llvm.triple, machine.llvm.cpu, tuple(sorted(machine.features)), machine.vector_bits)


def target_machine(machine: Cpu) -> Any:
    found = llvm.Target.from_triple(machine.llvm.triple)
    return found.create_target_machine(
        cpu=machine.llvm.cpu, features=machine.llvm.features, opt=3, reloc="pic", codemodel="small"
    )


def optimised(module: ir.Module, machine: Cpu, level: int = 3) -> tuple[Any, Any]:
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    backend = target_machine(machine)
    parsed.triple = machine.llvm.triple
    builder = llvm.create_pass_builder(backend, llvm.create_pipeline_tuning_options(level))
    builder.getModulePassManager().run(parsed, builder)
    return parsed, backend


@functools.cache
def compiled(name: str, element: str, lanes: int, machine_name: str, told: bool) -> Callable[..., Array]:
    """The function over arrays, executed on the host with the instructions of the named machine."""
    machine = host() if machine_name == "host" else resolve_cpu(machine_name)
    module = module_for(name, element, lanes, target_for(machine) if told else None)
    parsed, backend = optimised(module, machine)
    engine = llvm.create_mcjit_compiler(parsed, backend)
    engine.finalize_object()
    address = engine.get_function_address("apply")
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    width = max(lanes, 1)

    def call(x: Array, y: Array | None = None) -> Array:
        kind = np.float32 if element == "f32" else np.float64
        padded = -(-len(x) // width) * width
        columns = [np.zeros(padded, kind) for _ in range(3)]
        columns[0][: len(x)] = x
        columns[1][: len(x)] = x if y is None else y
        native(*(column.ctypes.data for column in columns), padded // width)
        assert engine  # keeps the code alive
        return columns[2][: len(x)]

    return call


def samples(name: str, element: str, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Arguments of all magnitudes, dense ones where the function lives, and special ones; the second for pow."""
    generator = np.random.default_rng(seed)
    kind, bits = (np.float32, np.uint32) if element == "f32" else (np.float64, np.uint64)
    special = np.array(
        [0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, np.finfo(kind).max, -np.finfo(kind).max,
         np.finfo(kind).tiny, -np.finfo(kind).tiny, np.finfo(kind).smallest_subnormal, 1e-3, 0.99999994, 1.0000001,
         1.125, 0.375, 0.25, np.pi, np.pi / 2, -np.pi / 4, np.log(2), 88.72284, -87.33655, -103.97208, 709.7827,
         -745.13, 1e5, 1.6e6, 1e7, 1e22, 22.0, 355.0, 1e10], kind,
    )  # fmt: skip
    any_bits = generator.integers(0, np.iinfo(bits).max, count // 2, dtype=bits, endpoint=True).view(kind)
    if name == "pow":
        x = np.exp(generator.uniform(-8, 8, count // 2)).astype(kind)
        y = generator.uniform(-20, 20, count // 2).astype(kind)
        small = (1 + generator.normal(0, 1e-3, count // 4)).astype(kind)
        steep = generator.uniform(-5e4, 5e4, count // 4).astype(kind)
        whole = generator.integers(-9, 9, count // 4).astype(kind)
        pairs = [(x, y), (small, steep), (-x[: count // 4], whole), (any_bits, any_bits[::-1]),
                 (np.repeat(special, len(special)), np.tile(special, len(special)))]  # fmt: skip
        return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])
    low, high = NEAR[name]
    if element == "f64" and high > 80:
        low, high = low * 8, high * 8
    dense = generator.uniform(low, high, count // 2).astype(kind)
    zero = (generator.choice([-1, 1], count // 4) * 2.0 ** generator.uniform(-30, 4, count // 4)).astype(kind)
    x = np.concatenate([special, any_bits, dense, zero])
    x = -np.abs(x) if name in FLUSHED else x
    return x, x


def ulps_single(name: str, got: Array, x: Array, y: Array) -> Array:
    """Errors in units of the last place of float32, infinite where only one side is NaN or the sign is wrong."""
    with np.errstate(all="ignore"):  # signalling NaN
        wide = [value.astype(np.float64) for value in ((x, y) if name == "pow" else (x,))]
        truth = WIDE[name](*wide)
        rounded = truth.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(np.float32).tiny)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - truth) / unit
    if name in FLUSHED:
        tiny = np.finfo(np.float32).tiny
        error = np.where((truth < tiny) & (got >= 0) & (got <= tiny), 0.0, error)
    finite = np.isfinite(rounded) & np.isfinite(got)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(finite, error, np.where(same, 0.0, np.inf))
    return np.where((rounded == 0) & (got == 0) & (np.signbit(rounded) != np.signbit(got)), np.inf, error)


def ulps_double(name: str, got: Array, x: Array, y: Array) -> Array:
    """As `ulps_single`, for float64; NumPy decides what is NaN, infinite or zero, mpmath how large the error is."""
    with np.errstate(all="ignore"):
        rounded = WIDE[name](*((x, y) if name == "pow" else (x,)))
    errors = np.zeros(len(x))
    with mp.workdps(60):
        for i in range(len(x)):
            if np.isfinite(got[i]) and np.isfinite(rounded[i]):
                arguments = [mp.mpf(float(value[i])) for value in ((x, y) if name == "pow" else (x,))]
                if name == "pow" and arguments[0] < 0:
                    arguments[0] = -arguments[0]
                if abs(x[i]) < 1e-300 or not np.isfinite(x[i]) or not np.isfinite(y[i]):
                    errors[i] = abs(got[i] - rounded[i]) / math.ulp(max(abs(rounded[i]), np.finfo(float).tiny))
                    continue
                if abs(x[i]) > 1e15 and name in ("sin", "cos", "tan"):
                    with mp.workdps(360):
                        truth = EXACT[name](*arguments)
                else:
                    truth = EXACT[name](*arguments)
                value = abs(mp.mpf(float(got[i]))) if name == "pow" else mp.mpf(float(got[i]))
                unit = math.ulp(max(abs(rounded[i]), np.finfo(float).tiny))
                errors[i] = float(abs(value - truth) / mp.mpf(float(unit)))
                if name == "pow" and np.sign(got[i]) * np.sign(rounded[i]) < 0:
                    errors[i] = np.inf
            elif not (got[i] == rounded[i] or (np.isnan(got[i]) and np.isnan(rounded[i]))):
                errors[i] = np.inf
            if rounded[i] == 0 and got[i] == 0 and np.signbit(rounded[i]) != np.signbit(got[i]):
                errors[i] = np.inf
    return errors


def worst(errors: Array, got: Array, x: Array, y: Array) -> str:
    at = int(np.argmax(errors))
    return f"{errors[at]:.3f} ulp at {x[at]!r} (and {y[at]!r}): {got[at]!r}"


@pytest.mark.covering(1)
@pytest.mark.parametrize("told", [True, False], ids=["told", "portable"])
@pytest.mark.parametrize("name", MATH)
def test_single_within_bound(name: str, told: bool) -> None:
    x, y = samples(name, "f32", 200_000)
    got = compiled(name, "f32", 16, "host", told)(x, y)
    errors = ulps_single(name, got, x, y)
    assert errors.max() <= ULPS[name][0], worst(errors, got, x, y)


@pytest.mark.skipif(not target_for(host()).fma, reason="the bound is that of fused multiply-adds")
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf"])
def test_activations_within_two_ulps(name: str) -> None:
    x, y = samples(name, "f32", 400_000, seed=4)
    got = compiled(name, "f32", 16, "host", True)(x, y)
    errors = ulps_single(name, got, x, y)
    assert errors.max() <= 2.001, worst(errors, got, x, y)


@pytest.mark.parametrize("target", [True, False], ids=["target", "portable"])
def test_errors_of_exponentials_of_a_softmax_grow_from_0_on(target: bool) -> None:
    x = -np.concatenate([np.linspace(0, 90, 400_001), 2.0 ** np.linspace(-30, 6, 50_000)]).astype(np.float32)
    got = compiled("exp_nonpositive", "f32", 16, "host", target)(x)
    errors = ulps_single("exp_nonpositive", got, x, x)
    fused = target and target_for(host()).fma
    bound = 2.2 - x / 4 if fused else 2.8 - x
    at = int(np.argmax(errors - bound))
    assert errors[at] <= bound[at], worst(errors, got, x, x)


@pytest.mark.skipif(not target_for(host()).fma, reason="the bound is that of fused multiply-adds")
@pytest.mark.parametrize("sign", [1, -1])
def test_normal_distribution_at_every_magnitude(sign: int) -> None:
    first, last = (int(np.float32(end).view(np.uint32)) for end in (2.0**-30, 14.6))
    x = sign * np.arange(first, last, 97, dtype=np.uint32).view(np.float32)
    got = compiled("normal_cdf", "f32", 16, "host", True)(x)
    errors = ulps_single("normal_cdf", got, x, x)
    assert errors.max() <= 3.5, worst(errors, got, x, x)


@pytest.mark.covering(1)
@pytest.mark.parametrize("told", [True, False], ids=["told", "portable"])
@pytest.mark.parametrize("name", MATH)
def test_double_within_bound(name: str, told: bool) -> None:
    x, y = samples(name, "f64", 1200)
    got = compiled(name, "f64", 8, "host", told)(x, y)
    errors = ulps_double(name, got, x, y)
    assert errors.max() <= ULPS[name][1], worst(errors, got, x, y)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine_name", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", MATH)
def test_other_machines_within_bound(name: str, machine_name: str) -> None:
    if missing_features(resolve_cpu(machine_name), host()):
        pytest.skip(f"this host does not run {machine_name}")
    for element, count, ulps in (("f32", 20_000, ulps_single), ("f64", 200, ulps_double)):
        x, y = samples(name, element, count, seed=1)
        got = compiled(name, element, 8, machine_name, True)(x, y)
        errors = ulps(name, got, x, y)
        assert errors.max() <= ULPS[name][element == "f64"], worst(errors, got, x, y)


@pytest.mark.covering(1)
@pytest.mark.parametrize("lanes", [0, 1, 3, 4, 5, 32])
@pytest.mark.parametrize("name", MATH)
def test_any_number_of_lanes_gives_the_same_bits(name: str, lanes: int) -> None:
    for element, usual in USUAL.items():
        x, y = samples(name, element, 400, seed=2)
        bits = np.int32 if element == "f32" else np.int64
        wide = compiled(name, element, usual, "host", True)(x, y)
        got = compiled(name, element, lanes, "host", True)(x, y)
        different = (got.view(bits) != wide.view(bits)) & ~(np.isnan(got) & np.isnan(wide))
        assert not different.any(), (x[different][:3], y[different][:3])


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize(
    ("name", "argument", "result"),
    [
        ("exp2", 0.0, 1.0), ("exp2", -3.0, 0.125), ("exp2", -1.0e30, 0.0), ("exp2", -np.inf, 0.0),
        ("exp2", np.inf, np.inf), ("exp_nonpositive", 0.0, 1.0), ("exp_nonpositive", -0.0, 1.0),
        ("exp_nonpositive", -1.0e30, 0.0), ("exp_nonpositive", -np.inf, 0.0),
        ("exp", 0.0, 1.0), ("exp", -np.inf, 0.0), ("exp", np.inf, np.inf), ("expm1", -0.0, -0.0), ("log", 1.0, 0.0),
        ("log", 0.0, -np.inf), ("log", -0.0, -np.inf), ("log", -1.0, np.nan), ("log", np.inf, np.inf),
        ("log1p", -0.0, -0.0), ("log1p", -1.0, -np.inf), ("sigmoid", 0.0, 0.5), ("sigmoid", np.inf, 1.0),
        ("sigmoid", -np.inf, 0.0), ("tanh", -0.0, -0.0), ("tanh", np.inf, 1.0), ("erf", -0.0, -0.0),
        ("erf", -np.inf, -1.0), ("sin", -0.0, -0.0), ("sin", np.inf, np.nan), ("cos", 0.0, 1.0),
        ("cos", -np.inf, np.nan), ("tan", -0.0, -0.0), ("asin", -0.0, -0.0), ("asin", 1.5, np.nan), ("acos", 1.0, 0.0),
        ("acos", -1.5, np.nan), ("atan", -0.0, -0.0), ("sinh", -0.0, -0.0), ("cosh", -0.0, 1.0), ("asinh", -0.0, -0.0),
        ("acosh", 1.0, 0.0), ("acosh", 0.5, np.nan), ("atanh", 1.0, np.inf), ("atanh", -0.0, -0.0),
        ("atanh", 2.0, np.nan),
    ],
)  # fmt: skip
def test_exact_results(name: str, argument: float, result: float, element: str) -> None:
    for told in (True, False):
        (got,) = compiled(name, element, USUAL[element], "host", told)(np.array([argument]))
        assert got == result or (np.isnan(got) and np.isnan(result))
        assert np.isnan(result) or np.signbit(got) == np.signbit(result)


@pytest.mark.parametrize("name", sorted(MATH.keys() - {"pow"}))
def test_nan_goes_through(name: str) -> None:
    for element in ("f32", "f64"):
        for told in (True, False):
            assert np.isnan(compiled(name, element, USUAL[element], "host", told)(np.full(7, np.nan))).all()


@pytest.mark.parametrize("element", ["f32", "f64"])
def test_power_has_the_special_cases_of_numpy(element: str) -> None:
    edge = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e30, -1e30, 2.0**24 + 2]
    x, y = np.repeat(edge, len(edge)), np.tile(edge, len(edge))
    kind = np.float32 if element == "f32" else np.float64
    with np.errstate(all="ignore"):
        truth = np.power(x.astype(kind), y.astype(kind))
    for told in (True, False):
        got = compiled("pow", element, USUAL[element], "host", told)(x, y)
        same = (np.isclose(got, truth, rtol=1e-6) & (np.signbit(got) == np.signbit(truth))) | (
            np.isnan(got) & np.isnan(truth)
        )
        assert same.all(), (x[~same][:4], y[~same][:4], got[~same][:4], truth[~same][:4])


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_any_size(name: str) -> None:
    generator = np.random.default_rng(3)
    near = np.array([6381956970095103.0 * 2.0**797, 5.319372648326541e255, 1.7976931348623157e308, 2.0**1000,
                     TRIGONOMETRIC_LIMIT, np.nextafter(TRIGONOMETRIC_LIMIT, 0), np.pi * 1e6, 1e22])  # fmt: skip
    x = np.concatenate([near, -near, 10.0 ** generator.uniform(5, 308, 200)])
    got = compiled(name, "f64", 8, "host", True)(x)
    assert ulps_double(name, got, x, x).max() <= ULPS[name][1]


def test_fast_lanes_keep_their_bits_beside_a_large_angle() -> None:
    x = np.array([0.1, 1.0, 1e300, 2.0, -3.0, np.inf, 7.0, 100.0])
    calm = np.where(np.abs(x) < 1e6, x, 0.5)
    for name in ("sin", "cos"):
        sine = compiled(name, "f64", 8, "host", True)
        assert (sine(x) == sine(calm))[np.abs(x) < 1e6].all()


@pytest.mark.parametrize("machine_name", some(MACHINES, 2))
def test_no_library_is_called(machine_name: str) -> None:
    machine = resolve_cpu(machine_name)
    kinds = (("f32", machine.vector_bits // 32), ("f32", 0), ("f64", 3))
    for name, (element, lanes), target, level in rows(MATH, kinds, (target_for(machine), None), (0, 3)):
        module = module_for(name, element, lanes, target)
        parsed, backend = optimised(module, machine, level)
        assert undefined_symbols(backend.emit_object(parsed)) == [], (name, element, lanes, level)


def undefined_symbols(content: bytes) -> list[str]:
    """Names that a 64-bit little-endian ELF object expects from elsewhere, read from its symbol table."""
    assert content[:6] == b"\x7fELF\x02\x01"
    table, entry, count = struct.unpack_from("<Q", content, 40)[0], *struct.unpack_from("<HH", content, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, table + entry * i) for i in range(count)]
    found = []
    for section in sections:
        if section[1] == 2:  # SHT_SYMTAB
            strings = sections[section[6]][4]
            for offset in range(section[4], section[4] + section[5], 24):
                name, _, _, index, _, _ = struct.unpack_from("<IBBHQQ", content, offset)
                if index == 0 and name:
                    found.append(content[strings + name : content.index(b"\0", strings + name)].decode())
    return found


def test_undefined_symbols_are_seen() -> None:
    module = ir.Module()
    f64 = ir.DoubleType()
    function = ir.Function(module, ir.FunctionType(f64, [f64]), "apply")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.call(module.declare_intrinsic("llvm.exp", [f64]), function.args))
    parsed, backend = optimised(module, resolve_cpu("x86-64-v3"))
    assert undefined_symbols(backend.emit_object(parsed)) == ["exp"]


COUNTS = {
    "exp": 13,
    "exp_nonpositive": 11,
    "sigmoid": 15,
    "tanh": 20,
    "erf": 21,
    "log": 19,
    "normal_cdf": 30,
}  # vector arithmetic on one 512-bit register


COUNTS_OF_AVX2 = {"exp": 22, "exp_nonpositive": 11, "sigmoid": 16, "tanh": 22}  # the same on one of 256 bits


@pytest.mark.parametrize("name", COUNTS)
def test_instructions_on_a_register_of_znver5(name: str) -> None:
    assert instructions(name, "znver5") <= COUNTS[name]


@pytest.mark.parametrize("name", COUNTS_OF_AVX2)
def test_instructions_on_a_register_of_avx2(name: str) -> None:
    assert instructions(name, "x86-64-v3") <= COUNTS_OF_AVX2[name]


def instructions(name: str, cpu: str) -> int:
    """Vector instructions of the function of one register, without constants and moves between registers."""
    machine = resolve_cpu(cpu)
    module, type_ = ir.Module(), ir.VectorType(ir.FloatType(), machine.vector_bits // 32)
    function = ir.Function(module, ir.FunctionType(type_, [type_]), "apply")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(MATH[name](builder, function.args[0], target_for(machine)))
    parsed, backend = optimised(module, machine)
    words = [line.split()[0] for line in backend.emit_assembly(parsed).splitlines() if line.startswith("\tv")]
    return sum(not word.startswith(("vmov", "vbroadcast", "vpbroadcast", "vzeroupper")) for word in words)


def test_coefficients_are_as_good_as_the_fit_said() -> None:
    pytest.importorskip("scipy")
    path = Path(__file__).parent / "fit_math.py"
    spec = importlib.util.spec_from_file_location("fit_math", path)
    assert spec is not None
    assert spec.loader is not None
    fit_math = importlib.util.module_from_spec(spec)
    sys.modules["fit_math"] = fit_math  # its dataclass looks itself up there
    spec.loader.exec_module(fit_math)
    assert len(fit_math.FITS) == 22
    beside = {  # an instruction that is off by more, or a relative error
        "TANH_NEAR_32": 4e-8, "EXP2_32": 1e-7, "ERFC_32": 2e-8, "LOG_NORMAL_32": 2e-7, "NORMAL_TAIL_64": 7e-17,
    }  # fmt: skip
    for fit in fit_math.FITS:
        table = getattr(coefficients, fit.name)
        assert len(table) == fit.degree + 1
        assert fit_math.error_of(fit, table) < beside.get(fit.name, 8e-9 if fit.single else 5e-17), fit.name
    for quotient in fit_math.QUOTIENTS:
        upper, rest = (getattr(coefficients, name) for name in (quotient.upper, quotient.rest))
        assert len(upper) == len(rest) == quotient.degree + 1
        assert (upper[0], rest[0]) == quotient.ends
        assert fit_math.quotient_error(quotient, upper, rest) < 1e-8
