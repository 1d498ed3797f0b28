"""Tensors of known contents: constants, ranges."""

from __future__ import annotations

from typing import Any

from tilewright.expr.core import Tensor
from tilewright.expr.ops import elementwise, shape
from tilewright.frontend.torch.call import Call, Number
from tilewright.frontend.torch.element_types import array_of
from tilewright.frontend.torch.registry import aten

Operand = Tensor | Number


@aten("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def full(call: Call, *args: Operand, **_: Any) -> Tensor:
    """The value is the last positional argument."""
    return _filled(call, args[-1])


@aten("aten.scalar_tensor.default")
def scalar_tensor(call: Call, s: Operand, **_: Any) -> Tensor:
    return _filled(call, s)


@aten("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default")
@aten("aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default", "aten.empty_strided.default")
def zeros(call: Call, *_: Any, **__: Any) -> Tensor:
    """What `empty` holds is not defined: zeros will do."""
    return _filled(call, 0)


@aten("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(call: Call, *_: Any, **__: Any) -> Tensor:
    return _filled(call, 1)


def _filled(call: Call, value: Operand) -> Tensor:
    if isinstance(value, Tensor):
        return shape.expand(call.cast(value), call.shape, name=call.name)
    return elementwise.fill(call.b, call.shape, value, call.dtype, name=call.name)


@aten("aten.arange.start_step")
def arange_step(call: Call, start: Number, end: Number, step: Number = 1, **_: Any) -> Tensor:
    return shape.iota(call.b, call.shape[0], start=start, step=step, dtype=call.dtype, name=call.name)


@aten("aten.arange.start")
def arange_start(call: Call, start: Number, end: Number, **_: Any) -> Tensor:
    return arange_step(call, start, end)


@aten("aten.arange.default")
def arange(call: Call, end: Number, **_: Any) -> Tensor:
    return arange_step(call, 0, end)


@aten("aten.eye.default")
def eye(call: Call, n: int, **_: Any) -> Tensor:
    return shape.eye(call.b, n, n, dtype=call.dtype, name=call.name)


@aten("aten.eye.m")
def eye_rectangular(call: Call, n: int, m: int, **_: Any) -> Tensor:
    return shape.eye(call.b, n, m, dtype=call.dtype, name=call.name)


@aten("aten.range.default", "aten.range.step")
def closed_range(call: Call, start: Number, end: Number, step: Number = 1, **_: Any) -> Tensor:
    """An `arange` that includes its end."""
    return arange_step(call, start, end, step)


@aten("aten.tril_indices.default", "aten.triu_indices.default", "aten.fft_fftfreq.default", "aten.fft_rfftfreq.default")
@aten("aten.bartlett_window.default", "aten.bartlett_window.periodic", "aten.blackman_window.default")
@aten("aten.blackman_window.periodic", "aten.hamming_window.default", "aten.hamming_window.periodic")
@aten("aten.hamming_window.periodic_alpha", "aten.hamming_window.periodic_alpha_beta")
@aten("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta")
def known(call: Call, *args: Any, **options: Any) -> Tensor:
    """A tensor that depends on numbers only: torch computes it, and it is a constant."""
    return call.b.constant(array_of(call.node.target(*args, **options)), call.name)
