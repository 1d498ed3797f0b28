"""Kernels in Triton, as its users write them: a product with a choice of tiles, rows and maps. Imports Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_TILES = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, warps, stages in (
        (128, 256, 64, 8, 3),
        (128, 128, 64, 4, 4),
        (64, 128, 64, 4, 4),
        (64, 64, 32, 4, 4),
    )
]


@triton.autotune(configs=_TILES, key=["m", "n", "k"])
@triton.jit
def _matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    pid, rows_of_blocks, columns_of_blocks = tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = pid // (8 * columns_of_blocks)  # blocks in groups of 8 rows, for the cache
    height = min(rows_of_blocks - 8 * group, 8)
    row = 8 * group + (pid % (8 * columns_of_blocks)) % height
    column = (pid % (8 * columns_of_blocks)) // height
    rows, columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    steps = tl.arange(0, BK)
    a_at = a + (rows % m)[:, None] * k + steps[None, :]
    b_at = b + steps[:, None] * n + (columns % n)[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = k - start
        x = tl.load(a_at, mask=steps[None, :] < left, other=0.0)
        y = tl.load(b_at, mask=steps[:, None] < left, other=0.0)
        total = tl.dot(x, y, total)
        a_at += BK
        b_at += BK * n
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def _softmax(x, y, columns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.arange(0, WIDTH)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * columns + at, (powers / tl.sum(powers, 0)).to(y.dtype.element_ty), mask=at < columns)


@triton.jit
def _layer_norm(x, scale, bias, y, columns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.arange(0, WIDTH)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    apart = tl.where(inside, values - tl.sum(values, 0) / columns, 0.0)
    normal = apart * tl.rsqrt(tl.sum(apart * apart, 0) / columns + 1e-5)
    normal = normal * tl.load(scale + at, mask=inside).to(tl.float32) + tl.load(bias + at, mask=inside).to(tl.float32)
    tl.store(y + row * columns + at, normal.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _row_sum(x, y, columns, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0), tl.arange(0, WIDTH)
    values = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    tl.store(y + row, tl.sum(values.to(tl.float32), 0).to(y.dtype.element_ty))


@triton.jit
def _gelu_gate(x, y, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside).to(tl.float32)
    gate = tl.load(y + at, mask=inside).to(tl.float32)
    result = 0.5 * value * (1 + tl.erf(value * 0.7071067811865476)) * gate
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _transposition(x, y, rows, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(y + column[:, None] * rows + row[None, :], tl.trans(values), mask=tl.trans(inside))


def matmul(x: Any, y: Any) -> Any:
    (m, k), n = x.shape, y.shape[1]
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    _matmul[lambda tile: (triton.cdiv(m, tile["BM"]) * triton.cdiv(n, tile["BN"]),)](x, y, out, m, n, k)
    return out


def softmax(x: Any) -> Any:
    rows, columns = x.shape
    out = torch.empty_like(x)
    width = triton.next_power_of_2(columns)
    _softmax[(rows,)](x, out, columns, WIDTH=width, num_warps=_warps(width))
    return out


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    rows, columns = x.shape
    out, width = torch.empty_like(x), triton.next_power_of_2(columns)
    _layer_norm[(rows,)](x, scale, bias, out, columns, WIDTH=width, num_warps=_warps(width))
    return out


def row_sum(x: Any) -> Any:
    rows, columns = x.shape
    out, width = torch.empty((rows, 1), dtype=x.dtype, device=x.device), triton.next_power_of_2(columns)
    _row_sum[(rows,)](x, out, columns, WIDTH=width, num_warps=_warps(width))
    return out


def gelu_gate(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    _gelu_gate[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


def transposition(x: Any) -> Any:
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, 64), triton.cdiv(columns, 64))
    _transposition[grid](x, out, rows, columns, BLOCK=64)
    return out


def _warps(width: int) -> int:
    return min(16, max(4, width // 512))
