"""Activation functions. f16 and bf16 are computed in f32."""

from __future__ import annotations

from tilewright.expr.core import Expr, Tensor, apply, select
from tilewright.expr.ops import elementwise as ops
from tilewright.expr.ops import shape as shapes
from tilewright.frontend.torch.call import Call, Number
from tilewright.frontend.torch.registry import aten


@aten("aten.relu.default")
def relu(call: Call, x: Tensor) -> Tensor:
    return ops.relu(x, name=call.name)


@aten("aten.hardtanh.default")
def hardtanh(call: Call, x: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    return call.pointwise([x], lambda v: ops.clamp(v, min_val, max_val))


@aten("aten.relu6.default")
def relu6(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: ops.clamp(v, 0, 6))


@aten("aten.leaky_relu.default")
def leaky_relu(call: Call, x: Tensor, negative_slope: Number = 0.01) -> Tensor:
    return call.widened(x, lambda v, name: ops.leaky_relu(v, alpha=negative_slope, name=name))


@aten("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(call: Call, x: Tensor, weight: Tensor) -> Tensor:
    """One slope for all, or one per channel (dimension 1)."""
    if weight.rank == 1 and x.rank > 1:
        weight = shapes.reshape(weight, (weight.size, *(1,) * (x.rank - 2)), name=f"{call.name}.slope")
    elif weight.rank == 1 and x.rank <= 1 and weight.size == 1:
        weight = shapes.reshape(weight, (), name=f"{call.name}.slope")
    return call.pointwise([x, weight], lambda v, s: select(v > 0, v, v * s))


@aten("aten.elu.default")
def elu(call: Call, x: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    """``scale * (x > 0 ? x : alpha * (exp(input_scale * x) - 1))``."""
    return call.pointwise([x], lambda v: _elu(v, float(alpha), float(scale), float(input_scale)))


@aten("aten.celu.default")
def celu(call: Call, x: Tensor, alpha: Number = 1.0) -> Tensor:
    return call.pointwise([x], lambda v: _elu(v, float(alpha), 1.0, 1 / float(alpha)))


@aten("aten.selu.default")
def selu(call: Call, x: Tensor) -> Tensor:
    alpha, scale = 1.6732632423543772, 1.0507009873554805  # Klambauer et al., NeurIPS 2017
    return call.pointwise([x], lambda v: _elu(v, alpha, scale, 1.0))


def _elu(v: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    inner = v if input_scale == 1 else v * input_scale
    negative = apply("expm1", inner) * (alpha * scale)
    return select(v > 0, v if scale == 1 else v * scale, negative)


@aten("aten.gelu.default")
def gelu(call: Call, x: Tensor, approximate: str = "none") -> Tensor:
    return call.widened(x, lambda v, name: ops.gelu(v, approximate=approximate, name=name))


@aten("aten.silu.default")
def silu(call: Call, x: Tensor) -> Tensor:
    return call.widened(x, lambda v, name: ops.swish(v, name=name))


@aten("aten.mish.default")
def mish(call: Call, x: Tensor) -> Tensor:
    return call.widened(x, lambda v, name: ops.mish(v, name=name))


@aten("aten.hardswish.default")
def hardswish(call: Call, x: Tensor) -> Tensor:
    return call.widened(x, lambda v, name: ops.hard_swish(v, name=name))


@aten("aten.hardsigmoid.default")
def hardsigmoid(call: Call, x: Tensor) -> Tensor:
    """``min(max(x + 3, 0), 6) / 6``: the sum is exact where the result is small."""
    return call.pointwise([x], lambda v: ops.clamp(v + 3.0, 0.0, 6.0) * (1 / 6))


@aten("aten.softplus.default")
def softplus(call: Call, x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    """``log(1 + exp(beta * x)) / beta``; x itself where ``beta * x`` is above the threshold."""

    def body(v: Expr) -> Expr:
        scaled = v if beta == 1 else v * beta
        soft = ops.softplus_of(scaled)
        return select(scaled > threshold, v, soft if beta == 1 else soft / beta)

    return call.pointwise([x], body)


@aten("aten.log_sigmoid.default")
def log_sigmoid(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: -ops.softplus_of(-v))


@aten("aten.threshold.default")
def threshold(call: Call, x: Tensor, threshold: Number, value: Number) -> Tensor:
    """`value` where x is not above the threshold; NaN stays."""

    def body(v: Expr) -> Expr:
        return select(v <= threshold, value, v)

    return call.pointwise([x], body)
