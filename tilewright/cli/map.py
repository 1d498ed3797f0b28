"""`tilewright map`: which loops of a tensor expression an intrinsic can execute, how well, and why not others."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson, Sizes, machine_option, sizes_of
from tilewright.cli.completion import among
from tilewright.cli.console import show_json
from tilewright.cli.printing import say, table
from tilewright.errors import InvalidArgument

if TYPE_CHECKING:
    from tilewright.expr.core import Compute
    from tilewright.instruction.matching import Match
    from tilewright.instruction.offers import Offer
    from tilewright.intrinsics.intrinsic import Intrinsic
    from tilewright.intrinsics.registry import Registry
    from tilewright.machine import Machine

EPILOG = """\
\b
example: tilewright map --expr "C[i,j] += A[i,k]*B[k,j]" \\
             --size i=64,j=64,k=64 --intrinsic wmma_16x16x16_f16_f32
         tilewright map --op C2D --intrinsic mma_m16n8k16_f16_f32 \\
             --explain --mapping "(np|k|c)"
         tilewright map --op DEP --all
exit status: 0 listed, perhaps none with the reason, or the refusal of
             --mapping explained; 2 bad usage or input
"""

_LARGEST_NEST = 1 << 62
_LINES = 20  # of the table of one record

Expression = Annotated[
    str | None, typer.Option("--expr", metavar="TEXT", help="a sum in index notation", show_default=False)
]
OperatorName = Annotated[
    str | None,
    typer.Option(
        "--op",
        metavar="NAME",
        help="an operator of Table 5.3: C2D, GMM, …",
        show_default=False,
        autocompletion=among(completion.operators),
    ),
]
IntrinsicName = Annotated[
    str | None,
    typer.Option(
        "--intrinsic",
        metavar="NAME",
        help="the record to map to",
        show_default=False,
        autocompletion=among(completion.intrinsics),
    ),
]
Records = Annotated[
    Path | None, typer.Option("--records", metavar="FILE", help="a file (YAML, JSON) with records of your own")
]
Every = Annotated[bool, typer.Option("--all", help="what every record offers, one line each")]
ModeName = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="points, signature or amos-compat",
        autocompletion=among(completion.mapping_modes),
    ),
]
Commute = Annotated[bool, typer.Option("--commute", help="also bind the factors in other orders than written")]
Complete = Annotated[
    bool, typer.Option("--complete", help="split loops, or add some of extent 1, where an intrinsic loop has none")
]
Strict = Annotated[bool, typer.Option("--strict", help="leave out mappings that do not fill one tile")]
Flip = Annotated[bool, typer.Option("--flip", help="turn windows that run backwards around by a node of their own")]
Verify = Annotated[bool, typer.Option("--verify", help="run every mapping in emulation on a small instance (V9)")]
Dtypes = Annotated[
    str,
    typer.Option("--dtype", metavar="T|X=T,W=T,Y=T", help="element types (default: those of the record)",
                 show_default=False, autocompletion=among(completion.dtypes)),
]  # fmt: skip
MachineName = Annotated[str, machine_option("whose times (default: a machine that has the record)", show_default=False)]
Explain = Annotated[bool, typer.Option("--explain", help="say why the first mapping wins")]
Asked = Annotated[str, typer.Option("--mapping", metavar="(nq|k|c)", help="judge this mapping too", show_default=False)]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="lines of the table (default: 20; with --all, every record)",
                 show_default=False),
]  # fmt: skip


def map_operator(
    expression: Expression = None, op: OperatorName = None, size: Sizes = None, intrinsic: IntrinsicName = None,
    records: Records = None, every: Every = False, mode: ModeName = "points", commute: Commute = False,
    complete: Complete = False, strict: Strict = False, flip: Flip = False, verify: Verify = False, dtype: Dtypes = "",
    machine: MachineName = "", explain: Explain = False, asked: Asked = "", limit: Limit = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """List the mappings of an expression onto an intrinsic, best first, with predicted times.

    A mapping says which loops each intrinsic loop executes: (nq|k|c). Element types follow the record unless given.
    """
    from tilewright.instruction.mapping import MODES
    from tilewright.intrinsics.files import load_records
    from tilewright.intrinsics.registry import standard

    if mode not in MODES:
        raise InvalidArgument(f"unknown mode {mode!r}", where="--mode", help=f"one of {', '.join(MODES)}")
    registry = standard() if records is None else standard().add(*load_records(records))
    compute = _compute(expression, op, sizes_of(size))
    options = {"commute": commute, "complete": complete, "flip": flip}
    if every:
        if intrinsic or asked or explain or verify or machine:
            raise InvalidArgument("this is about one record", where="--all", help="leave it out, or name no record")
        _show_all(_adapted(compute, dtype, None), registry, dtype, mode, options, strict, limit, as_json)
        return
    if intrinsic is None:
        raise InvalidArgument("no record", where="--intrinsic", help="name one, or --all")
    record = registry.find(intrinsic)
    compute = _adapted(compute, dtype, record)
    target, has = _machine(machine, record)
    _show_one(compute, record, target, has, mode, options, strict, verify, explain, asked, limit or _LINES, as_json)


# What to map


def _compute(expression: str | None, op: str | None, sizes: dict[str, int]) -> Compute:
    if (expression is None) == (op is None):
        raise InvalidArgument("give one expression", where="--expr", help="--expr TEXT or --op NAME")
    if op is not None:
        from tilewright.expr.ops import catalogue

        build: Any = catalogue.build
        node: Compute = build(op.upper(), form="mapping", **sizes).nodes[-1]
    else:
        assert expression is not None, "one of both is given"
        node = _parsed(expression, sizes)
    for axis in node.loops:
        if not isinstance(axis.extent, int):
            raise InvalidArgument(f"loop {axis.name} has no size", where="--size", help=f"--size {axis.name}=16")
        if axis.extent == 0:
            raise InvalidArgument(f"loop {axis.name} has extent 0", where="--size", help="1 or more")
    points = prod(axis.size for axis in node.loops)
    if points > _LARGEST_NEST:
        raise InvalidArgument(f"{points} points are more than 2**62", where="--size", help="smaller extents")
    return node


def _parsed(text: str, sizes: dict[str, int]) -> Compute:
    from tilewright.expr.text import parse_compute

    node = parse_compute(text, sizes, where="--expr")
    known = {axis.name for axis in node.loops}
    for name in sizes:
        if name not in known:
            raise InvalidArgument(f"{name!r} is not a loop", where="--size", help=f"loops: {', '.join(sorted(known))}")
    return node


def _adapted(compute: Compute, dtype: str, record: Intrinsic | None) -> Compute:
    """The expression with the element types asked for, else with those of the record."""
    from tilewright.instruction.matching import adapted, retyped

    if not dtype:
        return compute if record is None else adapted(compute, record)
    return retyped(compute, *_dtypes(dtype, compute))


def _dtypes(text: str, compute: Compute) -> tuple[dict[str, str], str]:
    """Element types by tensor, and that of the result: given, or the usual accumulator of the factors."""
    from tilewright.expr.dtypes import DTYPES, SPELLINGS
    from tilewright.expr.ops.nodes import accumulator

    names = [tensor.name for tensor in compute.inputs()]
    given: dict[str, str] = {}
    for item in (item.strip() for item in text.split(",")):
        name, equals, each = item.rpartition("=")
        if each.lower() not in SPELLINGS:
            raise InvalidArgument(f"unknown dtype {each!r}", where="--dtype", help=f"one of {', '.join(DTYPES)}")
        each = SPELLINGS[each.lower()]
        if equals and name not in (*names, compute.name):
            raise InvalidArgument(f"{name!r} is not a tensor", where="--dtype",
                                  help=f"tensors: {', '.join((*names, compute.name))}")  # fmt: skip
        given.update({name: each} if equals else dict.fromkeys(names, each))
    missing = [name for name in names if name not in given]
    if missing:
        raise InvalidArgument(f"no type for {', '.join(missing)}", where="--dtype", help="one for all, or for each")
    result = given.pop(compute.name, "") or accumulator(*given.values())
    return given, result


def _machine(name: str, record: Intrinsic) -> tuple[Machine, bool]:
    """The machine whose times are told, and whether its description lists the record; the host as it was measured."""
    from tilewright.instruction.offers import has
    from tilewright.machine import names, resolve
    from tilewright.runtime.calibration_file import host_with_rates

    if name and name != "host":
        chosen = resolve(name)
        return chosen, has(chosen, record)
    own = host_with_rates()
    if name:
        return own, has(own, record)
    for each in (own, *map(resolve, names())):
        if has(each, record):
            return each, True
    return own, False


# One record


def _show_one(
    compute: Compute, record: Intrinsic, machine: Machine, has: bool, mode: Any, options: Mapping[str, Any],
    strict: bool, verify: bool, explain: bool, asked: str, limit: int, as_json: bool,
) -> None:  # fmt: skip
    from tilewright.instruction.mapping import distinct, enumerate_mappings, parse_mapping
    from tilewright.instruction.matching import match, mismatch
    from tilewright.instruction.offers import decide, offers
    from tilewright.instruction.validation import judge

    matches = match(compute, record, **options)
    found = offers(
        (each for one in matches for each in enumerate_mappings(one, mode, strict=strict)), machine, mode,
        differential=verify,
    )  # fmt: skip
    why = _why_none(compute, record, matches, mode, strict) if not found else ""
    verdict = None
    if asked:
        if not matches:
            raise InvalidArgument(mismatch(compute, record), where=f"{compute.name} onto {record.name}")
        wanted = parse_mapping(matches[0], asked)
        verdict = str(wanted), judge(wanted, mode, exact=False)
    decision = decide(found, f"{compute.name} onto {record.name}")
    if as_json:
        value: dict[str, Any] = {
            "count": len(found),
            "distinct_programs": len(distinct(offer.mapping for offer in found if offer.refusal is None)),
            "intrinsic": record.name,
            "mode": mode,
            "machine": machine.name,
            "machine_has_intrinsic": has,
            "mappings": [_as_value(offer) for offer in found],
        }
        if why:
            value["why"] = why
        if explain:
            value["decision"] = decision.to_json() if decision else None
        if verdict:
            value["asked"] = _asked_value(*verdict)
        show_json(value)
    else:
        _print_one(found, record, machine, has, mode, why, limit)
        if explain and decision:
            say(f"\n{decision.explain()}")
        if verdict:
            refusal = verdict[1].refusal
            say(f"\n{verdict[0]}: {'valid' if refusal is None else f'refused, {refusal.code}: {refusal.message}'}")
            for note in verdict[1].notes:
                say(f"  note: {note}")


def _as_value(offer: Offer) -> dict[str, Any]:
    value: dict[str, Any] = {"mapping": str(offer.mapping)}
    if offer.physical is None:
        refusal = offer.refusal
        assert refusal is not None, "an offer without storage was refused"
        return {
            **value,
            "loops": {loop: list(axes) for loop, axes in offer.mapping.loops.items()},
            "predicted_seconds": None,
            "calls": None,
            "utilisation": None,
            "refused": {"check": refusal.check, "code": refusal.code, "message": refusal.message},
        }
    facts = offer.physical.to_json()
    swapped = {"operands_swapped": True} if offer.mapping.match.swapped else {}
    notes = {"notes": list(offer.notes)} if offer.notes else {}
    return {**value, "loops": facts.pop("loops"), "predicted_seconds": offer.seconds, **facts, **swapped, **notes}


def _asked_value(name: str, verdict: Any) -> dict[str, Any]:
    refusal = verdict.refusal
    value: dict[str, Any] = {"mapping": name, "valid": refusal is None, "notes": list(verdict.notes)}
    if refusal is not None:
        value |= {"check": refusal.check, "code": refusal.code, "message": refusal.message, "help": refusal.help}
    return value


def _why_none(compute: Compute, record: Intrinsic, matches: tuple[Match, ...], mode: Any, strict: bool) -> str:
    """Why a record has no mapping, and what would give one."""
    from tilewright.instruction.mapping import enumerate_mappings, mappings
    from tilewright.instruction.matching import mismatch

    if not matches:
        return mismatch(compute, record)
    if strict:
        smaller = sum(1 for one in matches for _ in enumerate_mappings(one, mode))
        if smaller:
            return f"{_short_loop(matches[0])}; without --strict, which pads, there are {smaller}"
    completed = len(list(mappings(compute, record, mode, complete=True)))
    if completed:
        return f"an intrinsic loop has no loop of its own; --complete makes some and finds {completed}"
    if mode == "points" and next(mappings(compute, record, "signature"), None) is not None:
        return "no loops can be read off as a table; --mode signature finds mappings"
    return "the loops that are left do not fit those of the record; smaller records may do"


def _short_loop(match: Match) -> str:
    """The first intrinsic loop that all loops which fit it do not fill, in words."""
    for loop in match.record.loops:
        axes = match.candidates(loop)
        values = prod(axis.size for axis in axes)
        if values < loop.extent:
            return f"{loop.name} runs over {loop.extent} values, {' x '.join(axis.name for axis in axes)} over {values}"
    return "no choice of loops fills one tile"


def _print_one(
    found: list[Offer], record: Intrinsic, machine: Machine, has: bool, mode: str, why: str, limit: int
) -> None:
    say(f"{record.name}: {record.compute}, {', '.join(f'{loop.name} {loop.extent}' for loop in record.loops)}")
    say(f"{_counted(len(found), 'mapping')}, mode {mode}" + (f": {why}" if why else ""))
    if not found:
        return
    note = "" if has else f" (its description does not list {record.name})"
    say(f"times of {machine.name}{note}, before any schedule\n")
    rows = []
    for offer in found[:limit]:
        if offer.physical is None:
            rows.append([str(offer.mapping), "refused", "", "", offer.refusal.message if offer.refusal else ""])
            continue
        seconds = "" if offer.seconds is None else f"{offer.seconds:.3g}"
        remark = "one value in a loop" if offer.mapping.degenerate else ""
        remark = "; ".join(part for part in (remark, "operands swapped" if offer.mapping.match.swapped else "") if part)
        calls, utilisation = str(offer.physical.calls), f"{offer.physical.utilisation:.4f}"
        rows.append([str(offer.mapping), seconds, calls, utilisation, remark])
    table({"mapping": "left", "seconds": "right", "calls": "right", "utilisation": "right", "": "left"}, rows)
    if len(found) > limit:
        say(f"… and {len(found) - limit} more (--limit)")


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


# Every record


def _show_all(
    compute: Compute, registry: Registry, dtype: str, mode: Any, options: Mapping[str, Any], strict: bool,
    limit: int | None, as_json: bool,
) -> None:  # fmt: skip
    from tilewright.instruction.mapping import mappings
    from tilewright.instruction.matching import adapted
    from tilewright.instruction.physical import physical

    rows: list[dict[str, Any]] = []
    for record in registry:
        node = compute if dtype else adapted(compute, record)
        found = list(mappings(node, record, mode, strict=strict, **options))
        if not found:
            continue
        best = min((physical(each) for each in found), key=lambda whole: whole.calls)
        rows.append({
            "intrinsic": record.name, "target": record.target, "count": len(found), "fewest_calls": str(best),
            "calls": best.calls, "utilisation": best.utilisation,
        })  # fmt: skip
    if as_json:
        show_json({"mode": mode, "records": rows})
        return
    if not rows:
        say(f"none of {len(registry)} records applies, mode {mode}")
        return
    say(f"{len(rows)} of {len(registry)} records apply, mode {mode}\n")
    cells = [
        [row["intrinsic"], row["target"], str(row["count"]), row["fewest_calls"], str(row["calls"]),
         f"{row['utilisation']:.4f}"]
        for row in rows[:limit]
    ]  # fmt: skip
    table(
        {"intrinsic": "left", "target": "left", "mappings": "right", "fewest calls": "left", "calls": "right",
         "used": "right"},
        cells,
    )  # fmt: skip
    if len(rows) > len(cells):
        say(f"… and {len(rows) - len(cells)} more (--limit)")
