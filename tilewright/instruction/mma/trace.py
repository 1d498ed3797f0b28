"""The trace of a deduction: events as data, and their text.

`FIELDS` names the values of every kind of event; tests and tools rely on these names. Rendering is a function per
kind, so a deduction that nobody reads formats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from tilewright.instruction.mma.problem import sizes_text
from tilewright.instruction.mma.schedule import counts_text

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "schedule.begin": ("op", "target", "arch", "policy"),
    "schedule.dims": ("m", "n", "k", "batch", "loops", "static"),
    "strategy.try": ("strategy",),
    "strategy.refuse": ("strategy", "reason"),
    "attempt.begin": ("attempt", "types", "intrinsics", "shared_limit", "subgroup", "upcast", "aligned_only", "stage_c",
                      "lhs_transposed", "rhs_transposed"),
    "attempt.fail": ("attempt", "reason"),
    "size.class": ("intensity", "size_class", "cutoffs"),
    "size.units": ("workgroups", "units", "mn_tiles"),
    "seeds": ("subgroups", "mn_tiles", "k_tiles", "k_elements", "why"),
    "intrinsic.try": ("index", "count", "intrinsic", "shape", "types"),
    "intrinsic.check": ("rule", "values", "ok"),
    "intrinsic.skip": ("intrinsic", "reason"),
    "intrinsic.take": ("intrinsic",),
    "initial.tiles": ("m", "n", "k", "shape", "m_count", "n_count", "k_count"),
    "initial.split": ("m_dim", "n_dim", "sqrt_subgroups", "sqrt_tiles", "count", "branch"),
    "initial.m": ("dim", "subgroups", "tiles", "gcd_of", "left_subgroups", "left_tiles"),
    "initial.n": ("dim", "subgroups", "tiles", "gcd_of", "left_subgroups", "left_tiles"),
    "initial.k": ("wanted", "steps"),
    "initial.done": ("shape", "m_subgroups", "n_subgroups", "m_tiles", "n_tiles", "k_tiles"),
    "valid.align": ("m", "n", "k", "m_factors", "k_factors", "ok"),
    "valid.copy": ("threads", "lhs_load", "rhs_load", "tile", "lhs_inner", "lhs_loads", "rhs_inner", "rhs_loads", "ok"),
    "valid.shared": ("lhs", "rhs", "c", "stages", "total", "limit", "ok"),
    "valid.total": ("first", "second", "limit", "ok"),
    "valid.result": ("valid",),
    "fit.step": ("number", "list", "dim", "old", "new"),
    "fit.done": ("steps",),
    "fit.fail": ("steps",),
    "cost.compare": ("candidates", "chosen", "seconds", "heuristic_seconds"),
    "table.row": ("block", "threads", "stages", "refused"),
    "fallback.rule": ("strategy", "rule"),
    "config": ("config",),
    "config.grid": ("factors", "workgroups", "k_steps", "intrinsics_per_step"),
    "schedule.end": ("path", "intrinsic"),
}  # fmt: skip


class Event(NamedTuple):
    """One event: its kind, and its values in the order of `FIELDS`."""

    kind: str
    values: tuple[Any, ...]

    @property
    def fields(self) -> dict[str, Any]:
        """The values by name."""
        return dict(zip(FIELDS[self.kind], self.values, strict=True))

    def __str__(self) -> str:
        return f"{self.kind:<17}{_TEXT[self.kind](*self.values)}"


_new = tuple.__new__  # as Event(kind, values), at half the cost


class Trace(list[Event]):
    """Events in the order in which they happened."""

    def add(self, kind: str, *values: Any) -> None:
        self.append(_new(Event, (kind, values)))


def explain(events: Iterable[Event]) -> str:
    """One line per event."""
    return "\n".join(str(event) for event in events)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _pass(ok: bool) -> str:
    return "pass" if ok else "fail"


def _dims(m: Any, n: Any, k: Any, batch: Any, loops: tuple[str, ...], static: bool) -> str:
    sizes = f"m={sizes_text(m)} n={sizes_text(n)} k={sizes_text(k)} batch={sizes_text(batch)}"
    return f"{sizes} loops=[{', '.join(loops)}] static={_yes(static)}"


def _attempt(
    attempt: str, types: str, count: int, limit: int, subgroup: int, upcast: bool, aligned: bool, stage_c: bool,
    lhs: bool, rhs: bool,
) -> str:  # fmt: skip
    return (
        f"{attempt} types {types} intrinsics={count} shared-limit={limit} subgroup={subgroup} upcast={_yes(upcast)} "
        f"aligned-only={_yes(aligned)} stage-c={_yes(stage_c)} transposed={_yes(lhs)},{_yes(rhs)}"
    )


def _check(rule: str, values: tuple[Any, ...], ok: bool) -> str:
    if rule == "input-types":
        a, b, own_a, own_b = values
        text = f"{a},{b} {'=' if ok else '!='} {own_a},{own_b}"
    elif rule == "accumulator-type":
        wanted, own = values
        text = f"{wanted} {'=' if wanted == own else 'upcast to' if ok else '!='} {own}"
    elif rule == "aligned":
        text = "  ".join(f"{size}%{step}={size % step}" for size, step in values)
    else:
        m, n, subgroup = values
        text = f"m={m} n={n} subgroup={subgroup}"
    return f"{rule}  {text}  {'ok' if ok else 'no'}"


def _tiles(m: Any, n: Any, k: Any, shape: tuple[int, int, int], *counts: tuple[int, ...]) -> str:
    named = zip("mnk", (m, n, k), shape, counts, strict=True)
    return "   ".join(
        f"{letter}: {counts_text(sizes)}/{step} = {counts_text(count)}" for letter, sizes, step, count in named
    )


def _split(m_dim: int | None, n_dim: int | None, subgroups: int, tiles: int, count: int | None, branch: str) -> str:
    if m_dim == n_dim:
        dim = str(m_dim)
    else:
        dim = f"m{'-' if m_dim is None else m_dim} n{'-' if n_dim is None else n_dim}"
    step = subgroups * tiles
    if count is None:
        comparison = "no m" if m_dim is None else "no n"
    elif count > step:
        comparison = f"{count} > {step} and {count}%{step}={count % step}"
    else:
        comparison = f"{count} <= {step}"
    return f"dim {dim}: sqrt-subgroups={subgroups} sqrt-tiles={tiles}; {comparison} -> {branch}"


def _share(
    dim: int, subgroups: int, tiles: int, gcd_of: tuple[int, int, int, int] | None, left_subgroups: int, left_tiles: int
) -> str:
    if gcd_of is None:
        taken = f"subgroups={subgroups} tiles={tiles}"
    else:
        count, wanted_subgroups, rest, wanted_tiles = gcd_of
        taken = f"subgroups=gcd({count},{wanted_subgroups})={subgroups} tiles=gcd({rest},{wanted_tiles})={tiles}"
    return f"{taken}   left: subgroups={left_subgroups} tiles={left_tiles}"


def _k(wanted: int, steps: tuple[tuple[int, int, int], ...]) -> str:
    return " ".join([f"wanted={wanted}", *(f"gcd({count},{want})={got}" for count, want, got in steps)])


def _done(shape: str, m_subgroups: Any, n_subgroups: Any, m_tiles: Any, n_tiles: Any, k_tiles: Any) -> str:
    subgroups = ",".join(counts_text(each) for each in (m_subgroups, n_subgroups))
    tiles = ",".join(counts_text(each) for each in (m_tiles, n_tiles, k_tiles))
    return f"{shape}  sg {subgroups}  tiles {tiles}"


def _align(m: Any, n: Any, k: Any, m_factors: tuple[int, ...], k_factors: tuple[int, ...], ok: bool | None) -> str:
    if ok is None:
        return "not checked: the copies are masked"

    def quotients(pairs: tuple[tuple[int, int], ...], factors: tuple[int, ...] = ()) -> str:
        texts = [f"{size}%{step}={size % step}" for size, step in pairs]
        if factors:
            size, step = pairs[-1]
            texts[-1] = f"{size}%({'*'.join(map(str, factors))}={step})={size % step}"
        return ",".join(texts)

    return f"m {quotients(m, m_factors)}  n {quotients(n)}  k {quotients(k, k_factors)}  {_pass(ok)}"


def _copy(
    threads: int, lhs_load: int, rhs_load: int, tile: tuple[int, int, int], lhs_inner: int, lhs_loads: int,
    rhs_inner: int, rhs_loads: int, ok: bool,
) -> str:  # fmt: skip
    load = str(lhs_load) if lhs_load == rhs_load else f"{lhs_load},{rhs_load}"
    inner = f"lhs-inner={lhs_inner} ({lhs_loads} loads) rhs-inner={rhs_inner} ({rhs_loads} loads)"
    return f"threads={threads} elements-per-load={load} wg={'x'.join(map(str, tile))} {inner}  {_pass(ok)}"


def _shared(lhs: Any, rhs: Any, c: Any, stages: int, total: int, limit: int, ok: bool) -> str:
    parts = [("lhs", lhs), ("rhs", rhs), *([("c", c)] if c else [])]
    terms = "  ".join(f"{name} {rows}*{columns}*{bits}/8={size}" for name, (rows, columns, bits, size) in parts)
    kept = f"  stages={stages}" if stages != 1 else ""
    return f"{terms}{kept}  total {total} of {limit} ({100 * total / limit:.1f}%)  {_pass(ok)}"


def _total(first: int, second: int, limit: int, ok: bool) -> str:
    return f"first product {first} + second product {second} = {first + second} of {limit}  {_pass(ok)}"


def _grid(factors: tuple[int | None, ...], workgroups: int | None, k_steps: int | None, intrinsics: int | None) -> str:
    def known(count: int | None) -> str:
        return "?" if count is None else str(count)

    grid = " x ".join(known(factor) for factor in factors)
    matrix = "" if intrinsics is None else f"   intrinsics-per-subgroup-and-k-step={intrinsics}"
    return f"{grid} = {known(workgroups)} workgroups   k-steps={known(k_steps)}{matrix}"


_TEXT: Final[dict[str, Callable[..., str]]] = {
    "schedule.begin": lambda op, target, arch, policy: f"op={op} target={target} arch={arch} policy={policy}",
    "schedule.dims": _dims,
    "strategy.try": lambda strategy: str(strategy),
    "strategy.refuse": lambda strategy, reason: f"{strategy} {reason}",
    "attempt.begin": _attempt,
    "attempt.fail": lambda attempt, reason: f"{attempt} {reason}",
    "size.class": lambda intensity, size_class, cutoffs: (
        f"intensity={intensity} class={size_class} cut-offs={','.join(f'{value:g}' for value in cutoffs)}"
    ),
    "size.units": lambda workgroups, units, mn_tiles: f"{workgroups} workgroups for {units} units: mn-tiles={mn_tiles}",
    "seeds": lambda subgroups, mn_tiles, k_tiles, k_elements, why: (
        f"subgroups={subgroups} mn-tiles={mn_tiles} k-tiles={k_tiles} k-elements={k_elements}   ({why})"
    ),
    "intrinsic.try": lambda index, count, name, shape, types: f"{index}/{count} {name}  {shape}  {types}",
    "intrinsic.check": _check,
    "intrinsic.skip": lambda name, reason: f"{name} {reason}",
    "intrinsic.take": lambda name: str(name),
    "initial.tiles": _tiles,
    "initial.split": _split,
    "initial.m": _share,
    "initial.n": _share,
    "initial.k": _k,
    "initial.done": _done,
    "valid.align": _align,
    "valid.copy": _copy,
    "valid.shared": _shared,
    "valid.total": _total,
    "valid.result": lambda valid: "valid" if valid else "invalid",
    "fit.step": lambda number, name, dim, old, new: f"{number}: {name}[{dim}] {old} -> {new}",
    "fit.done": lambda steps: f"steps={steps}",
    "fit.fail": lambda steps: f"steps={steps}",
    "cost.compare": lambda candidates, chosen, seconds, heuristic: (
        f"{candidates} neighbours; {chosen} at {seconds:.3g} s, the heuristic's at {heuristic:.3g} s"
    ),
    "table.row": lambda block, threads, stages, refused: (
        f"{'x'.join(map(str, block))} threads={'x'.join(map(str, threads))} stages={stages}  "
        f"{'; '.join(refused) or 'take'}"
    ),
    "fallback.rule": lambda strategy, rule: f"{strategy} {rule}",
    "config": lambda config: str(config),
    "config.grid": _grid,
    "schedule.end": lambda path, intrinsic: f"path={path} intrinsic={intrinsic or 'none'}",
}
