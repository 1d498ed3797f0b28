"""Random nodes of ONNX operators for products, windows and norms."""

from __future__ import annotations

from typing import Any

from tests.onnx_recipes.draft import BF16, EXTENTS, F16, F32, F64, Draft, registry

recipe, RECIPES = registry()


@recipe("MatMul")
def _matmul(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F32, F64, F16, BF16))
    m, k, n = (d.one(EXTENTS) for _ in range(3))
    batch = d.one(((), (2,), (3, 1)))
    a, b = d.one((((*batch, m, k), (k, n)), ((k,), (k, n)), ((m, k), (k,)), ((*batch, m, k), (2, k, n))))
    d.node(operator, [d.given(d.array(dtype, a)), d.given(d.array(dtype, b))])


@recipe("Gemm")
def _gemm(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F32, F64, F16))
    m, k, n = (d.one(EXTENTS) for _ in range(3))
    ta, tb = d.one((0, 1)), d.one((0, 1))
    inputs = [d.given(d.array(dtype, (k, m) if ta else (m, k))), d.given(d.array(dtype, (n, k) if tb else (k, n)))]
    if d.chance(0.7):
        inputs.append(d.given(d.array(dtype, d.one(((n,), (m, 1), (1, n), (), (m, n))))))
    d.node(operator, inputs, alpha=d.one((1.0, 0.5)), beta=d.one((1.0, 2.0)), transA=ta, transB=tb)


EQUATIONS = (
    ("ij,jk->ik", (3, 5), (5, 7)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("i,j->ij", (3,), (7,)),
    ("ij,ij->i", (5, 3), (5, 3)),
)  # fmt: skip


@recipe("Einsum")
def _einsum(d: Draft, operator: str) -> None:
    equation, a, b = d.one(EQUATIONS)
    d.node(operator, [d.given(d.array(F32, a)), d.given(d.array(F32, b))], equation=equation)


def _window(d: Draft, rank: int) -> tuple[list[int], list[int], dict[str, Any]]:
    """Kernel, strides and other attributes of a window over images."""
    kernel, strides = [d.one((1, 2, 3)) for _ in range(rank)], [d.one((1, 1, 2, 3)) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if d.chance(0.7):
        attributes["pads"] = [int(d.rng.integers(k)) for k in (*kernel, *kernel)]
    else:
        attributes["auto_pad"] = d.one(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return kernel, strides, attributes


@recipe("Conv", "ConvTranspose")
def _conv(d: Draft, operator: str) -> None:
    rank, group = d.one((1, 2)), d.one((1, 1, 2, 3))
    kernel, _, attributes = _window(d, rank)
    if operator == "Conv" and "pads" in attributes and d.chance(0.4):
        attributes["dilations"] = [d.one((1, 2)) for _ in range(rank)]
    if operator == "ConvTranspose" and "auto_pad" in attributes:
        del attributes["auto_pad"]
    channels, filters = group * d.one((1, 2, 5)), group * d.one((1, 3, 4))
    image = d.given(d.array(F32, (d.one((1, 2)), channels, *(d.one((5, 7, 8)) for _ in range(rank)))))
    outer = (filters, channels // group) if operator == "Conv" else (channels, filters // group)
    inputs = [image, d.given(d.array(F32, (*outer, *kernel)), 0.7)]
    if d.chance(0.5):
        inputs.append(d.given(d.array(F32, (filters,))))
    d.node(operator, inputs, group=group, **attributes)


@recipe("MaxPool", "AveragePool", "LpPool")
def _pool(d: Draft, operator: str) -> None:
    rank = d.one((1, 2))
    kernel, strides, attributes = _window(d, rank)
    if any(stride > width for stride, width in zip(strides, kernel, strict=True)):
        attributes.pop("auto_pad", None)  # onnxruntime refuses, and the reference pads by a negative number
    if operator == "AveragePool":
        attributes["count_include_pad"] = d.one((0, 1))
    if operator == "LpPool":
        attributes["p"] = d.one((1, 2, 3))
    if operator != "LpPool":
        attributes["ceil_mode"] = d.one((0, 0, 1)) if "pads" in attributes else 0
    d.node(operator, [d.given(d.array(F32, (2, 3, *(d.one((5, 7, 8)) for _ in range(rank)))))], **attributes)


@recipe("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (2, 3, d.one((1, 5, 7)), d.one((1, 3)))))])


@recipe("BatchNormalization")
def _batch_norm(d: Draft, operator: str) -> None:
    parameters = [d.given(d.array(F32, (5,), low, 2)) for low in (-2, -2, -2, 0.1)]
    d.node(operator, [d.given(d.array(F32, (2, 5, *d.shape(0, 2, 30)))), *parameters])


@recipe("InstanceNormalization")
def _instance_norm(d: Draft, operator: str) -> None:
    parameters = [d.given(d.array(F32, (3,))) for _ in range(2)]
    d.node(operator, [d.given(d.array(F32, (2, 3, d.one((5, 7)), 3))), *parameters])


@recipe("LayerNormalization")
def _layer_norm(d: Draft, operator: str) -> None:
    shape = (d.one((1, 3)), d.one((2, 5)), d.one((4, 7, 17)))
    axis = d.one((-1, 1, 2))
    parameters = [d.given(d.array(F32, shape[axis:])) for _ in range(d.one((1, 2)))]
    d.node(operator, [d.given(d.array(F32, shape)), *parameters], axis=axis)


@recipe("LpNormalization")
def _lp_norm(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (3, 5, 2), 0.5))], axis=d.one((-1, 0, 1)), p=d.one((1, 2)))


@recipe("LRN")
def _lrn(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (2, 5, 3, 2)))], size=d.one((1, 3, 5)), alpha=0.01, bias=1.5)


@recipe("MeanVarianceNormalization")
def _mvn(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (2, 3, 5, 7)))], axes=d.one(([0, 2, 3], [1], [2, 3])))
