"""The structure of the package: who imports whom, where targets may be named, and what importing the package costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tilewright"

# The table of docs/developers/architecture.md, from top to bottom: a package imports only from those before it.
ORDER = (
    "expr", "machine", "layouts", "intrinsics", "tiles", "search", "graph", "operator", "instruction", "kernel",
    "lower", "codegen", "emulator", "runtime", "language", "frontend", "compiler", "reproduce", "report", "cli",
)  # fmt: skip
EVERYBODYS = ("errors", "options", "decision", "fields", "files", "lazy", "collection", "dataclass")

# Imports that are forbidden although the package stands above: the last column of the table.
LEVELS = {"tiles", "graph", "operator", "instruction"}
FORBIDDEN = {
    "machine": {"expr"},
    "search": set(ORDER[: ORDER.index("search")]),
    "kernel": {"tiles", "search", "graph", "operator"},
    "lower": {"search"},
    "codegen": LEVELS | {"search", "lower"},
    "emulator": set(ORDER[: ORDER.index("emulator")]),
    "runtime": {"graph"},
    "language": LEVELS,
    "frontend": set(ORDER[1 : ORDER.index("frontend")]),
}

# Which packages may import one from outside; others from outside are open to all.
THIRD_PARTY = {
    "xdsl": {"kernel", "lower", "codegen", "language", "compiler", "cli"},
    "llvmlite": {"machine", "codegen", "runtime", "compiler", "cli"},
    "onnx": {"frontend", "reproduce"},
    "torch": {"frontend", "compiler", "reproduce"},
    "rich": {"cli", "report", "reproduce"},
    "typer": {"cli"},
    "matplotlib": {"report"},
    "scipy": {"graph", "operator", "instruction"},
}

# Names of instruction sets, processors and their features: facts of one target.
TARGET_NAMES = re.compile(
    r"avx|znver|vnni|vpdp|vdpbf|(?<![a-z])amx|(?<![a-z])neon(?![a-z])|(?<![a-z])sve(?![a-z])|x86|aarch64|amd64|arm64"
    r"|nvptx|amdgpu|(?<![a-z])sm_\d|(?<![a-z])gfx\d",
    re.IGNORECASE,
)
TARGET_FOLDERS = re.compile(r"^(machine/|intrinsics/\w+/|codegen/\w+/|runtime/\w+/|emulator/)")

# Names of instructions and units of one vendor's GPUs.
UNIT_NAMES = re.compile(
    r"wmma|mma\.sync|wgmma|ldmatrix|mbarrier|(?<![a-z])tma(?![a-z])|(?<![a-z])cp[._]async", re.IGNORECASE
)
UNIT_FOLDERS = re.compile(TARGET_FOLDERS.pattern + r"|^kernel/(passes/)?hopper/")
_OPTION = "two values of `Options.mma` are names of instruction families"
_FORM = "a layout of spec 6 that the text form names after its instruction"
_PUBLISHED = "names what a publication measured"
UNIT_FILES = {
    "options.py": _OPTION,
    "instruction/mma/policy.py": _OPTION,
    "cli/arguments.py": _OPTION,
    "cli/schedule_mma.py": _OPTION,
    "cli/map.py": "an example names an intrinsic",
    "cli/reproduce.py": "its help names options of publications",
    "reproduce/amos/machines.py": _PUBLISHED,
    "reproduce/amos/mappings.py": _PUBLISHED,
    "reproduce/matmul/ablation.py": _PUBLISHED,
    "reproduce/matmul/switches.py": _PUBLISHED,
    "reproduce/matmul/worked_cases.py": _PUBLISHED,
    "intrinsics/fragments.py": "the reference behaviour of matrix loads, which golden data test",
    "layouts/__init__.py": _FORM,
    "layouts/access.py": "matrix loads are printed in the notation of spec 6",
    "layouts/mma.py": _FORM,
    "layouts/opaque.py": _FORM,
    "layouts/text.py": _FORM,
    "kernel/passes/common/effects.py": "lists operations by their names in the text form",
    "kernel/passes/gpu/distribution/circular_buffer.py": "`distribute` expands buffers to barriers",
    "kernel/passes/gpu/distribution/opaque.py": _FORM,
    "kernel/passes/table.py": "the order of all passes, those of one family of machines too",
}
TARGET_FILES = {
    "reproduce/matmul/worked_cases.py": "names the machine of a published case",
    "runtime/native.py": "emits the pool's own LLVM IR, with system calls and pauses that differ by architecture",
    "runtime/counter.py": "reads the time-stamp counter, which each architecture has in its own place",
    "runtime/loader.py": "checks that an ELF file is for this kind of machine",
}


def modules() -> list[Path]:
    """Every module of the package but its tests."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "tests" not in path.relative_to(PACKAGE).parts]


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported, wherever the statement stands."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the package"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@lru_cache(maxsize=1)
def nodes_of(source: str) -> list[ast.AST]:
    """The syntax of a module, from the outside to the inside; the rules that it is held against share it.

    As `ast.walk` gives it, in half of the time: without what says whether a name is read or written.
    """
    found: list[ast.AST] = [ast.parse(source)]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return found


@lru_cache(maxsize=1)
def words_of(source: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Texts of a module, without docstrings, and its identifiers, each with its line."""
    texts, identifiers, docstrings = [], [], set()
    for node in nodes_of(source):  # from the outside to the inside: a docstring comes after what it describes
        kind = type(node)
        if kind in (ast.Module, ast.ClassDef, ast.FunctionDef) and node.body and isinstance(node.body[0], ast.Expr):
            docstrings.add(id(node.body[0].value))
        if kind is ast.Constant and isinstance(node.value, str) and id(node) not in docstrings:
            texts.append((node.lineno, node.value))
        elif kind in _NAMED:
            identifiers.append((node.lineno, getattr(node, _NAMED[kind])))
    return texts, identifiers


_NAMED = {
    ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.FunctionDef: "name", ast.ClassDef: "name",
    ast.alias: "name",
}  # fmt: skip


def violations(importer: str, source: str) -> list[str]:
    """What the imports of a module of the package `importer` break."""
    found = []
    for line, name in imported(nodes_of(source)):
        package, _, rest = name.partition(".")
        if package != "tilewright":
            if importer not in THIRD_PARTY.get(package, {importer}):
                found.append(f"line {line}: {importer} imports {package}, which is for {sorted(THIRD_PARTY[package])}")
            continue
        other = rest.partition(".")[0]
        if other in EVERYBODYS or other == importer:
            continue
        if other not in ORDER:
            other = "compiler"  # `import tilewright`: the public interface, which compiler implements
        if importer not in ORDER:  # errors, options, decision: what all may use uses nobody
            found.append(f"line {line}: {importer} imports {other}")
        elif ORDER.index(other) >= ORDER.index(importer):
            found.append(f"line {line}: {importer} imports {other}, which is not above it")
        elif other in FORBIDDEN.get(importer, ()):
            found.append(f"line {line}: {importer} imports {other}, which is forbidden")
    return found


# Folders of passes: those of a target import the common ones, and those of a family of machines the target's.
PASSES = {"common": (), "cpu": ("common",), "gpu": ("common",), "hopper": ("common", "gpu")}


@pytest.mark.parametrize("folder", PASSES)
def test_passes_import_no_passes_of_other_targets(folder: str) -> None:
    legal = {folder, *PASSES[folder]}
    paths = [path for path in (PACKAGE / "kernel" / "passes" / folder).rglob("*.py") if "tests" not in path.parts]
    assert len(paths) > 1
    for path in paths:
        parts = [name.split(".") for _, name in imported(nodes_of(path.read_text()))]
        used = {part[3] for part in parts if part[:3] == ["tilewright", "kernel", "passes"]}
        assert used <= legal, path


def package_of(name: str) -> str:
    return name.partition("/")[0].removesuffix(".py")


@cache
def broken() -> dict[str, dict[str, list[str]]]:
    """By rule, the modules of the package that break it, and where."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in modules():
        name, source = path.relative_to(PACKAGE).as_posix(), path.read_text()
        for rule, (applies, breaks) in RULES.items():
            places = breaks(name, source) if applies(name) else []
            if places:
                found.setdefault(rule, {})[name] = places
    return found


def test_imports_keep_to_the_table() -> None:
    assert broken().get("imports") is None


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("frontend", "from tilewright.kernel.text import parse_module"),
        ("expr", "def f():\n    import tilewright.graph.simplify"),
        ("kernel", "from tilewright import lower"),
        ("codegen", "from tilewright.instruction.mapping import Mapping"),
        ("runtime", "import tilewright"),
        ("machine", "from tilewright.expr import core"),
        ("search", "from tilewright.tiles.tree import Tile"),
        ("search", "import tilewright.graph.groups"),
        ("tiles", "from tilewright.search.space import Space"),
        ("lower", "from tilewright.search.minimise import minimise"),
        ("expr", "import onnx"),
        ("graph", "from llvmlite import ir"),
        ("errors", "from tilewright.expr import core"),
    ],
)
def test_a_wrong_import_is_found(name: str, source: str) -> None:
    assert len(violations(name, source)) == 1


def test_every_package_is_in_the_table() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(ORDER)


def test_the_table_in_the_documentation_is_this_one() -> None:
    text = (PACKAGE.parent / "docs" / "developers" / "architecture.md").read_text()
    named = [
        name for cell in re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    ]
    assert tuple(named) == ORDER


def target_names(source: str, names: re.Pattern[str] = TARGET_NAMES) -> list[str]:
    """Names of targets among the identifiers and texts of a module; comments and docstrings may give examples."""
    texts, identifiers = words_of(source)
    return [f"line {line}: {word[:80]!r}" for line, word in (*texts, *identifiers) if _occurs(names, word)]


@cache
def _occurs(names: re.Pattern[str], word: str) -> bool:
    """Whether a word holds one of these names. Modules share most of their words."""
    return names.search(word) is not None


def test_shared_code_names_no_target() -> None:
    assert broken().get("targets") is None


def test_shared_code_names_no_unit_of_a_target() -> None:
    assert broken().get("units") is None


# Names of intrinsics, or patterns of such names. Code reads the record that a name stands for.
INTRINSIC_NAMES = re.compile(
    r"\b(v?mfma|wgmma|wmma|wmmar\d|mma|vpdp\w+|vdpbf16ps|outer|widen|fma|sdot|fmla)\)?_(m?\d|\\d|m\\d|\(|\[)"
    r"|\b(MMA_SYNC|NV_WMMA|WMMAR\d|V?MFMA)_"
)
READS_RECORDS = ("graph", "operator", "instruction", "kernel", "lower", "codegen", "compiler", "runtime")


def intrinsic_names(source: str) -> list[str]:
    """Texts of a module, without docstrings, that hold names of intrinsics."""
    texts, _ = words_of(source)
    return [f"line {line}: {text[:80]!r}" for line, text in texts if INTRINSIC_NAMES.search(text)]


def test_facts_are_read_from_records_not_from_names() -> None:
    assert broken().get("records") is None


# By rule, the modules that it is for, and what a module of a name breaks.
RULES: dict[str, tuple[Callable[[str], bool], Callable[[str, str], list[str]]]] = {
    # The public interface imports what it shows, when it is used.
    "imports": (lambda name: name != "__init__.py", lambda name, source: violations(package_of(name), source)),
    "targets": (
        lambda name: not TARGET_FOLDERS.match(name) and name not in TARGET_FILES,
        lambda _, source: target_names(source),
    ),
    "units": (
        lambda name: not UNIT_FOLDERS.match(name) and name not in UNIT_FILES,
        lambda _, source: target_names(source, UNIT_NAMES),
    ),
    # In other packages names are shown or described.
    "records": (lambda name: package_of(name) in READS_RECORDS, lambda _, source: intrinsic_names(source)),
}


def test_every_rule_is_for_most_modules() -> None:
    names = [path.relative_to(PACKAGE).as_posix() for path in modules()]
    assert len(names) > 500
    for rule, (applies, _) in RULES.items():
        assert sum(map(applies, names)) > len(names) // 3, rule


@pytest.mark.parametrize(
    "source",
    [
        'NAME = re.compile(r"wgmma_m64n(\\d+)k(\\d+)_(\\w+)")', 'KINDS = r"(?:mma|wgmma)_m\\d+n\\d+"',
        "HAS = {'mfma_16x16x16_f16_f32': 'gfx908'}", "ROUTES = {'wmma': 'NV_WMMA_'}",
    ],
)  # fmt: skip
def test_a_name_of_an_intrinsic_is_found(source: str) -> None:
    assert len(intrinsic_names(source)) == 1


@pytest.mark.parametrize("source", ["if 'avx512f' in features: pass", "def emit_neon(): pass", "x = machine.is_sm_80"])
def test_a_target_name_is_found(source: str) -> None:
    assert len(target_names(source)) == 1


@pytest.mark.parametrize(
    "source",
    ["if 'cp_async' in units: pass", "class MbarrierOp: pass", "x = 'wgmma'", "use_tma = 1", "from a import LdMatrix"],
)
def test_a_name_of_a_unit_is_found(source: str) -> None:
    assert len(target_names(source, UNIT_NAMES)) == 1


@pytest.mark.parametrize("source", ['"""As by wgmma."""', "# cp.async", "softmax = bitmaps", "mma = 'mma'"])
def test_examples_and_other_words_are_no_units(source: str) -> None:
    assert target_names(source, UNIT_NAMES) == []


@pytest.mark.parametrize("source", ['"""As on avx512."""', "# znver5", "sum_of = solve(max_neonate)"])
def test_examples_and_other_words_are_no_target_names(source: str) -> None:
    assert target_names(source) == []


def test_allowed_files_exist_and_need_it() -> None:
    needless = [name for name in TARGET_FILES if not target_names((PACKAGE / name).read_text())]
    assert needless == []
    needless = [name for name in UNIT_FILES if not target_names((PACKAGE / name).read_text(), UNIT_NAMES)]
    assert needless == []


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "onnx", "xdsl", "llvmlite", "scipy", "rich", "typer", "matplotlib")
    loaded = _python(f"import sys, tilewright; print(*[name for name in {heavy} if name in sys.modules])")
    assert loaded == ""


def test_importing_the_package_takes_less_than_half_a_second() -> None:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        _python(code)
        return time.perf_counter() - start

    assert min(seconds("import tilewright") - seconds("pass") for _ in range(3)) < 0.5


def test_the_public_names_are_there() -> None:
    assert _python("import tilewright as t; print(t.compile.__name__, t.load.__name__, t.Module, t.Options)")
    assert _python("import tilewright as t; print(all(hasattr(t, name) for name in t.__all__))") == "True"


def test_what_the_cache_holds_is_compiled_without_a_compiler(tmp_path: Path) -> None:
    code = f"""
import pathlib, sys, tilewright
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import elementwise
b = GraphBuilder("relu")
graph = b.finish([elementwise.relu(b.input("x", (4, 4), "f32"))])
tilewright.compile(graph, threads=1, options=tilewright.Options(cache_dir=pathlib.Path({str(tmp_path)!r})))
words = (
    "compiler.make_plan", "compiler.planning", "lower", "kernel", "graph", "operator", "intrinsics", "instruction",
    "codegen.cpu",
)
mine = [name.removeprefix("tilewright.") for name in sys.modules if name.startswith("tilewright.")]
print("xdsl" in sys.modules, any(name.startswith(words) for name in mine))
"""
    assert [_python(code) for _ in range(2)] == ["True True", "False False"]


def test_a_product_for_a_cpu_imports_nothing_that_it_does_not_need() -> None:
    loaded = _python(
        """
import sys, tilewright
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import linalg
b = GraphBuilder()
x, w = b.input("x", (16, 32), "f32"), b.input("w", (8, 32), "f32")
tilewright.compile(b.finish([linalg.linear(x, w)]), threads=1, options=tilewright.Options(cache=False))
words = (
    "nvptx", "amdgpu", ".cuda", "emulator", "intrinsics.nvidia.", "intrinsics.amd.", "instruction.mma", "block_tiles",
    "passes.gpu", "passes.hopper", "layouts.mma", "layouts.conversion", "frontend", "reproduce", ".cli",
    "kernel.circular_buffer", "kernel.box", "kernel.hopper", "kernel.simt", "kernel.text", "kernel.verify",
    "interpreter",
)
print(*[name for name in sys.modules if name.startswith("tilewright") and any(word in name for word in words)])
others = {"numpy.random", "numpy.ma", "ml_dtypes", "fractions", "difflib", "scipy", "onnx", "torch", "rich", "typer"}
print(*others & {*sys.modules})
"""
    )
    assert loaded.split() == []
