"""Running passes on text: what `tilewright opt` does."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernel.passes.table import run_pass
from tilewright.kernel.text import parse_module, print_module


def opt(text: str, passes: Sequence[str], verify_each: bool = True, name: str = "<string>") -> str:
    """The program `text` (from file `name`, for errors) after the named passes, in order; none only verifies it."""
    module = parse_module(text, name)
    for each in passes:
        run_pass(module, each, verify_each)
    return print_module(module)
