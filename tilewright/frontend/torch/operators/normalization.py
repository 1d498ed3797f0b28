"""Softmax and normalisations, for inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import Unsupported
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.expr.ops import norm as ops
from tilewright.frontend.torch.call import Call, refuse, shape_of
from tilewright.frontend.torch.element_types import torch_dtype
from tilewright.frontend.torch.registry import aten


@aten("aten.softmax.int", "aten._softmax.default")
def softmax(call: Call, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """The third argument is a dtype, or in `_softmax` the wish for a result in f32: both show in the result."""
    if not x.rank:
        return call.pointwise([x], lambda v: v * 0.0 + 1.0)
    x = call.cast(x) if dtypes.bits(call.dtype) >= dtypes.bits(x.dtype) else x
    return ops.softmax(x, axis=dim % x.rank, out_dtype=call.dtype, name=call.name)


@aten("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(call: Call, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    if not x.rank:
        return call.pointwise([x], lambda v: v * 0.0)
    return ops.log_softmax(call.cast(x), axis=dim % x.rank, name=call.name)


@aten("aten.layer_norm.default")
def layer_norm(
    call: Call,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return ops.layer_norm(x, weight, bias, axis=x.rank - len(normalized_shape), epsilon=eps, name=call.name)


@aten("aten.native_layer_norm.default")
def native_layer_norm(
    call: Call, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    axis = x.rank - len(normalized_shape)
    if not (call.wants(1) or call.wants(2)):
        return (ops.layer_norm(x, weight, bias, axis=axis, epsilon=eps, name=call.name),)
    return ops.layer_norm_statistics(x, weight, bias, axis=axis, epsilon=eps, name=call.name)


@aten("aten.rms_norm.default")
def rms_norm(
    call: Call, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Without `eps` it is the spacing of the element type at 1."""
    import torch

    small = float(torch.finfo(torch_dtype(x.dtype)).eps) if eps is None else eps
    return ops.rms_norm(x, weight, axis=x.rank - len(normalized_shape), epsilon=small, name=call.name)


@aten("aten.batch_norm.default")
def batch_norm(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    if running_mean is None or running_var is None:
        return ops.batch_norm_by_batch(x, weight, bias, epsilon=eps, name=call.name)
    refuse(training, "updates of running statistics", help="module.eval()")
    scale = _constant(call, 1, running_mean, "scale") if weight is None else weight
    shift = _constant(call, 0, running_mean, "shift") if bias is None else bias
    return ops.batch_norm(x, scale, shift, running_mean, running_var, epsilon=eps, name=call.name)


@aten("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor]:
    """The other two results, statistics for the gradient, are empty."""
    return (batch_norm(call, x, weight, bias, running_mean, running_var, False, momentum, eps),)


@aten("aten._native_batch_norm_legit.no_stats")
def batch_norm_by_batch(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor]:
    refuse(call.wants(1) or call.wants(2), "statistics for the gradient")
    return (ops.batch_norm_by_batch(x, weight, bias, epsilon=eps, name=call.name),)


@aten("aten.native_batch_norm.default")
def native_batch_norm(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor]:
    refuse(call.wants(1) or call.wants(2), "statistics for the gradient")
    return (batch_norm(call, x, weight, bias, running_mean, running_var, training, momentum, eps),)


@aten("aten._native_batch_norm_legit.default", "aten._native_batch_norm_legit_functional.default")
def batch_norm_training(call: Call, *_: Any) -> Tensor:
    raise Unsupported("updates of running statistics", help="module.eval()")


@aten("aten.instance_norm.default")
def instance_norm(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    if use_input_stats:
        refuse(running_mean is not None, "updates of running statistics", help="module.eval()")
        return ops.instance_norm(x, weight, bias, epsilon=eps, name=call.name)
    return batch_norm(call, x, weight, bias, running_mean, running_var, False, momentum, eps)


@aten("aten.group_norm.default")
def group_norm(
    call: Call,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    return ops.group_norm(x, weight, bias, groups=num_groups, epsilon=eps, name=call.name)


@aten("aten.native_group_norm.default")
def native_group_norm(
    call: Call,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    area: int,
    group: int,
    eps: float,
) -> tuple[Tensor]:
    refuse(call.wants(1) or call.wants(2), "statistics for the gradient")
    return (ops.group_norm(x, weight, bias, groups=group, epsilon=eps, name=call.name),)


def _constant(call: Call, value: float, like: Tensor, what: str) -> Tensor:
    array = np.full(shape_of(like), value, dtypes.numpy_dtype(like.dtype))
    return call.b.constant(array, f"{call.name}.{what}")
