"""Random nodes of ONNX operators for sampling and recurrences."""

from __future__ import annotations

from tests.onnx_recipes.draft import F32, Draft, registry

recipe, RECIPES = registry()


@recipe("Resize")
def _resize(d: Draft, operator: str) -> None:
    shape = (1, 2, d.one((3, 4, 5)), d.one((4, 7, 9)))
    mode = d.one(("nearest", "linear", "cubic"))
    position = d.one(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"))
    attributes = {"mode": mode, "coordinate_transformation_mode": position}
    if mode == "nearest":
        attributes["nearest_mode"] = d.one(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    scales = [1, 1, d.one((0.6, 1, 2, 1.5)), d.one((0.5, 1, 2, 2.3))]
    x = d.given(d.array(F32, shape))
    if d.chance(0.5):
        d.node(operator, [x, "", d.known(scales, F32)], **attributes)
    else:
        sizes = [max(1, int(e * scale)) for e, scale in zip(shape, scales, strict=True)]
        d.node(operator, [x, "", "", d.known(sizes)], **attributes)


@recipe("GridSample")
def _grid_sample(d: Draft, operator: str) -> None:
    grid = d.given(d.array(F32, (1, 3, 5, 2), -1.2, 1.2))
    attributes = {"mode": d.one(("linear", "nearest")), "padding_mode": d.one(("zeros", "border", "reflection"))}
    d.node(operator, [d.given(d.array(F32, (1, 2, 5, 7))), grid], align_corners=d.one((0, 1)), **attributes)


@recipe("RNN", "GRU", "LSTM")
def _recurrent(d: Draft, operator: str) -> None:
    steps, batch, width, hidden = d.one((1, 3)), d.one((1, 2)), d.one((2, 5)), d.one((3, 4))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    direction = d.one(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    inputs = [d.given(d.array(F32, (steps, batch, width)), 0.0)]
    inputs += [d.given(d.array(F32, (ways, gates * hidden, k), -1, 1), 0.8) for k in (width, hidden)]
    if d.chance(0.5):
        inputs.append(d.given(d.array(F32, (ways, 2 * gates * hidden), -1, 1), 0.8))
    extra = {"linear_before_reset": d.one((0, 1))} if operator == "GRU" else {}
    d.node(operator, inputs, 3 if operator == "LSTM" else 2, hidden_size=hidden, direction=direction, **extra)
