"""Elementary functions as LLVM IR: exp, log, tanh, erf and their family, for f32 and f64, scalars and vectors.

`MATH[name](builder, x, target)` emits the function at the builder's place and returns the value; `pow` takes two
arguments before the target. A value is `float`, `double` or a vector of them with any number of lanes. The code is
free of branches and of calls to a library; only sin, cos and tan keep a branch, inside a function of the module,
that no vector below `TRIGONOMETRIC_LIMIT` takes. Zeros keep their sign, infinities, NaN and denormal numbers follow
IEEE 754. f16 and bf16 are computed in f32 by the caller.

Without a target the code is right everywhere; with one it uses exponent instructions and exact fused
multiply-adds where the target has them. The instructions must not carry fast-math flags: differences that look like
zero are the low halves of sums.

Accuracies are the largest errors found, rounded up, in units in the last place of the result, with and without fused
multiply-add: in f32 over every 509th bit pattern and two million random arguments against float64, in f64 over
about 40 000 arguments of all magnitudes against mpmath; `tests/test_math.py` holds a part of them against these
bounds. The coefficients are printed by `tests/fit_math.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from llvmlite import ir

from tilewright.codegen.math.error_function import emit_erf
from tilewright.codegen.math.exponentials import (
    emit_cosh,
    emit_exp,
    emit_exp2,
    emit_exp_nonpositive,
    emit_expm1,
    emit_sigmoid,
    emit_sinh,
    emit_tanh,
)
from tilewright.codegen.math.inverse_trigonometric import emit_acos, emit_asin, emit_atan
from tilewright.codegen.math.logarithms import emit_acosh, emit_asinh, emit_atanh, emit_log, emit_log1p
from tilewright.codegen.math.normal import emit_normal_cdf, emit_normal_cdf_tanh
from tilewright.codegen.math.power import emit_pow
from tilewright.codegen.math.trigonometric import emit_cos, emit_sin, emit_tan

MATH: Final[dict[str, Callable[..., ir.Value]]] = {
    "exp": emit_exp,
    "exp_nonpositive": emit_exp_nonpositive,
    "exp2": emit_exp2,
    "expm1": emit_expm1,
    "sigmoid": emit_sigmoid,
    "tanh": emit_tanh,
    "sinh": emit_sinh,
    "cosh": emit_cosh,
    "log": emit_log,
    "log1p": emit_log1p,
    "asinh": emit_asinh,
    "acosh": emit_acosh,
    "atanh": emit_atanh,
    "pow": emit_pow,
    "erf": emit_erf,
    "normal_cdf": emit_normal_cdf,
    "normal_cdf_tanh": emit_normal_cdf_tanh,
    "sin": emit_sin,
    "cos": emit_cos,
    "tan": emit_tan,
    "asin": emit_asin,
    "acos": emit_acos,
    "atan": emit_atan,
}
