"""How many concepts the compiler has: `python -m tests.concepts` prints a table from the sources.

Schedules are classes that say how a kernel runs beside its tile tree. Recognisers are functions that decide whether a
compute is a product. Work types are classes with what one kernel computes. Names are those that these had or have.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tilewright"
NAMES = {
    "classes of schedules": ("ContractionSchedule", "BlockSchedule", "NestSchedule", "NestBlocks"),
    "recognisers of products": (
        "InPlace", "BlockProduct", "find_in_place", "find_block_product", "find_product",
    ),
    "work types": ("Nest", "Contraction", "Statement"),
}  # fmt: skip
COUNTED = ("operator", "lower", "tiles", "compiler", "instruction", "intrinsics", "kernel", "codegen", "runtime")


def sources(packages: tuple[str, ...] = ()) -> Iterator[Path]:
    """The modules of packages, of all if none is named, without tests."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        if "tests" not in parts and (not packages or parts[0] in packages):
            yield path


def defined(names: tuple[str, ...]) -> list[str]:
    """Which of the names a class or function of the package has."""
    written = re.compile(rf"\b(?:class|def)\s+(?:{'|'.join(names)})\b")
    found = {
        node.name
        for path in sources()
        if written.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    return [name for name in names if name in found]


def machine_checks() -> list[str]:
    """Where `compiler` and `operator` ask for the kind of a machine."""
    found = []
    for path in sources(("compiler", "operator")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "Cpu" in text or "Gpu" in text else ():
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "isinstance":
                continue
            if {"Cpu", "Gpu"} & {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    return found


def complexities() -> list[int]:
    """Branches of every function and one, in order: McCabe's number."""
    branches = ast.If | ast.For | ast.While | ast.IfExp | ast.ExceptHandler | ast.BoolOp | ast.comprehension
    return sorted(
        1 + sum(isinstance(part, branches) for part in ast.walk(node))
        for path in sources(COUNTED)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    )


def main() -> None:
    numbers = complexities()
    rows = [(title, len(defined(names)), ", ".join(defined(names))) for title, names in NAMES.items()]
    rows.append(
        ("isinstance of a machine in compiler and operator", len(machine_checks()), ", ".join(machine_checks()))
    )
    for package in COUNTED:
        rows.append(
            (f"lines of {package}", sum(len(path.read_text().splitlines()) for path in sources((package,))), "")
        )
    rows.append(("lines together", sum(count for title, count, _ in rows if title.startswith("lines of")), ""))
    rows.append(("complexity of functions, 99th percentile", numbers[len(numbers) * 99 // 100], ""))
    for title, count, names in rows:
        print(f"{title:50} {count:7} {names}".rstrip())


if __name__ == "__main__":
    main()
