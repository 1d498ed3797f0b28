"""Operators of ONNX that have no importer: why, and what to do instead."""

from __future__ import annotations

_NO_IMPORTER = "this operator has no importer"
_OUTSIDE = "run it outside of what is compiled"

_STRINGS = f"strings have no element type here ({_OUTSIDE})"

REASONS: dict[str, str] = {
    "ImageDecoder": f"decodes compressed files ({_OUTSIDE})",
    "NonMaxSuppression": f"the shape of the result depends on data ({_OUTSIDE}, on the boxes and scores as outputs)",
    "RegexFullMatch": _STRINGS,
    "StringConcat": _STRINGS,
    "StringNormalizer": _STRINGS,
    "StringSplit": _STRINGS,
    "TfIdfVectorizer": f"counts of n-grams in a table of any size ({_OUTSIDE})",
}
"""Reasons by the name of the operator, for operators that no graph of fixed shapes can hold."""

OPEN: frozenset[str] = frozenset({"DeformConv", "MaxRoiPool", "RoiAlign"})
"""Operators that could have an importer, and have none."""


def refusal(operator: str, domain: str) -> str:
    """Why an operator has no importer."""
    return _NO_IMPORTER if domain else REASONS.get(operator, _NO_IMPORTER)
