"""All records by name and alias, in order of preference. A registry is a value: users add to a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from tilewright import intrinsics
from tilewright.errors import InvalidIntrinsic, nearest
from tilewright.intrinsics import portable
from tilewright.intrinsics.check_record import check
from tilewright.intrinsics.intrinsic import Intrinsic


class Registry:
    """Records in order of preference, each proven consistent (`check_record.check`) when it enters."""

    def __init__(self, records: Iterable[Intrinsic] = ()) -> None:
        """Raises InvalidIntrinsic for a contradictory record, and for a name that two records have."""
        self._records = tuple(records)
        for record in self._records:
            check(record)
        self._by_name = _names(self._records)
        self._by_result: dict[str, tuple[Intrinsic, ...]] = {}
        self._made_of: dict[str, list[Intrinsic]] | None = None

    @classmethod
    def _checked(cls, records: Iterable[Intrinsic]) -> Registry:
        """A registry of records that were checked before."""
        registry = cls()
        registry._records = tuple(records)
        registry._by_name = _names(registry._records)
        return registry

    @property
    def records(self) -> tuple[Intrinsic, ...]:
        return self._records

    def find(self, name: str) -> Intrinsic:
        """The record with this name or alias; raises InvalidIntrinsic with the nearest names."""
        record = self._by_name.get(name)
        if record is None:
            near = nearest(name, self._by_name, 3)
            help = f"nearest: {', '.join(near)}" if near else "`tilewright intrinsics` lists them"
            raise InvalidIntrinsic(f"no intrinsic {name[:60]!r}", help=help)
        return record

    def emitted(self, result: str) -> tuple[Intrinsic, ...]:
        """The records that code generation emits whose result has this element type, in order of preference."""
        found = self._by_result.get(result)
        if found is None:
            found = tuple(each for each in self._records if each.emitter and each.destination.dtype == result)
            self._by_result[result] = found
        return found

    def made_of(self, name: str) -> Sequence[Intrinsic]:
        """The composite records that are made of this instruction, in order of preference."""
        found = self._made_of
        if found is None:
            found = {}
            for record in self._records:
                found.setdefault(record.realised_by, []).append(record)
            self._made_of = found
        return found.get(name, ())

    def add(self, *records: Intrinsic) -> Registry:
        """A registry with more records, preferred to those that are there; one that is there already comes first."""
        known = Registry(records)
        again = {record.name for record in records if self._by_name.get(record.name) == record}
        return Registry._checked((*known.records, *(record for record in self.records if record.name not in again)))

    def without(self, *names: str) -> Registry:
        """A registry that lacks the records with these names or aliases; raises InvalidIntrinsic for unknown ones."""
        gone = {self.find(name).name for name in names}
        return Registry._checked(record for record in self.records if record.name not in gone)

    def select(self, target: str | None = None, features: AbstractSet[str] | None = None) -> Registry:
        """The records of a target, and those whose features are all among `features`; None: any."""
        return Registry._checked(
            record
            for record in self.records
            if (target is None or record.target == target) and (features is None or features >= set(record.features))
        )

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(record.target for record in self.records))

    def __iter__(self) -> Iterator[Intrinsic]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name


def _names(records: Iterable[Intrinsic]) -> dict[str, Intrinsic]:
    found: dict[str, Intrinsic] = {}
    for record in records:
        for name in (record.name, *record.aliases):
            if name in found:
                raise InvalidIntrinsic(f"the name {name!r} is taken by {found[name].name}", where=record.name,
                                       help="names and aliases are unique in a registry")  # fmt: skip
            found[name] = record
    return found


@cache
def targets_of(architecture: str) -> frozenset[str]:
    """The targets whose records a CPU of this architecture may execute."""
    named = {
        record.target
        for package in _packages()
        if architecture in getattr(package, "ARCHITECTURES", ())
        for record in _records_of(package)
    }
    return frozenset({portable.CPU, *named})


@cache
def catalogue(architecture: str) -> Registry:
    """The part of `standard` that a CPU of this architecture may execute, without a look at other targets."""
    packages = [package for package in _packages() if architecture in getattr(package, "ARCHITECTURES", ())]
    return Registry._checked([*(record for each in packages for record in _records_of(each)), *portable.INTRINSICS])


@cache
def standard() -> Registry:
    """The catalogue: the `INTRINSICS` of every module of the target packages here, and the portable ones, last.

    A package of `intrinsics` with a `PREFERENCE` holds records of a target; a new file in it is found, without a line
    elsewhere.
    """
    records = [record for package in _packages() for record in _records_of(package)]
    return Registry._checked([*records, *portable.INTRINSICS])  # tests check every record


def _packages() -> list[ModuleType]:
    """The packages of `intrinsics` that hold records, in order of preference."""
    packages = [
        import_module(f"{intrinsics.__name__}.{module.name}")
        for module in iter_modules(intrinsics.__path__)
        if module.ispkg
    ]
    return sorted((package for package in packages if hasattr(package, "PREFERENCE")), key=lambda p: p.PREFERENCE)


def _records_of(package: ModuleType) -> list[Intrinsic]:
    found: list[Intrinsic] = []
    for module in sorted(iter_modules(package.__path__), key=lambda module: module.name):
        if not module.ispkg:
            found += getattr(import_module(f"{package.__name__}.{module.name}"), "INTRINSICS", ())
    return found
