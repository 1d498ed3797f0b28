"""The page of operators, from the tables of the front ends: `python -m tests.operator_page` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

from tilewright.frontend.onnx import refusals as onnx_refusals
from tilewright.frontend.onnx.registry import load_all as onnx_importers
from tilewright.frontend.torch import refusals as torch_refusals
from tilewright.frontend.torch.registry import COMPLEX
from tilewright.frontend.torch.registry import load_all as torch_importers

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "operators.md"
WIDTH = 128


def page() -> str:
    """The text of the page. Operators of torch have no overloads there, and the name of a package that is not ATen."""
    onnx = {name for domain, name in onnx_importers() if not domain}
    torch = {name.removeprefix("aten.").rpartition(".")[0] for name in torch_importers()}
    complex_ = {name.split(".")[1] for name in COMPLEX}
    return "\n".join(
        [
            "# Operators of the front ends",
            "",
            "`python -m tests.operator_page` writes this page from the tables of importers; a test compares both.",
            "",
            "## ONNX",
            "",
            _listed("Imported", onnx),
            "",
            "Operators that ONNX defines by others are imported through their definitions.",
            "",
            _table(onnx_refusals.REASONS),
            "",
            _listed("Without an importer so far", onnx_refusals.OPEN),
            "",
            "## PyTorch",
            "",
            _listed("Operators of ATen that are imported", torch),
            "",
            _listed("Those that take or give complex numbers", complex_),
            "",
            "All other operators are decomposed where `torch.export` knows how.",
            "",
            _table(torch_refusals.REASONS),
            "",
        ]
    )


def _listed(title: str, names: Iterable[str]) -> str:
    text = f"{title}: {', '.join(f'`{name}`' for name in sorted(names))}."
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(reasons: dict[str, str]) -> str:
    """Operators that are refused, by their reasons."""
    lines = ["| refused | because |", "| --- | --- |"]
    for reason in dict.fromkeys(reasons.values()):
        names = ", ".join(f"`{name}`" for name, why in sorted(reasons.items()) if why == reason)
        lines.append(f"| {names} | {reason} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
