"""Layers that torch runs as one operator in evaluation mode."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.frontend.onnx.problems import UnsupportedModel
from tilewright.frontend.torch import import_module
from tilewright.frontend.torch.tests.against_torch import check, rand

torch = pytest.importorskip("torch")

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 6, 3


def masks() -> dict[str, Any]:
    """A mask of every kind with what it is for; the first key of each row is never left out."""
    left_out = torch.rand(BATCH, HEADS, LENGTH, LENGTH) > 0.5
    left_out[..., 0] = False
    return {
        "none": (None, None),
        "scores": (left_out[0, 0], 0),
        "keys": (left_out[:, 0, 0], 1),
        "heads": (left_out, 2),
        "numbers": (torch.zeros(LENGTH, LENGTH).masked_fill(left_out[1, 1], -torch.inf), 0),
    }


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("mask", ["none", "scores", "keys", "heads", "numbers"])
def test_transformer_encoder_layer(mask: str, gelu: bool, norm_first: bool) -> None:
    torch.manual_seed(0)
    left_out, kind = masks()[mask]
    square = [rand(3 * WIDTH, WIDTH), rand(3 * WIDTH), rand(WIDTH, WIDTH), rand(WIDTH)]
    norms, hidden = (
        [rand(WIDTH, seed=seed) for seed in range(4)],
        [rand(7, WIDTH), rand(7), rand(WIDTH, 7), rand(WIDTH)],
    )

    def layer(x: Any) -> Any:
        return torch.ops.aten._transformer_encoder_layer_fwd(
            x, WIDTH, HEADS, *square, gelu, norm_first, 1e-5, *norms, *hidden, left_out, kind
        )

    check({"layer": layer}, rand(BATCH, LENGTH, WIDTH), ulps=200)


@pytest.mark.parametrize("mask", ["none", "scores", "keys", "heads"])
def test_multi_head_attention(mask: str) -> None:
    torch.manual_seed(1)
    left_out, kind = masks()[mask]
    square = [rand(3 * WIDTH, WIDTH), rand(3 * WIDTH), rand(WIDTH, WIDTH), rand(WIDTH)]

    def attend(x: Any) -> Any:
        given = (x, x, x, WIDTH, HEADS, *square, left_out, False, True, kind)
        return torch.ops.aten._native_multi_head_attention(*given)[0]

    check({"attention": attend}, rand(BATCH, LENGTH, WIDTH), ulps=200)


def test_weights_of_a_fused_attention_are_refused() -> None:
    class Attend(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.aten._native_multi_head_attention(
                x, x, x, WIDTH, HEADS, rand(3 * WIDTH, WIDTH), rand(3 * WIDTH), rand(WIDTH, WIDTH), rand(WIDTH)
            )

    with pytest.raises(UnsupportedModel, match="weights of a fused attention"):
        import_module(Attend(), (rand(BATCH, LENGTH, WIDTH),))
