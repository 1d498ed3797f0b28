"""How random nodes of each ONNX operator are made: `RECIPES`, for `random_onnx`.

A recipe adds one node (or the few that belong together) to a `Draft`, with inputs that the operator takes. Extents are
small and odd; constants and inputs are mixed; attributes are drawn from all that the operator knows.
"""

from __future__ import annotations

from tests.onnx_recipes import pointwise, products, quantised, reductions, sampling, shapes
from tests.onnx_recipes.draft import Recipe

#: In an order that random graphs depend on: a seed draws operators by their positions.
RECIPES: dict[str, Recipe] = {
    **pointwise.RECIPES, **shapes.RECIPES, **reductions.RECIPES, **products.RECIPES, **quantised.RECIPES,
    **sampling.RECIPES,
}  # fmt: skip

#: Operators of the importer that random graphs leave out, by the reason; the node tests of ONNX have them.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "draws numbers": (
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    ),
    "holds graphs": ("If", "Loop", "Scan"),
    "has values that are no tensors": (
        "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty",
        "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence", "ConcatFromSequence",
    ),
    "has a shape that depends on values": ("Compress", "NonZero", "Unique", "MelWeightMatrix"),
    "is newer than the operator set of the graphs": (
        "Attention", "RMSNormalization", "Swish", "TensorScatter", "CumProd", "BitCast", "GroupNormalization",
    ),
    "takes no choice": ("BlackmanWindow", "HammingWindow", "HannWindow", "Constant", "CastLike", "Dropout"),
    "is a composition": ("Col2Im", "QLinearConv"),
}  # fmt: skip
