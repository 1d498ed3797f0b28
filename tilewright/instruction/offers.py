"""What a record offers a node: its mappings, validated, in the order of their predicted times; why the first wins.

The order is the one before any schedule: calls at full rate and relayouts at the rate of main memory (`model`). With no
machine it is the number of calls. Ties go to fewer calls, to less data moved, then to the smaller mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Refusal
from tilewright.instruction.mapping import Mapping, Mode
from tilewright.instruction.model import mapping_seconds
from tilewright.instruction.physical import PhysicalMapping, physical
from tilewright.instruction.validation import MappingRefused, judge
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.machine import Cpu, Machine


@dataclass(frozen=True)
class Offer:
    """A mapping with its predicted time (None without a machine), or with the check that refuses it."""

    mapping: Mapping
    physical: PhysicalMapping | None
    seconds: float | None = None
    notes: tuple[str, ...] = ()
    refusal: MappingRefused | None = None

    @property
    def reason(self) -> str:
        """Its figures in words."""
        if self.physical is None:
            return "" if self.refusal is None else self.refusal.message
        whole = self.physical
        time = "" if self.seconds is None else f"{self.seconds:.3g} s: "
        moved = whole.relayout_bytes / 1e6
        return f"{time}{whole.calls} calls, {whole.utilisation:.1%} of their work useful, {moved:.3g} MB of relayouts"


def offers(
    mappings: Iterable[Mapping],
    machine: Machine | None = None,
    mode: Mode = "points",
    *,
    differential: bool = False,
    exact: bool = False,
) -> list[Offer]:
    """The mappings, best first, refused ones last; `differential` runs V9 on each, `exact` is that of `judge`."""
    found = [_offer(mapping, machine, mode, differential, exact) for mapping in mappings]
    return sorted(found, key=_order)


def has(machine: Machine, record: Intrinsic) -> bool:
    """Whether a machine's description lists a record, by name or alias, or what the record is made of."""
    return not {record.name, *record.aliases, record.realised_by}.isdisjoint(machine.intrinsics)


def decide(found: Sequence[Offer], subject: str) -> Decision | None:
    """The first offer against the second, and one refused mapping per violated check; None if nothing is valid."""
    valid = [offer for offer in found if offer.refusal is None]
    if not valid:
        return None
    refused: dict[str, Refusal] = {}
    for offer in found:
        if offer.refusal is not None:
            refused.setdefault(
                offer.refusal.check, Refusal(str(offer.mapping), offer.refusal.code, offer.refusal.message)
            )
    second = valid[1] if len(valid) > 1 else None
    equal = second is not None and _order(second) == _order(valid[0])
    return Decision(
        subject,
        str(valid[0].mapping),
        valid[0].reason,
        str(second.mapping) if second else "",
        "" if second is None else f"{second.reason}; {'equal, and larger' if equal else 'worse'}",
        tuple(refused.values()),
        Cost(seconds=valid[0].seconds),
        None if second is None else Cost(seconds=second.seconds),
    )


def _offer(mapping: Mapping, machine: Machine | None, mode: Mode, differential: bool, exact: bool) -> Offer:
    own = isinstance(machine, Cpu) and has(machine, mapping.record)
    registers = machine.vector_registers if own and isinstance(machine, Cpu) else None
    verdict = judge(mapping, mode, differential=differential, exact=exact, registers=registers)
    if verdict.refusal is not None:
        return Offer(mapping, None, None, verdict.notes, verdict.refusal)
    whole = physical(mapping)
    return Offer(mapping, whole, None if machine is None else mapping_seconds(whole, machine), verdict.notes)


def _order(offer: Offer) -> tuple[bool, float, int, int]:
    if offer.physical is None:
        return True, 0.0, 0, 0
    seconds = offer.seconds if offer.seconds is not None else 0.0
    return False, seconds, offer.physical.calls, offer.physical.relayout_bytes
