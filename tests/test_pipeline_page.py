"""The page of the passes of GPUs says what the table of phases says."""

from __future__ import annotations

from tests import pipeline_page


def test_the_page_is_that_of_the_table() -> None:
    assert pipeline_page.BEGIN in pipeline_page.PAGE.read_text()
    assert pipeline_page.PAGE.read_text() == pipeline_page.page(), "python -m tests.pipeline_page"
