"""Mappings of products as data."""

from __future__ import annotations

import pytest

from tilewright.errors import InvalidFile
from tilewright.intrinsics.mapping import ProductMapping

MAPPING = ProductMapping("fma_16_f32_f32", ("m",), "n", ("c", "k"), 16, padded=("k",))


def test_a_mapping_is_read_back() -> None:
    assert ProductMapping.from_json(MAPPING.to_json()) == MAPPING


@pytest.mark.parametrize(
    ("change", "message"),
    [({"rows": "m"}, "rows is 'm'"), ({"lanes": -1}, "lanes is -1"), ({"lane": 4}, "lane is not a field")],
)
def test_a_wrong_mapping_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidFile, match=message):
        ProductMapping.from_json({**MAPPING.to_json(), **change})
