"""Random nodes of ONNX operators for shapes, and what goes to which place."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import numpy_helper

from tests.onnx_recipes.draft import BOOL, EXTENTS, F16, F32, F64, I32, I64, Draft, registry

recipe, RECIPES = registry()


ANY = (F32, F32, F16, F64, I32, I64, BOOL)


@recipe("Transpose")
def _transpose(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY))
    order = [int(p) for p in d.rng.permutation(len(shape))]
    d.node(operator, [name], **({"perm": order} if order and d.chance(0.8) else {}))


@recipe("Reshape")
def _reshape(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1)
    count = prod(shape)
    divisors = [e for e in range(1, count + 1) if count % e == 0] or [1]
    first = d.one(divisors)
    target = d.one(([-1], [first, -1] if count else [0, -1], [0, -1]))
    d.node(operator, [name, d.known(target if count else [0])])


@recipe("Flatten")
def _flatten(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1)
    d.node(operator, [name], axis=int(d.rng.integers(-len(shape), len(shape) + 1)))


@recipe("Unsqueeze")
def _unsqueeze(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 0, 3)
    d.node(operator, [name, d.known([int(d.rng.integers(-len(shape) - 1, len(shape) + 1))])])


@recipe("Squeeze")
def _squeeze(d: Draft, operator: str) -> None:
    shape = (1, *d.shape(0, 2), 1)
    name = d.given(d.array(d.one(ANY), shape))
    d.node(operator, [name, d.known(d.one(([0], [-1], [0, -1])))])


@recipe("Concat")
def _concat(d: Draft, operator: str) -> None:
    dtype = d.one(ANY)
    name, shape = d.value(dtype, 1)
    axis = int(d.rng.integers(len(shape)))
    parts = [name]
    for _ in range(int(d.rng.integers(3))):
        other = [d.one(EXTENTS) if p == axis else e for p, e in enumerate(shape)]
        parts.append(d.given(d.array(dtype, other)))
    d.node(operator, parts, axis=axis - (len(shape) if d.chance(0.3) else 0))


@recipe("Split")
def _split(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1)
    axis = int(d.rng.integers(len(shape)))
    first = int(d.rng.integers(shape[axis] + 1))
    d.node(operator, [name, d.known([first, shape[axis] - first])], 2, axis=axis)


@recipe("Slice")
def _slice(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1)
    axis = int(d.rng.integers(len(shape)))
    start, stop = (int(d.rng.integers(-shape[axis] - 2, shape[axis] + 3)) for _ in range(2))
    d.node(operator, [name, d.known([start]), d.known([stop]), d.known([axis]), d.known([d.one((1, 2, 3, -1, -2))])])


@recipe("Pad")
def _pad(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, F16, I32))
    name, shape = d.value(dtype, 1)
    mode = d.one(("constant", "reflect", "edge", "wrap"))
    if 0 in shape:
        mode = "constant"
    pads = [int(d.rng.integers(0, 3 if mode == "constant" else min(3, max(e, 1)))) for e in (*shape, *shape)]
    value = [d.given(np.asarray(1.5, dtype))] if mode == "constant" and d.chance(0.5) else []
    d.node(operator, [name, d.known(pads), *value], mode=mode)


@recipe("Tile")
def _tile(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1, 3, limit=100)
    d.node(operator, [name, d.known([d.one((1, 2, 3)) for _ in shape])])


@recipe("Expand")
def _expand(d: Draft, operator: str) -> None:
    target = d.shape(1, 4)
    d.node(operator, [d.given(d.array(d.one(ANY), d.broadcast(target))), d.known(target)])


@recipe("Gather")
def _gather(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1, 3)
    axis = int(d.rng.integers(len(shape)))
    if not shape[axis]:
        raise LookupError("nothing to gather")
    index = d.rng.integers(-shape[axis], shape[axis], d.shape(0, 2, 20)).astype(d.one((I32, I64)))
    d.node(operator, [name, d.given(index)], axis=axis)


@recipe("GatherElements")
def _gather_elements(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1, 3)
    axis = int(d.rng.integers(len(shape)))
    if 0 in shape:
        raise LookupError("nothing to gather")
    index = d.rng.integers(-shape[axis], shape[axis], [int(d.rng.integers(1, e + 1)) for e in shape])
    d.node(operator, [name, d.given(index.astype(I64))], axis=axis)


@recipe("GatherND")
def _gather_nd(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one(ANY), 1, 3)
    if 0 in shape:
        raise LookupError("nothing to gather")
    depth = int(d.rng.integers(1, len(shape) + 1))
    index = np.stack([d.rng.integers(-e, e, (2, 3)) for e in shape[:depth]], -1)
    d.node(operator, [name, d.given(index.astype(I64))])


@recipe("ScatterElements", "Scatter")
def _scatter_elements(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, I32))
    name, shape = d.value(dtype, 1, 3, limit=120)
    axis = int(d.rng.integers(len(shape)))
    if 0 in shape:
        raise LookupError("nothing to scatter into")
    reduction = d.one(("none", "add", "mul", "max", "min"))
    count = int(d.rng.integers(1, shape[axis] + 1))
    others = [e if p != axis else count for p, e in enumerate(shape)]
    order = np.argsort(d.rng.random(shape), axis=axis)  # without duplicates, whose order is open
    index = np.take(order, range(count), axis=axis)
    inputs = [name, d.given(index.astype(I64)), d.given(d.array(dtype, others))]
    d.node("ScatterElements", inputs, axis=axis, reduction=reduction)


@recipe("ScatterND")
def _scatter_nd(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, I32))
    name, shape = d.value(dtype, 1, 3, limit=120)
    if 0 in shape:
        raise LookupError("nothing to scatter into")
    reduction = d.one(("none", "add", "mul", "max", "min"))
    count = int(d.rng.integers(1, shape[0] + 1))
    index = d.rng.permutation(shape[0])[:count].reshape(count, 1).astype(I64)
    d.node(operator, [name, d.given(index), d.given(d.array(dtype, (count, *shape[1:])))], reduction=reduction)


@recipe("DepthToSpace", "SpaceToDepth")
def _depth(d: Draft, operator: str) -> None:
    block, channels = 2, d.one((1, 3))
    if operator == "DepthToSpace":
        x = d.given(d.array(F32, (2, channels * block * block, 3, 2)))
        d.node(operator, [x], blocksize=block, mode=d.one(("DCR", "CRD")))
    else:
        d.node(operator, [d.given(d.array(F32, (2, channels, 3 * block, 2 * block)))], blocksize=block)


@recipe("Trilu")
def _trilu(d: Draft, operator: str) -> None:
    name, _ = d.value(d.one((F32, F64, I64)), 2)
    d.node(operator, [name, *([d.known(d.one((-1, 0, 2)))] if d.chance(0.5) else [])], upper=d.one((0, 1)))


@recipe("OneHot")
def _one_hot(d: Draft, operator: str) -> None:
    index = d.given(d.rng.integers(-5, 5, d.shape(0, 2, 20)).astype(I64))
    d.node(operator, [index, d.known(5), d.given(np.asarray([0.5, 2], F32))], axis=d.one((-1, 0)))


@recipe("EyeLike")
def _eye(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(F32, 2, 2)[0]], k=d.one((-1, 0, 1)))


@recipe("ConstantOfShape")
def _constant_of_shape(d: Draft, operator: str) -> None:
    value = numpy_helper.from_array(np.asarray([d.one((0, 3))], d.one((F32, I64))))
    d.node(operator, [d.known(d.shape(1, 3))], value=value)


@recipe("Range")
def _range(d: Draft, operator: str) -> None:
    d.node(operator, [d.known(d.one((0, 2))), d.known(d.one((7, 12))), d.known(d.one((1, 3)))])


@recipe("Shape", "Size")
def _shape(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(F32)[0]])


@recipe("ReverseSequence")
def _reverse(d: Draft, operator: str) -> None:
    time, batch = d.one((3, 7)), d.one((2, 5))
    lengths = d.given(d.rng.integers(1, time + 1, batch).astype(I64))
    d.node(operator, [d.given(d.array(F32, (time, batch, 3))), lengths], time_axis=0, batch_axis=1)


@recipe("CenterCropPad")
def _crop(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, (5, 7))), d.known([d.one((3, 4, 8)), d.one((3, 7, 9))])])
