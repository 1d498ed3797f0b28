"""Fused layers of transformers, grouped products and antialiased resampling, against torch."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.errors import Unsupported
from tilewright.frontend.torch import import_module
from tilewright.frontend.torch.tests.against_torch import Many, check, rand

torch = pytest.importorskip("torch")
F = torch.nn.functional


def layer_weights() -> list[Any]:
    """Of an encoder layer of width 6 with 10 hidden numbers, in the order of the operator."""
    shapes = [(18, 6), (18,), (6, 6), (6,)], [(6,), (6,), (6,), (6,), (10, 6), (10,), (6, 10), (6,)]
    attention, rest = ([rand(*shape, seed=7 + i) for i, shape in enumerate(group)] for group in shapes)
    return [*attention, *rest]


@pytest.mark.parametrize("use_gelu", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers(use_gelu: bool, norm_first: bool) -> None:
    weights = layer_weights()
    square = torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[False] * 5, [False, True, False, True, True]])

    def layer(x: Any, *masks: Any) -> Any:
        return torch._transformer_encoder_layer_fwd(
            x, 6, 2, *weights[:4], use_gelu, norm_first, 1e-5, *weights[4:], *masks
        )

    check(
        {
            "plain": lambda x: layer(x),
            "causal": lambda x: layer(x, square, 0),
            "padding": lambda x: layer(x, padding, 1),
            "heads": lambda x: layer(x, (square & padding[:, None, None]).expand(2, 2, 5, 5), 2),
            "numbers": lambda x: layer(x, torch.zeros(2, 5).masked_fill(padding, -torch.inf), 1),
        },
        rand(2, 5, 6),
        ulps=256,
    )


def test_attention_with_projections() -> None:
    weights = layer_weights()[:4]

    def attention(x: Any, weights: Any = weights) -> Any:
        return torch._native_multi_head_attention(x, x, x, 6, 3, *weights, need_weights=False)[0]

    check({"attention": attention}, rand(2, 5, 6), ulps=256)

    def with_weights(x: Any) -> Any:
        return torch._native_multi_head_attention(x, x, x, 6, 3, *weights)

    with pytest.raises(Unsupported, match="need_weights=False"):
        import_module(Many({"weights": with_weights}), (rand(2, 5, 6),))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_resampling(mode: str) -> None:
    def resized(x: Any, *size: int, **options: Any) -> Any:
        return F.interpolate(x, size or None, mode=mode, antialias=True, **options)

    check(
        {
            "smaller": lambda x: [resized(x, 3, 5), resized(x, 1, 2), resized(x, 7, 4)],
            "larger": lambda x: [resized(x, 15, 4), resized(x, 11, 23), resized(x[:, :, :1], 3, 3)],
            "scale": lambda x: [resized(x, scale_factor=0.4), resized(x, scale_factor=(1.7, 0.3))],
            "corners": lambda x: [resized(x, 3, 5, align_corners=True), resized(x, 15, 20, align_corners=True)],
        },
        rand(2, 3, 11, 13),
    )


def test_products_by_groups() -> None:
    """torch captures them of bf16 only."""
    ends = torch.tensor([16, 16, 48], dtype=torch.int32)
    product = F.grouped_mm
    check(
        {
            "rows": lambda x, w, e: product(x, w, offs=e),
            "columns": lambda x, w, e: product(w.mT, x.T, offs=e),
            "contracted": lambda x, w, e: product(x.T, x, offs=e),
            "batches": lambda x, w, e: product(w.mT, w),
            "known": lambda x, w, e: product(x, w, offs=ends),
        },
        rand(48, 32, dtype=torch.bfloat16), rand(3, 32, 16, seed=1, dtype=torch.bfloat16), ends,
        ulps=2,
    )  # fmt: skip


def test_grouped_products_of_transformers() -> None:
    """The operator is registered as that package does, where it is not installed."""
    library = torch.library.Library("transformers", "FRAGMENT")
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")

        def product(x: Any, weight: Any, ends: Any) -> Any:
            result = x.new_zeros(len(x), weight.shape[2])
            for matrix, start, end in zip(weight, [0, *ends.tolist()], ends.tolist(), strict=False):
                result[start:end] = x[start:end] @ matrix
            return result

        library.impl("grouped_mm_fallback", product, "CPU")
        library.impl("grouped_mm_fallback", lambda x, w, ends: x.new_empty(len(x), w.shape[2]), "Meta")
    check(
        {
            "behind": lambda x, w: torch.ops.transformers.grouped_mm_fallback(x, w, torch.tensor([3, 3, 5])),
            "all": lambda x, w: torch.ops.transformers.grouped_mm_fallback(x, w, torch.tensor([0, 4, 7])),
        },
        rand(7, 3),
        rand(3, 3, 5, seed=1),
        ulps=64,
    )
    library._destroy()
