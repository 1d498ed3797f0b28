"""Kernels that other compilers emitted, from sources written for these tests, against NumPy; and their mutants."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tilewright import emulator
from tilewright.emulator import Result, TensorMap, parse
from tilewright.emulator.tests.harness import STORED, kernel, stored
from tilewright.errors import InvalidArgument

Launch = Callable[[str], tuple[Result, Any, Any]]


def matmul(m: int, n: int, k: int, entry: str = "matmul", shared: int = 16384, dtype: str = "f2", tile: int = 64,
           kind: str = "plain") -> Launch:  # fmt: skip
    """A launch of a stored product; gives the result, C, and what C should be."""
    generator = np.random.default_rng(0)
    a, b = generator.integers(-3, 4, (m, k)).astype(dtype), generator.integers(-3, 4, (k, n)).astype(dtype)

    def launch(text: str) -> tuple[Result, Any, Any]:
        c = np.zeros((m, n), np.float32 if kind == "plain" else np.float16)
        threads, grid = 128, (-(-m // tile), -(-n // tile), 1)
        args: list[Any] = [a, b, c, m, n, k, k, n, n]
        if kind == "maps":
            args = [TensorMap(a, (64, 64), 128), m, k, k, 1, TensorMap(b, (64, 64), 128), k, n, n, 1, c, m, n, k]
        elif kind == "roles":
            args, threads, grid = [a, b, c, m, n, k, np.zeros(1 << 14, np.uint8)], 384, (m // 128, n // 64, 1)
        result = emulator.run(parse(text), entry, grid, (threads, 1, 1), args, shared, limit=100_000)
        return result, c, a.astype(np.float64) @ b.astype(np.float64)

    return launch


LAUNCHES: dict[str, Launch] = {
    "matmul_f16_sm80": matmul(80, 80, 112),
    "matmul_tf32_sm80": matmul(64, 80, 96, shared=32768, dtype="f4"),
    "matmul_f16_sm90a": matmul(64, 64, 192, shared=49152),
    "matmul_tma_sm90a": matmul(64, 128, 256, "tmahost", 49176, kind="maps"),
    "matmul_warp_specialised_sm90a": matmul(128, 64, 256, "wsmm", 90592, kind="roles"),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_products_are_exact_for_integers(name: str) -> None:
    result, found, wanted = LAUNCHES[name](stored(name))
    assert [str(diagnostic) for diagnostic in result.diagnostics] == []
    assert (found == wanted).all()
    assert result.counts.to_json()["bank_conflicts"] == 0


def mutants(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of kernels with one mistake: a barrier, wait or fence gone or weaker, a count or mask wrong."""
    lines = text.split("\n")
    rules = [
        (r"^\s*bar\.sync.*$", ""), (r"cp\.async\.wait_group\s+(\d+)", lambda m: f"cp.async.wait_group {int(m[1]) + 1}"),
        (r"wgmma\.wait_group\.sync\.aligned\s+(\d+)", lambda m: f"wgmma.wait_group.sync.aligned {int(m[1]) + 1}"),
        (r"^\s*(wgmma\.fence|fence\.proxy\.async).*$", ""), (r"_, \[(%r\d+)\], (8192|16384);", r"_, [\1], 4096;"),
        (r"mbarrier\.try_wait\S* complete, .*$", "setp.eq.u32 complete, 0, 0;"),
        (r"@%p\d+ (cp\.async\.bulk\.tensor\S+ \[%r)", r"\1"),
    ]  # fmt: skip
    for number, line in enumerate(lines):
        for pattern, replacement in rules:
            changed = re.sub(pattern, replacement, line)
            if changed != line:
                yield number + 1, "\n".join([*lines[:number], changed, *lines[number + 1 :]])


@pytest.mark.emulator_only
def test_mutants_of_a_pipelined_product_are_found() -> None:
    name = "matmul_f16_sm80"
    missed = []
    total = 0
    for line, text in mutants(stored(name)):
        result, found, wanted = LAUNCHES[name](text)
        total += 1
        if not result.diagnostics and (found == wanted).all():
            missed.append(line)
    lines = stored(name).split("\n")
    assert total == 13
    # Equivalent: the wait at the top of the loop and the barrier after it repeat those at its end, where the wait is
    # there twice; the last wait has nothing left to wait for.
    assert [lines[line - 1].split()[0] for line in missed] == [
        "cp.async.wait_group", "bar.sync", "cp.async.wait_group", "cp.async.wait_group", "cp.async.wait_group"
    ]  # fmt: skip


@pytest.mark.emulator_only
@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "kind"),
    [
        ("matmul_f16_sm90a", r"fence\.proxy\.async\.shared::cta;", "", "missing-fence"),
        ("matmul_f16_sm90a", r"wgmma\.fence\.sync\.aligned;", "", "missing-fence"),
        ("matmul_f16_sm90a", r"wgmma\.wait_group\.sync\.aligned 0;", "wgmma.wait_group.sync.aligned 1;", "early-read"),
        ("matmul_f16_sm90a", r"wgmma\.wait_group\.sync\.aligned 1;", "wgmma.wait_group.sync.aligned 3;", "overwritten"),
        ("matmul_tma_sm90a", r"mbarrier\.try_wait\S* complete, \[%r\d+\], %r\d+;", "setp.eq.u32 complete, 0, 0;",
         "early-read"),
        ("matmul_tma_sm90a", r"(arrive\.expect_tx\S+ _, \[%r\d+\]), 16384;", r"\1, 8192;", "early-read"),
        ("matmul_tma_sm90a", r"(arrive\.expect_tx\S+ _, \[%r\d+\]), 16384;", r"\1, 16400;", "deadlock"),
    ],
)  # fmt: skip
def test_mistakes_of_asynchronous_products(name: str, pattern: str, replacement: str, kind: str) -> None:
    text, count = re.subn(pattern, replacement, stored(name))
    assert count
    result, _, _ = LAUNCHES[name](text)
    assert kind in {diagnostic.kind for diagnostic in result.diagnostics}


@pytest.mark.emulator_only
def test_each_wait_of_a_consumer_for_its_tiles_is_needed() -> None:
    """The other consumer's wait brings the tile, so that only the order of events shows the mistake."""
    text = stored("matmul_warp_specialised_sm90a")
    waits = list(re.finditer(r"mbarrier\.try_wait\S* complete, \[%r\d+\], %r\d+;", text))
    for wait in waits[-2:]:
        mutant = text[: wait.start()] + "setp.eq.u32 complete, 0, 0;" + text[wait.end() :]
        result, _, _ = LAUNCHES["matmul_warp_specialised_sm90a"](mutant)
        assert {diagnostic.kind for diagnostic in result.diagnostics} & {"race", "early-read"}


def test_attention() -> None:
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((128, 64)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    result = emulator.run(parse(stored("attention_sm80")), "attention", (2, 1, 1), (128, 1, 1),
                 [q, k, v, out, 128, np.float32(0.125)], 24576)  # fmt: skip
    assert not result.diagnostics
    scores = np.where(np.tril(np.ones((128, 128))) > 0, q.astype(np.float64) @ k.T.astype(np.float64) * 0.125, -1e30)
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    wanted = weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)
    # Weights are rounded to f16, as is the result: 2 ulp of the largest value.
    assert abs(out - wanted).max() <= 4 * 2.0**-11 * abs(wanted).max()


def test_layer_norm_masked_and_scan() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((5, 400)).astype(np.float16)
    w, b = (generator.standard_normal(400).astype(np.float32) for _ in range(2))
    y = np.zeros_like(x)
    result = emulator.run(parse(stored("layer_norm_sm80")), "layernorm", (5, 1, 1), (128, 1, 1),
                 [x, w, b, y, 400, np.float32(1e-5)], 1024)  # fmt: skip
    assert not result.diagnostics
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * w + b
    assert abs(y - wanted).max() <= 2.0**-10 * abs(wanted).max()
    values = generator.integers(-50, 50, 500).astype(np.float32)
    sums, place = np.zeros_like(values), np.zeros(1, np.int32)
    assert not emulator.run(
        parse(stored("scan_sm80")), "scan", (1, 1, 1), (128, 1, 1), [values, sums, place, 500], 32
    ).diagnostics
    assert (sums == values.cumsum()).all()
    assert place[0] == values.argmax()


def test_atomics_and_locks_between_blocks() -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, 700).astype(np.int32)
    high, low, adds = (
        np.full(10, -(2**31), np.int64).astype(np.int32),
        np.full(8, 2**31 - 1, np.int32),
        np.zeros(4, np.int32),
    )
    high[8:] = 0
    old, halves, at = np.zeros(700, np.int32), np.zeros(16, np.float16), np.arange(700)
    assert not emulator.run(parse(stored("atomics_sm80")), "atomics", (3, 1, 1), (128, 1, 1),
                   [x, high, low, adds, old, halves, 700], 1024).diagnostics  # fmt: skip
    assert high[:8].tolist() == [x[at % 8 == row].max() for row in range(8)]
    assert low.tolist() == [x[at % 8 == row].min() for row in range(8)]
    assert high[8:].tolist() == [np.bitwise_xor.reduce(x[at % 2 == row]) for row in range(2)]
    assert all(sorted(old[at % 4 == row]) == list(range(175)) for row in range(4))
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    assert not emulator.run(parse(stored("locks_sm80")), "locks", (6, 1, 1), (128, 1, 1), [lock, count], 4).diagnostics
    assert count[0] == 6


def test_conversions_and_products_of_bytes() -> None:
    import ml_dtypes

    x = (np.random.default_rng(0).standard_normal(256) * 30).astype(np.float32)
    f8, bf, i8, f64 = np.zeros(256, np.uint8), np.zeros(256, np.uint16), np.zeros(256, np.int8), np.zeros(256)
    assert not emulator.run(
        parse(stored("casts_sm80")), "casts", (1, 1, 1), (128, 1, 1), [x, f8, bf, i8, f64]
    ).diagnostics
    assert (f8 == x.astype(ml_dtypes.float8_e5m2).view(np.uint8)).all()
    assert (bf == x.astype(ml_dtypes.bfloat16).view(np.uint16)).all()
    assert (i8 == np.trunc(x).astype(np.int8)).all()
    a = np.random.default_rng(1).integers(-128, 128, (32, 64)).astype(np.int8)
    c = np.zeros((32, 32), np.int32)
    assert not emulator.run(
        parse(stored("dot_s8_sm80")), "dot8", (1, 1, 1), (128, 1, 1), [a, a.reshape(64, 32), c], 4096
    ).diagnostics
    assert (c == a.astype(np.int64) @ a.reshape(64, 32)).all()


def test_kernels_of_cuda() -> None:
    module = parse(stored("cuda_sm80"))
    generator = np.random.default_rng(0)
    x = generator.integers(-9, 9, 5000).astype(np.float32)
    total = np.zeros(1, np.float32)
    assert not emulator.run(module, "reduce", (3, 1, 1), (256, 1, 1), [x, total, 5000]).diagnostics
    assert total[0] == x.sum()
    a, b = (
        generator.integers(-9, 9, (50, 37)).astype(np.float32),
        generator.integers(-9, 9, (37, 45)).astype(np.float32),
    )
    c = np.zeros((50, 45), np.float32)
    assert not emulator.run(module, "sgemm", (3, 4, 1), (16, 16, 1), [a, b, c, 50, 45, 37]).diagnostics
    assert (c == a @ b).all()
    h, g = (
        generator.integers(-3, 3, (32, 48)).astype(np.float16),
        generator.integers(-3, 3, (48, 64)).astype(np.float16),
    )
    d = np.zeros((32, 64), np.float32)
    assert not emulator.run(module, "wgemm", (1, 2, 1), (128, 1, 1), [h, g, d, 64, 48]).diagnostics
    assert (d == h.astype(np.float32) @ g.astype(np.float32)).all()
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    assert not emulator.run(module, "lock", (2, 1, 1), (64, 1, 1), [lock, count]).diagnostics
    assert count[0] == 128
    y = np.zeros(32, np.float32)
    assert not emulator.run(module, "consts", (1, 1, 1), (32, 1, 1), [y]).diagnostics
    assert (y == (np.arange(32) & 7) + 6).all()
    v, out, wide = (generator.standard_normal(300) * 3).astype(np.float32), np.zeros(300, np.float32), np.zeros(300)
    assert not emulator.run(module, "mathk", (3, 1, 1), (128, 1, 1), [v, out, wide, 300]).diagnostics
    f = v.astype(np.float64)
    assert np.allclose(wide, np.exp(f) / (1 + (v * v).astype(np.float64)) + np.sqrt(abs(f)), rtol=1e-13)


def test_the_example_of_addition() -> None:
    with np.load(STORED / "add.npz") as given:
        args = [given[f"p{number}"] for number in range(4)]
        wanted = given["expect2"]
    result = emulator.run(parse(stored("add")), "add", (4, 1, 1), (128, 1, 1), args)
    assert not result.diagnostics
    assert (result.buffers[2] == wanted).all()
    assert result.counts.total("global", "transactions") == 375


def test_a_product_of_256_is_fast() -> None:
    start = time.process_time()
    result, found, wanted = matmul(256, 256, 256)(stored("matmul_f16_sm80"))
    assert time.process_time() - start < 20
    assert not result.diagnostics
    assert (found == wanted).all()


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [((1, 65_536, 1), (32, 1, 1), "65536 blocks along y"), ((1, 1, 65_536), (32, 1, 1), "65536 blocks along z"),
     ((1, 1, 1), (1, 1, 65), "65 threads along z"), ((1, 1, 1), (2048, 1, 1), "2048 threads per block"),
     ((8_388_609, 1, 1), (1, 1, 1), "268435488 threads in whole warps")],
)  # fmt: skip
def test_launches_that_no_device_takes_are_refused(
    grid: tuple[int, int, int], block: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        emulator.run(parse(kernel("ret;")), "k", grid, block, [np.zeros(4, np.float32), np.zeros(4, np.float32)])
