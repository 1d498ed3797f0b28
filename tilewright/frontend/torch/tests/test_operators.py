"""Every family against torch: one module with many results is captured, imported and evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import Unsupported
from tilewright.expr.evaluate import evaluate
from tilewright.frontend.torch import import_module
from tilewright.frontend.torch.element_types import array_of
from tilewright.frontend.torch.tests.against_torch import Many, check, flat, ints, rand

torch = pytest.importorskip("torch")
F = torch.nn.functional


def test_arithmetic_of_floats() -> None:
    check(
        {
            "add": lambda x, y: torch.add(x, y, alpha=2.5),
            "sub": lambda x, y: 3 - x - y,
            "mul": lambda x, y: x * y * 2,
            "div": lambda x, y: x / y + x / 3,
            "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
            "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
            "remainder": lambda x, y: torch.remainder(x, y) + x % 0.7,
            "fmod": lambda x, y: torch.fmod(x, y),
            "extremes": lambda x, y: torch.maximum(x, y) + torch.minimum(x, -y),
            "pow": lambda x, y: (x.abs() + 0.5) ** y,
            "pow scalar": lambda x, y: [x**2, x**3, x.abs() ** 0.5, (x.abs() + 1) ** -1.5, 2**x],
            "atan2": lambda x, y: [torch.atan2(x, y), torch.atan2(x, torch.zeros_like(y))],
            "clamp": lambda x, y: [x.clamp(-0.5, 0.5), x.clamp(min=0.1), torch.clamp(x, y, y + 1), x.clamp_max(0.2)],
            "logs": lambda x, y: [torch.log1p(x.abs() * 1e-4), torch.log2(x.abs() + 1), torch.log10(x.abs() + 1)],
            "exps": lambda x, y: [torch.expm1(x * 1e-3), torch.expm1(x * 9), torch.exp2(x)],
            "roots": lambda x, y: [torch.rsqrt(x.abs() + 1), torch.reciprocal(x + 9), x.square()],
            "round": lambda x, y: [
                x.mul(3).round(),
                x.round(decimals=2),
                x.mul(99).round(decimals=-1),
                x.floor(),
                x.ceil(),
                x.trunc(),
                x.frac(),
                x.sign(),
            ],
            "trigonometry": lambda x, y: [x.sin(), x.cos(), x.tan(), x.tanh().asin(), x.atan(), x.sinh(), x.erf()],
            "lerp": lambda x, y: [torch.lerp(x, x + 1, 0.3), torch.addcmul(x, y, y, value=0.5)],
            "infinite": lambda x, y: [torch.log1p(x / 0), torch.expm1(x / 0), torch.atan2(x / 0, y / 0)],
        },
        rand(3, 5),
        rand(5, seed=1),
        ulps=400,
    )


def test_special_values_are_those_of_torch() -> None:
    """Signs of zeros, infinities and NaN: results and their signs, evaluated."""
    special = torch.tensor([0.0, -0.0, 1.5, -1.5, 2.5, -2.5, math.inf, -math.inf, math.nan, 1e-3, -1e-3, 30.0])
    x, y = (each.reshape(-1) for each in torch.meshgrid(special, special, indexing="ij"))
    cases: dict[str, Callable[..., Any]] = {
        "atan2": torch.atan2, "fmod": torch.fmod, "remainder": torch.remainder,
        "maximum": torch.maximum, "minimum": torch.minimum, "floor_divide": torch.floor_divide, "pow": torch.pow,
        "truncated quotient": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "logaddexp": torch.logaddexp, "xlogy": torch.xlogy,
        "sign": lambda x, y: [x.sign(), x.sgn()], "round": lambda x, y: [x.round(), x.floor(), x.ceil(), x.trunc()],
        "clamp": lambda x, y: [x.clamp(-1, 1), x.clamp(min=y)], "nan_to_num": lambda x, y: torch.nan_to_num(x),
        "comparisons": lambda x, y: [x < y, x <= y, x == y, x != y, x > y, x >= y],
        "extremes": lambda x, y: [x.view(12, 12).max(0)[1], x.argmax(), y.view(12, 12).argmin(1), y.amin(), x.max()],
        "sums": lambda x, y: [x.view(12, 12).sum(1), x.view(12, 12).prod(1), x.view(12, 12).any(1), x.bool()],
        "roots": lambda x, y: [x.sqrt(), x.rsqrt(), x.reciprocal(), x**0.5, x**-1.0, x**0, x**3],
        "logarithms": lambda x, y: [x.log(), x.log1p(), x.log2(), x.exp(), x.expm1(), x.sigmoid(), x.tanh()],
        "activations": lambda x, y: [F.elu(x), F.softplus(x), F.mish(x), F.hardtanh(x), F.softsign(x), F.relu(x)],
    }  # fmt: skip
    results = Many(cases)
    expected = [array_of(part) for case in cases.values() for part in flat(case(x, y))]
    names = [name for name, case in cases.items() for _ in flat(case(x, y))]
    found = evaluate(import_module(results, (x, y)), [array_of(x), array_of(y)])
    wrong = {}
    for name, want, got in zip(names, expected, found, strict=True):
        with np.errstate(all="ignore"):
            same = np.isclose(want, got, rtol=3e-6, atol=0, equal_nan=True)
        if name in ("atan2", "sign"):
            same &= np.isnan(want) | (np.signbit(want) == np.signbit(got))
        if not same.all():
            at = np.flatnonzero(~same.reshape(-1))[0]
            shown = (x, y, want, got) if want.size == len(x) else (want, got)
            wrong[name] = [float(v.reshape(-1)[at]) for v in shown]
    assert not wrong


def test_arithmetic_of_integers_and_mixed_dtypes() -> None:
    check(
        {
            "add": lambda i, x, u, h: [i + 3, i + x, i * 2.5, u + i, torch.add(i, i, alpha=3), h + x[0, 0]],
            "div": lambda i, x, u, h: [i / 4, i // 4, torch.div(i, 4, rounding_mode="trunc"), i % 4, i.fmod(4)],
            "unary": lambda i, x, u, h: [i.abs(), -i, i.sign(), i.float().sqrt(), torch.exp(i), i.round(), ~i],
            "bits": lambda i, x, u, h: [i & 6, i | 3, i ^ 5, u << 1, u >> 2],
            "bool": lambda i, x, u, h: [(i > 0) * (x > 0), (i > 0) + (x > 0), (i > 0).logical_not(), i.logical_and(u)],
            "compare": lambda i, x, u, h: [i == 2, i != x, x < i, i >= 1.5, (i > 0) == (x > 0), h <= 0.3],
            "where": lambda i, x, u, h: [
                torch.where(i > 0, x, 0.0),
                torch.where(x > 0, i, x),
                torch.where(i > 2, u, 1),
            ],
            "fill": lambda i, x, u, h: [x.masked_fill(i > 0, -math.inf), i.masked_fill(x > 0, 7)],
            "casts": lambda i, x, u, h: [
                x.to(torch.int32),
                i.double(),
                i.to(torch.int8),
                x.bool(),
                h.float(),
                u.half(),
            ],
            "special": lambda i, x, u, h: [x.isnan(), (x / 0).isinf(), i.isnan(), x.isfinite(), x.nan_to_num(0)],
            "shared": lambda i, x, u, h: [x, x, x.detach().contiguous()],
        },
        ints(3, 5),
        rand(3, 5),
        ints(3, 5, low=0, high=99, dtype=torch.uint8),
        rand(3, 5, dtype=torch.float16),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types(dtype: Any) -> None:
    check(
        {
            "add": lambda x, w: x + x * 0.3,
            "gelu": lambda x, w: F.gelu(x),
            "linear": lambda x, w: F.linear(x, w, w[:, 0]),
            "matmul": lambda x, w: x @ w.T,
            "softmax": lambda x, w: x.softmax(-1),
            "norm": lambda x, w: F.layer_norm(x, (7,), w[0], w[1]),
            "sum": lambda x, w: [x.sum(), x.mean(1), x.amax(0), x.var(1)],
            "silu": lambda x, w: F.silu(x).clamp(max=1),
        },
        rand(5, 7, dtype=dtype),
        rand(6, 7, seed=1, dtype=dtype),
        ulps=4096 if dtype is torch.float64 else 4,
    )


def test_activations() -> None:
    check(
        {
            "relu": lambda x: [F.relu(x), F.relu6(x * 9), F.hardtanh(x, -0.5, 2), F.threshold(x, 0.1, 5.0)],
            "leaky": lambda x: [F.leaky_relu(x, 0.2), F.prelu(x, torch.tensor([0.3]))],
            "prelu": lambda x: F.prelu(x, torch.tensor([0.3, 0.2, -0.1])),
            "elu": lambda x: [F.elu(x, 0.7), F.celu(x, 1.3), F.selu(x)],
            "gelu": lambda x: [F.gelu(x), F.gelu(x, approximate="tanh")],
            "silu": lambda x: [F.silu(x), F.mish(x), F.hardswish(x * 3), F.hardsigmoid(x * 3), x.sigmoid()],
            "soft": lambda x: [F.softplus(x, 2, 1.5), F.logsigmoid(x), F.softsign(x), F.tanhshrink(x), F.softshrink(x)],
            "glu": lambda x: F.glu(x, 2),
        },
        rand(2, 3, 4),
    )


def test_views_and_joins() -> None:
    check(
        {
            "view": lambda x, y: [x.view(6, 4), x.reshape(-1), x.flatten(1), x.unflatten(2, (2, 2))],
            "permute": lambda x, y: [x.permute(2, 0, 1), x.transpose(0, -1), y.t(), x.movedim(0, 2), x.mT],
            "expand": lambda x, y: [
                y[None].expand(2, -1, -1),
                x[:, :1].expand_as(x),
                x.unsqueeze(-1),
                y.repeat(2, 1, 3),
            ],
            "squeeze": lambda x, y: [x[:1].squeeze(), x[:1].squeeze(0), x[:1, :1].squeeze((0, 1)), x.squeeze(1)],
            "slice": lambda x, y: [x[:, 1:], x[..., ::2], x[:, -2:, 1:3], x[1], x[:, :, -1], x.narrow(2, 1, 2)],
            "split": lambda x, y: [*x.split(3, 2), *x.chunk(2, 2), *x.split([1, 2], 1), *x.unbind(1)],
            "cat": lambda x, y: [torch.cat([x, x * 2, x[:, :1]], 1), torch.cat([y, y.int()]), torch.stack([y, -y], -1)],
            "flip": lambda x, y: [x.flip(0, 2), x.roll(1, 2), x.roll((1, -1), (0, 1)), y.roll(5)],
            "diagonal": lambda x, y: [x.diagonal(1, 1, 2), y.diagonal(-1), y.tril(), y.triu(1), torch.diag(y[0])],
            "pad": lambda x, y: [
                F.pad(x, (1, 2)),
                F.pad(x, (-1, 1, 2, 0), value=3.5),
                F.pad(x, (1, 2), mode="reflect"),
            ],
            "pad edge": lambda x, y: [F.pad(x, (2, 1), mode="replicate"), F.pad(x, (1, 1), mode="circular")],
            "shuffle": lambda x, y: F.pixel_shuffle(x.view(1, 4, 3, 2), 2),
            "contiguous": lambda x, y: [x.permute(2, 1, 0).contiguous().view(4, 6), x.clone()],
            "grid": lambda x, y: [*torch.meshgrid(x[0, 0], y[:, 0], indexing="ij")],
        },
        rand(2, 3, 4),
        rand(3, 4, seed=1),
    )


def test_creation_and_indexing() -> None:
    table = rand(7, 3, seed=5)
    check(
        {
            "range": lambda x, i: [
                torch.arange(5),
                torch.arange(1, 9, 2),
                torch.arange(0.5, 3, 0.25),
                x + torch.arange(4),
            ],
            "full": lambda x, i: [torch.full((2, 3), 1.5), torch.ones(2), torch.zeros_like(x), x.new_full((3,), 2)],
            "eye": lambda x, i: [torch.eye(3), torch.linspace(0, 1, 5), torch.tensor(3.5) + x, torch.scalar_tensor(2)],
            "embedding": lambda x, i: [F.embedding(i, table), F.one_hot(i, 7)],
            "select": lambda x, i: [x.index_select(1, i[0]), x.gather(1, i % 4), x[1, i], x[i[:, 0] % 3]],
            "index": lambda x, i: [x[i % 3, i], x[:, i], x[..., None, i[0]], x[i % 3, :, None], x[[0, 2]]],
            "take": lambda x, i: [torch.take_along_dim(x, i[:1] % 4, 1), x[-1, [-1, -2]]],
            "scatter": lambda x, i: [x.scatter(1, i % 4, 1.5), x.scatter_add(1, i[:, :1], x + 1)],
            "reduce": lambda x, i: x.scatter_reduce(1, i, x + 1, "amax"),
            "put": lambda x, i: [x.index_put((i[0] % 3, i[0]), torch.tensor(9.0)), x.index_add(1, i[0], x[:, :2])],
            "nan": lambda x, i: [
                t
                for y in (x.sign() * 0 / (x > 0), x.sign())
                for t in (*y.sort(stable=True, dim=1), *y.sort(stable=True, dim=0, descending=True))
            ],
            "top": lambda x, i: [*x.topk(2), *x.topk(2, 0, False), *x.sort(1), *x.sort(0, True), x.argsort()],
        },
        rand(3, 4),
        ints(3, 2, low=0, high=4),
    )


def test_in_place_operations_on_results_are_captured() -> None:
    def writes(x: Any, i: Any) -> Any:
        y = x.clone()
        y[:, 1] = 5
        y[y > 1] = -1.0
        y.add_(1).relu_()
        y[0, :2] += x[1, :2]
        z = torch.zeros(3, 4)
        z[::2] = x[:2]
        z[:, i] = x[:, :2]
        w = x[:, :, None].expand(3, 4, 2).clone()
        w[i, :, i % 2] = x[:2]
        return [y, z, w]

    check({"writes": writes}, rand(3, 4), torch.tensor([2, 1]))


def test_reductions() -> None:
    check(
        {
            "sum": lambda x, i: [
                x.sum(),
                x.sum(1),
                x.sum((0, 2), keepdim=True),
                i.sum(),
                (i > 0).sum(0),
                i.sum(1).float(),
            ],
            "mean": lambda x, i: [x.mean(), x.mean((1, 2)), i.double().mean(0), x.mean(-1, keepdim=True)],
            "prod": lambda x, i: [x.prod(), x.prod(1), i.prod(0)],
            "extremes": lambda x, i: [x.max(), x.min(), x.amax(1), x.amin((0, 1)), *x.max(1), *i.min(0), *x.aminmax()],
            "values": lambda x, i: [x.max(2, keepdim=True).values, i.max(1).indices],
            "arg": lambda x, i: [x.argmax(), x.argmin(1), x.argmax(2, keepdim=True)],
            "any": lambda x, i: [(x > 1).any(), (i > 0).any(1), (i > -9).all(), i.all(0), (x > 2).any(2).any(0)],
            "spread": lambda x, i: [
                x.var(),
                x.std(1),
                x.var((0, 2), correction=0, keepdim=True),
                *torch.std_mean(x, 1),
            ],
            "norm": lambda x, i: [
                x.norm(),
                x.norm(dim=1),
                torch.linalg.vector_norm(x, 3, dim=0),
                x.norm(p=1, dim=(0, 1)),
            ],
            "norms": lambda x, i: [F.normalize(x, dim=1), torch.linalg.vector_norm(x, math.inf)],
            "logsumexp": lambda x, i: [x.logsumexp(1), x.logsumexp((0, 2))],
            "scan": lambda x, i: [x.cumsum(1), i.cumsum(0), x.cumprod(2)],
            "scalar": lambda x, i: [x[0, 0, 0].sum(), x[0, 0, 0].max(), x[0, 0, 0].softmax(0), x[0, 0, 0].argmax()],
            "softmax": lambda x, i: [x.softmax(1), F.log_softmax(x, 2), x.softmax(-1, dtype=torch.float64)],
        },
        rand(3, 5, 4),
        ints(3, 5),
        ulps=256,
    )


def test_products() -> None:
    check(
        {
            "mm": lambda a, b, c, i: [a @ b, torch.mm(a, b), a @ b[:, 0], a[0] @ b[:, 1], torch.outer(a[0], b[0])],
            "addmm": lambda a, b, c, i: [torch.addmm(b[0], a, b), torch.addmm(a @ b, a, b, beta=0.5, alpha=2)],
            "addmm without addend": lambda a, b, c, i: torch.addmm(a @ b, a, b, beta=0),
            "batches": lambda a, b, c, i: [c @ b, torch.bmm(c, c.mT), c[:, None] @ b, torch.baddbmm(c @ c.mT, c, c.mT)],
            "linear": lambda a, b, c, i: [
                F.linear(c, a),
                F.linear(a[0], b.T, b[0]),
                F.bilinear(a, a, torch.ones(2, 5, 5)),
            ],
            "einsum": lambda a, b, c, i: [torch.einsum("ik,kj->ij", a, b), torch.einsum("bik,bjk->bij", c, c)],
            "integers": lambda a, b, c, i: [i @ i.T, i.to(torch.uint8) @ i.T.to(torch.uint8)],
            "tensordot": lambda a, b, c, i: [
                torch.tensordot(c, b, 1),
                torch.dot(a[0], a[1]),
                torch.linalg.multi_dot([a, b]),
            ],
        },
        rand(3, 5),
        rand(5, 4, seed=1),
        rand(2, 3, 5, seed=2),
        ints(3, 5),
    )


def test_attention() -> None:
    sdpa = F.scaled_dot_product_attention
    check(
        {
            "plain": lambda q, k, m: sdpa(q, k, k),
            "causal": lambda q, k, m: [sdpa(k, k, k, is_causal=True), sdpa(q, k, k, is_causal=True)],
            "masks": lambda q, k, m: [sdpa(q, k, k, attn_mask=m), sdpa(q, k, k, attn_mask=m > -1, scale=0.3)],
            "rows without a key": lambda q, k, m: [
                sdpa(q, k, k, attn_mask=torch.ones_like(m).cumsum(0) != 2),
                sdpa(q, k, k, attn_mask=torch.where(torch.ones_like(m).cumsum(0) == 2, -torch.inf, m)),
            ],
            "shared heads": lambda q, k, m: sdpa(q, k[:, :2], k[:, :2], enable_gqa=True),
            "broadcast": lambda q, k, m: sdpa(q, k[:1], k[:1, :1]),
        },
        rand(2, 4, 3, 5),
        rand(2, 4, 7, 5, seed=1),
        rand(3, 7, seed=2),
    )


def test_convolutions() -> None:
    w1, w2, w3 = rand(4, 3, 3), rand(6, 2, 3, 2, seed=3), rand(2, 4, 1, 2, 3, seed=4)
    bias, depthwise, transposed = rand(6, seed=5), rand(8, 1, 3, 3, seed=6), rand(4, 2, 3, 2, seed=7)
    check(
        {
            "1d": lambda x, y: [F.conv1d(x[:, :3, 0], w1, w1[:, 0, 0], padding="same"), F.conv1d(x[0, :3, 0], w1)],
            "2d": lambda x, y: F.conv2d(x, w2, bias, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
            "2d unbatched": lambda x, y: F.conv2d(x[0], w2, groups=2, padding="valid"),
            "depthwise": lambda x, y: F.conv2d(x, depthwise, groups=4, padding=1),
            "3d": lambda x, y: F.conv3d(y, w3, stride=2, padding=1),
            "transposed": lambda x, y: [
                F.conv_transpose2d(x, transposed, stride=2, padding=1, output_padding=1, dilation=2),
                F.conv_transpose2d(x, transposed, groups=2),
                F.conv_transpose1d(x[:, :, 0], transposed[..., 0], stride=2),
            ],
        },
        rand(2, 4, 7, 8),
        rand(1, 4, 3, 5, 4, seed=1),
    )


def test_pooling() -> None:
    check(
        {
            "max": lambda x: [F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, (2, 3), ceil_mode=True), F.max_pool2d(x[0], 2)],
            "max dilated": lambda x: F.max_pool2d(x, 2, 1, 1, 2),
            "indices": lambda x: [*F.max_pool2d(x, 3, 2, 1, return_indices=True)],
            "max 1d 3d": lambda x: [F.max_pool1d(x[:, :, 0], 2), F.max_pool3d(x, 2)],
            "avg": lambda x: [F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, True, False), F.avg_pool1d(x[0], 2)],
            "avg ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            "adaptive": lambda x: [
                F.adaptive_avg_pool2d(x, 1),
                F.adaptive_avg_pool2d(x, (3, 5)),
                F.adaptive_avg_pool1d(x[0], 3),
            ],
            "adaptive max": lambda x: [F.adaptive_max_pool2d(x, (2, 3)), F.adaptive_max_pool1d(x[:, :, 0], 3)],
            "lp": lambda x: F.lp_pool2d(x.abs(), 2, 2),
        },
        rand(2, 4, 7, 8),
    )


def test_norms() -> None:
    scale, shift, plane = rand(6, seed=1), rand(6, seed=2), rand(3, 5, seed=3)
    check(
        {
            "batch": lambda x: [
                F.batch_norm(x, shift, scale.abs() + 1, scale, shift, eps=1e-3),
                F.batch_norm(x, shift, scale.abs() + 1),
                F.batch_norm(x, None, None, training=True),
                F.batch_norm(x, None, None, scale, shift, training=True, eps=1e-3),
                torch.native_batch_norm(x, scale, shift, None, None, True, 0.1, 1e-5)[0],
            ],
            "layer": lambda x: [F.layer_norm(x, (5,)), F.layer_norm(x, (3, 5), plane, plane, 1e-3)],
            "group": lambda x: [F.group_norm(x, 3, scale, shift), F.group_norm(x, 2)],
            "instance": lambda x: [F.instance_norm(x, weight=scale, bias=shift), F.instance_norm(x)],
            "rms": lambda x: [F.rms_norm(x, (5,), plane[0]), F.rms_norm(x, (3, 5), eps=1e-3)],
            "response": lambda x: F.local_response_norm(x, 3),
        },
        rand(2, 6, 3, 5),
        ulps=128,
    )


def test_sampling() -> None:
    grid = rand(2, 3, 4, 2, seed=1)
    check(
        {
            "nearest": lambda x: [
                F.interpolate(x, (7, 3)),
                F.interpolate(x, scale_factor=2.0),
                F.interpolate(x[:, :, 0], 9),
            ],
            "exact": lambda x: F.interpolate(x, (7, 3), mode="nearest-exact"),
            "bilinear": lambda x: [
                F.interpolate(x, (7, 9), mode="bilinear"),
                F.interpolate(x, (3, 9), mode="bilinear", align_corners=True),
                F.interpolate(x, scale_factor=1.7, mode="bilinear"),
            ],
            "others": lambda x: [F.interpolate(x[:, :, 0], 9, mode="linear"), F.interpolate(x, (9, 4), mode="bicubic")],
            "grid": lambda x: [
                F.grid_sample(x, grid, align_corners=False),
                F.grid_sample(x, grid, "nearest", "border", True),
            ],
        },
        rand(2, 3, 5, 6),
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
        ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        ("RNN", {"nonlinearity": "relu", "bias": False}),
    ],
)
def test_recurrent_layers_are_loops(kind: str, options: dict[str, Any]) -> None:
    with torch.no_grad():
        layer = getattr(torch.nn, kind)(4, 3, **options)

    def outputs(x: Any) -> list[Any]:
        states, last = layer(x)
        return [states, *(last if isinstance(last, tuple) else (last,))]

    check({"layer": outputs}, rand(2, 3, 4))


def test_dropout_between_recurrent_layers_in_training_is_refused() -> None:
    layer = torch.nn.GRU(4, 3, num_layers=2, dropout=0.5).train()
    with pytest.raises(Unsupported, match="dropout between recurrent layers"):
        import_module(layer, (rand(2, 3, 4),))
