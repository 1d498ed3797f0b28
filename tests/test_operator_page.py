"""The page of operators says what the tables say."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from tests import operator_page


def test_the_page_is_that_of_the_tables() -> None:
    assert operator_page.PAGE.read_text() == operator_page.page(), "python -m tests.operator_page"
