"""The passes of GPUs in `docs/developers/gpu.md`, from the table of phases: `python -m tests.pipeline_page`."""

from __future__ import annotations

import re
from pathlib import Path

from xdsl.passes import ModulePass

from tilewright.kernel.passes.table import PHASES, REQUIRED

PAGE = Path(__file__).parents[1] / "docs" / "developers" / "gpu.md"
BEGIN, END = "<!-- python -m tests.pipeline_page writes what follows -->\n", "<!-- to here -->\n"


def section() -> str:
    """The phases with their invariants, and the passes of each with what they do and where they are legal."""
    parts = [BEGIN]
    for number, phase in enumerate(PHASES, 1):
        parts.append(f"### Phase {number}: {phase.name}\n\nAfter each pass {phase.invariant}.\n")
        rows = ["| pass | what it does | precondition |", "| --- | --- | --- |"]
        rows += [_row(each) for each in phase.passes]
        parts.append("\n".join(rows) + "\n")
    return "\n".join([*parts, END])


def _row(each: ModulePass) -> str:
    text = (type(each).__doc__ or "").strip()
    summary = " ".join(text.split("\n\n")[0].split())
    legal = re.search(r"Legal .*?[.;](?= |$)", " ".join(text.split()))
    required = " (required)" if each.name in REQUIRED else ""
    where = "" if legal is None else legal[0].rstrip(".;") + "."
    return f"| `{each.name}`{required} | {summary} | {where} |".replace("||", "|")


def page() -> str:
    """The text of the page with the section as the table of phases has it."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    return before + section() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
