"""`tilewright machines`: which machines there are to compile for, and what is known of one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson
from tilewright.cli.completion import among
from tilewright.cli.console import show_json
from tilewright.cli.printing import table

EPILOG = """\
\b
example: tilewright machines
         tilewright machines host > mine.yaml
exit status: 0 listed, 2 no such machine, or a description that is malformed
"""

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|FILE", help="describe this one", show_default=False, autocompletion=among(completion.machines)
    ),
]


def machines(name: Name = None, as_json: AsJson = False) -> None:
    """List the machines, or print the description of one, in the form of a machine file."""
    from tilewright.machine import names, resolve

    if name is not None:
        facts = resolve(name).to_json()
        if as_json:
            show_json(facts)
        else:
            import yaml

            print(yaml.safe_dump(facts, sort_keys=False, width=80), end="")
        return
    found = [resolve(each) for each in names()]
    if as_json:
        show_json([{"name": machine.name, "kind": machine.kind} for machine in found])
        return
    rows = [[machine.name, machine.kind, _about(machine)] for machine in found]
    table({"name": "left", "kind": "left", "about": "left"}, rows)


def _about(machine: Any) -> str:
    """What a reader of the list wants to know first, of the facts that this kind of machine has."""
    facts = machine.to_json()
    found = []
    if "llvm" in facts:
        found.append(facts["llvm"]["cpu"])
    if "cores" in facts:
        found.append(f"{facts['cores']} cores")
    if "vector_bits" in facts:
        found.append(f"{facts['vector_bits']}-bit vectors")
    if facts.get("intrinsics"):
        found.append(f"{len(facts['intrinsics'])} intrinsics")
    return ", ".join(found)
