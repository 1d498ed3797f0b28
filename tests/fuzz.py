"""Bad input, end to end: `python -m tests.fuzz --minutes 10 --seed 0`.

Damaged models, modules, cache entries and other files (`fuzz_files`), tile programs, wrong arguments of calls, random
command lines, random machine files (`fuzz_machines`, kind "target"). What may come out is a result, a `CompileError`,
or a `MemoryError` where this machine is too small. Anything else is a finding: another exception, a wrong result, a
crash, a hang. Cases run in batches in a process of their own with a limit on memory, so that a crash ends only the
batch. Every finding names the seed that repeats it:

    python -m tests.fuzz --kind model --case 123456

Of the kind "blocks" are random tile programs, which are whole: they run through the passes of GPUs and must give what
the interpreter gives (`fuzz_blocks`). `python -m tests.fuzz --cases 10000 --seed 0` tries so many of them; with --kind,
of another kind.

Exit status: 0 nothing found, 1 findings, 2 bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz_blocks import try_blocks
from tests.fuzz_files import try_stored
from tests.fuzz_machines import try_target
from tilewright.cli.run import difference
from tilewright.compiler.compile import build, compile_graph, import_any, stored_graph
from tilewright.errors import CompileError
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise, indexing, linalg, norm
from tilewright.machine import host
from tilewright.options import Options

ROOT = Path(__file__).parents[1]
BATCH_CASES = {"blocks": 200, "stored": 200}  # of other kinds 40
BATCH_SECONDS = {"blocks": 3600}  # of other kinds 240
MEMORY_BYTES = 6 << 30
TOLERANCE = 1e-2  # damaged models may cancel or overflow; a wrong index or a missing term is larger
OPTIONS = Options(cache=False)

Random = random.Random


class WrongResult(Exception):
    """Compiled code and the evaluator disagree."""


# Models -------------------------------------------------------------------------------------------------------------


@cache
def onnx_models() -> list[Any]:
    """The node tests of the onnx package that are small, as models."""
    from tilewright.frontend.onnx.tests.conformance import making_node_tests

    with making_node_tests():
        from onnx.backend.test.case.node import collect_testcases

        found = [case.model for case in collect_testcases(None) if case.model is not None]
    return [model for model in found if model.ByteSize() < 50_000]


def try_model(rng: Random) -> None:
    """Compile a damaged ONNX model; if that works, its result must be that of the evaluator."""
    content = bytearray(rng.choice(onnx_models()).SerializeToString())
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        damage(rng, content)
    graph = import_any(bytes(content))
    run_and_compare(graph, rng)


def damage(rng: Random, content: bytearray) -> None:
    """Change, remove, insert or repeat a few bytes."""
    if not content:
        return
    place, count = rng.randrange(len(content)), rng.randrange(1, 5)
    action = rng.randrange(4)
    if action == 0:
        content[place : place + count] = rng.randbytes(len(content[place : place + count]))
    elif action == 1:
        del content[place : place + count]
    elif action == 2:
        content[place:place] = rng.randbytes(count)
    else:
        content[place:place] = content[place : place + rng.choice([1, 8, 64])]


def run_and_compare(graph: Graph, rng: Random) -> None:
    """Raise WrongResult where the compiled code of a graph does not do what the evaluator does."""
    module = compile_graph(graph, threads=rng.choice([1, 2]), options=OPTIONS)
    inputs = [random_array(rng, spec.dtype, spec.shape) for spec in module.manifest.inputs]
    try:
        expected = evaluate(graph, inputs)
    except CompileError:
        return  # an index out of range, which the reference refuses: nothing to compare with
    results = module(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    for spec, result, exact in zip(module.manifest.outputs, results, expected, strict=True):
        if spec.dtype in ("f32", "f64") and not difference(spec.name, result, exact, TOLERANCE).ok:
            raise WrongResult(f"{spec.name}: {difference(spec.name, result, exact, TOLERANCE)}")


def random_array(rng: Random, dtype: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    from tilewright.expr.dtypes import is_float, numpy_dtype

    generator = np.random.default_rng(rng.randrange(1 << 32))
    if is_float(dtype):
        return np.asarray(generator.uniform(0.1, 2.0, tuple(shape))).astype(numpy_dtype(dtype))
    return generator.integers(0, 2, tuple(shape)).astype(numpy_dtype(dtype))


# Arguments of calls -------------------------------------------------------------------------------------------------


def sample_graph(kind: int) -> Graph:
    b = GraphBuilder("sample")
    x = b.input("x", (5, 7), "f32")
    if kind == 0:
        return b.finish([norm.softmax(linalg.linear(x, b.input("w", (3, 7), "f32")), name="y")])
    if kind == 1:
        return b.finish([indexing.gather(x, b.input("rows", (4,), "i64"), axis=0, name="y")])
    return b.finish([elementwise.relu(x, name="y"), elementwise.cast(x, "i32", name="z")])


@cache
def sample_module(kind: int) -> Any:
    return compile_graph(sample_graph(kind), threads=2, options=OPTIONS)


def try_call(rng: Random) -> None:
    """Call a module with arguments of which some are wrong in type, dtype, shape, number or value."""
    module = sample_module(rng.randrange(3))
    arrays = [random_array(rng, spec.dtype, spec.shape) for spec in module.manifest.inputs]
    arguments: list[Any] = list(arrays)
    for _ in range(rng.randrange(3)):
        place = rng.randrange(len(arguments)) if arguments else 0
        action = rng.randrange(4)
        if action == 0 and arguments:
            arguments.pop(place)
        elif action == 1:
            arguments.insert(place, odd_value(rng))
        elif arguments:
            arguments[place] = odd_value(rng) if action == 2 else odd_version(rng, arguments[place])
    outputs = [np.zeros(spec.shape, np.float32) for spec in module.manifest.outputs]
    out: Any = rng.choice([None, None, outputs, outputs[0], odd_value(rng), arguments, [odd_version(rng, outputs[0])]])
    module(*arguments, out=out)
    results = module(*arrays)  # it still works
    if not isinstance(results, np.ndarray | tuple):
        raise WrongResult(f"a call gave {type(results)}")


class Awkward:
    """Answers every question with an exception or with nonsense."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    @property
    def __array_interface__(self) -> Any:
        return self.answer

    def __dlpack__(self, **_: object) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def __dlpack_device__(self) -> Any:
        return self.answer


def odd_value(rng: Random) -> Any:
    values: list[Any] = [
        None, 0, 1.5, "x", b"bytes", [], {}, object, [[1.0, 2.0]], [1, [2, 3]], range(3), np.float32(1), np.zeros(()),
        np.zeros(0, np.float32), np.zeros((5, 7)), np.zeros((5, 7), ">f4"), np.array([None] * 3), np.array(["text"]),
        np.zeros(3, "M8[s]"), np.zeros(2, [("a", "f4")]), Awkward(None), Awkward(ValueError("no")), Awkward((1, 0)),
        np.ma.masked_array(np.zeros((5, 7), np.float32)), memoryview(b"12345678"), float("nan"), 1 << 100,
    ]  # fmt: skip
    return rng.choice(values)


def odd_version(rng: Random, array: Any) -> Any:
    """An array like the given one, strange in one respect; or the thing itself, if it is no array."""
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        return array
    with np.errstate(all="ignore"):
        versions: list[Callable[[], Any]] = [
            lambda: array[::-1],
            lambda: array[..., ::2],
            lambda: array.T,
            lambda: np.asfortranarray(array),
            lambda: np.broadcast_to(array.reshape(-1)[:1], array.shape),
            lambda: array.astype(rng.choice(["f8", "f2", "i4", "u1", "?", "c8"])),
            lambda: array[:-1],
            lambda: array[None],
            lambda: array.reshape(-1),
            lambda: array.view(np.recarray),
            lambda: np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape),
            lambda: np.full_like(
                array, rng.choice([0, -1, 1 << 40, -(1 << 62)]) if array.dtype == np.int64 else np.nan
            ),
            lambda: _read_only(array),
            lambda: array.tolist(),
        ]
        return rng.choice(versions)()


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy.setflags(write=False)
    return copy


# Modules on disk ----------------------------------------------------------------------------------------------------


@cache
def stored_module(kind: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.twm"
        build(sample_graph(kind), host(), 1, OPTIONS).save(path)
        return path.read_bytes()


def try_file(rng: Random) -> None:
    """Load a damaged `.twm`. Its code runs only if the digests say that nothing changed."""
    import tilewright

    content = bytearray(stored_module(rng.randrange(3)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.twm"
        if rng.random() < 0.5:
            for _ in range(rng.choice([1, 3])):
                damage(rng, content)
            path.write_bytes(content)
            module = tilewright.load(path, threads=1, options=OPTIONS)
            module(*(random_array(rng, spec.dtype, spec.shape) for spec in module.manifest.inputs))
        else:
            path.write_bytes(content)
            try_member(rng, path)


def try_member(rng: Random, path: Path) -> None:
    """Damage one text inside, under a right digest: everything that reads it must say what is wrong."""
    from tilewright.runtime.archive import read_archive, write_archive
    from tilewright.runtime.artifact import Artifact

    blocks: dict[str, Any] = dict(read_archive(path))
    name = rng.choice([member for member in blocks if member.endswith((".json", ".bin"))])
    content = bytearray(blocks[name])
    for _ in range(rng.choice([1, 2, 8])):
        damage(rng, content)
    write_archive(path, {**blocks, name: bytes(content)})
    artifact = Artifact.read(path)
    graph = stored_graph(artifact)
    if sum(tensor.size for tensor in graph.tensors().values()) < 1 << 20:
        build(graph, host(), 1, OPTIONS)


# Tile programs ------------------------------------------------------------------------------------------------------


@cache
def program(kind: int) -> str:
    return build(sample_graph(kind), host(), 1, OPTIONS).program


def try_program(rng: Random) -> None:
    """Compile a damaged tile program; nothing runs."""
    from tilewright.codegen.cpu.pipeline import generate
    from tilewright.kernel.opt import opt
    from tilewright.kernel.passes.table import PASSES
    from tilewright.kernel.text import parse_module

    text = program(rng.randrange(3))
    for _ in range(rng.choice([1, 1, 2, 4])):
        text = damaged_text(rng, text)
    passed = opt(text, rng.sample(sorted(PASSES), rng.randrange(len(PASSES) + 1)))
    generate(parse_module(passed))


def damaged_text(rng: Random, text: str) -> str:
    """Change one token or line of a program."""
    lines = text.splitlines()
    place = rng.randrange(len(lines))
    action = rng.randrange(6)
    if action == 0:
        del lines[place]
    elif action == 1:
        lines.insert(place, lines[rng.randrange(len(lines))])
    elif action == 2:
        other = rng.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    else:
        import re

        words = [(found.start(), found.end()) for found in re.finditer(r"%?\w+|[^\w\s]", lines[place])]
        if words:
            start, end = rng.choice(words)
            every = re.findall(r"%?\w+", text)
            word = rng.choice(
                ["0", "1", "-1", "9223372036854775807", "f16", "f32", "i1", "index", "", rng.choice(every)]
            )
            lines[place] = lines[place][:start] + word + lines[place][end:]
    return "\n".join(lines) + "\n"


# Command lines ------------------------------------------------------------------------------------------------------

WORDS = """
    compile run bench explain machines doctor opt cache demo --help --json --emit expr tile llvm asm plan object -o
    --output out.x --machine host edge x86-64-v2 nonsuch small.yaml --threads 1 2 0 -1 9999999 x --shape x=5,7 x= =1
    x=a x=-1,7 x=99999999999 --disable cse nonsense --rebuild --no-cache --seed 7 -3 --check --tolerance 0 nan
    --inputs in.npz -p dce canonicalise --list - -- --clear --version --seconds 0.01
    model.onnx model.twm damaged.twm damaged.onnx program.tile folder nothing.twm
""".split()  # noqa: SIM905 - a list of words is read best as words


def try_command(rng: Random) -> None:
    """Type a random command line in a folder with files of every kind."""
    from tests.command_line import CliRunner
    from tilewright.cli.main import app

    first = rng.choice(["compile", "run", "explain", "machines", "opt", "cache", "compile", "run"])
    words = [first, *(rng.choice(WORDS) for _ in range(rng.randrange(6)))]
    if rng.random() < 0.7:
        words.insert(1, rng.choice(["model.onnx", "model.twm", "damaged.twm", "damaged.onnx", "program.tile"]))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["TILEWRIGHT_CACHE_DIR"] = str(Path(folder) / "cache")
        write_files(rng)
        result = CliRunner().invoke(app, words, input=rng.choice(["", "nonsense", program(0)]), prog_name="tilewright")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise RuntimeError(f"tilewright {' '.join(words)}") from result.exception
    if result.exit_code not in (0, 1, 2, 3):
        raise RuntimeError(f"tilewright {' '.join(words)}: exit status {result.exit_code}")


def write_files(rng: Random) -> None:
    model = rng.choice(onnx_models()).SerializeToString()
    damaged_model, damaged_module = bytearray(model), bytearray(stored_module(0))
    damage(rng, damaged_model)
    damage(rng, damaged_module)
    files: dict[str, bytes | str] = {
        "model.onnx": model,
        "model.twm": stored_module(0),
        "damaged.onnx": bytes(damaged_model),
        "damaged.twm": bytes(damaged_module),
        "program.tile": damaged_text(rng, program(0)) if rng.random() < 0.5 else program(0),
        "small.yaml": rng.choice(["name: small\nextends: x86-64-v3\ncores: 2\n", "name: [", "cores: many\n", ""]),
    }
    for name, content in files.items():
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    Path("folder").mkdir()
    np.savez("in.npz", x=np.ones((5, 7), np.float32), w=np.ones((3, 7), rng.choice([np.float32, np.float64])))
    if rng.random() < 0.3:
        damaged = bytearray(Path("in.npz").read_bytes())
        damage(rng, damaged)
        Path("in.npz").write_bytes(damaged)


KINDS: dict[str, Callable[[Random], None]] = {
    "model": try_model,
    "call": try_call,
    "file": try_file,
    "stored": try_stored,
    "program": try_program,
    "command": try_command,
    "blocks": try_blocks,
    "target": try_target,
}


# Batches ------------------------------------------------------------------------------------------------------------


def outcome(kind: str, seed: int) -> tuple[str, str]:
    """Try one case: ("ok" | "refused" | "memory" | "finding", details)."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            KINDS[kind](Random(f"{kind} {seed}"))
    except CompileError as error:
        return "refused", error.code
    except MemoryError:
        return "memory", ""
    except Exception as error:
        root = error.__cause__ or error
        lines = traceback.format_exception(root)
        return "finding", f"{type(root).__name__}: {root}\n{''.join(lines[-4:])}"
    return "ok", ""


def run_batch(kind: str, seeds: Sequence[int]) -> None:
    """In the child: print a line before and after each case."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)  # IR is full of cycles, and most of it is in use
    for seed in seeds:
        print(json.dumps({"begin": seed}), flush=True)
        result, details = outcome(kind, seed)
        print(json.dumps({"end": seed, "result": result, "details": details}), flush=True)


def command_of(kind: str, seeds: Sequence[int]) -> list[str]:
    """What starts a batch in a process of its own, in the root of the repository."""
    return [sys.executable, "-m", "tests.fuzz", "--kind", kind, "--batch", ",".join(map(str, seeds))]


def try_batch(kind: str, seeds: Sequence[int]) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Run cases in a process of their own; give the counts of results and (seed, details) of the findings."""
    command, limit = command_of(kind, seeds), BATCH_SECONDS.get(kind, 240)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run(command, stdout=output, stderr=errors, cwd=ROOT, timeout=limit)
            status: int | str = done.returncode
        except subprocess.TimeoutExpired:
            status = f"more than {limit} s"
        output.seek(0)
        errors.seek(0)
        lines = [json.loads(line) for line in output if line.startswith("{") and line.endswith("}\n")]
        last_words = errors.read()[-2000:]
    ended = [line for line in lines if "end" in line]
    counts = Counter(line["result"] for line in ended)
    findings = [(line["end"], line["details"]) for line in ended if line["result"] == "finding"]
    if status != 0:
        complete = {line["end"] for line in ended}
        broken = next((line["begin"] for line in lines if "begin" in line and line["begin"] not in complete), seeds[0])
        counts["finding"] += 1
        findings.append((broken, f"the process ended with {status}\n{last_words}"))
    return counts, findings


def fuzz(minutes: float, seed: int, kinds: Sequence[str], cases: float = inf) -> int:
    """Try batches of each kind in turn until the time is over, or so many cases are. Gives the number of findings."""
    end = time.monotonic() + 60 * minutes
    rng = Random(seed)
    totals: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    found = tried = 0
    while time.monotonic() < end and tried < cases:
        for kind in kinds:
            if time.monotonic() >= end or tried >= cases:
                break
            seeds = [rng.randrange(1 << 32) for _ in range(int(min(BATCH_CASES.get(kind, 40), cases - tried)))]
            tried += len(seeds)
            counts, findings = try_batch(kind, seeds)
            totals[kind] += counts
            for case, details in findings:
                found += 1
                print(f"FINDING python -m tests.fuzz --kind {kind} --case {case}\n{details}", flush=True)
            if cases < inf:
                print(f"{tried} of {cases} tried", flush=True)
    for kind, counts in totals.items():
        print(
            f"{kind:8} {sum(counts.values()):6} cases: " + ", ".join(f"{n} {what}" for what, n in counts.most_common())
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, help="when to end (default: 1, or with --cases never)")
    parser.add_argument("--cases", type=int, help="how many, of the kind blocks where no other is named")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, help="only cases of this kind")
    parser.add_argument("--case", type=int, help="repeat one case of --kind in this process")
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.case is not None or options.batch) and not options.kind:
        parser.error("--case needs --kind")
    if options.batch:
        run_batch(options.kind, [int(seed) for seed in options.batch.split(",")])
        return 0
    if options.case is not None:
        result, details = outcome(options.kind, options.case)
        print(result, details)
        return int(result == "finding")
    if options.cases is not None:
        minutes = inf if options.minutes is None else options.minutes
        return int(fuzz(minutes, options.seed, [options.kind or "blocks"], options.cases) > 0)
    minutes = 1.0 if options.minutes is None else options.minutes
    return int(fuzz(minutes, options.seed, [options.kind] if options.kind else list(KINDS)) > 0)


if __name__ == "__main__":
    sys.exit(main())
