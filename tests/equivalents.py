"""Planted errors that change nothing: listed by family, kind and the text of their sites, each with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Planted(Protocol):
    """An error in a kernel; `was` is what stood at its site."""

    @property
    def family(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def was(self) -> str: ...


Error = TypeVar("Error", bound=Planted)
Entry = tuple[str, str, str, Sequence[int], str]
"""Family, a pattern, and kind; a pattern of what stood there; which of the sites that match; why nothing changes."""


def alike(planted: Sequence[Error], kind: str, was: str) -> list[Error]:
    """The errors of a kind at the sites that match a pattern, in order."""
    return [each for each in planted if each.kind == kind and re.search(was, each.was)]


def reason(error: Planted, planted: Sequence[Planted], listed: Sequence[Entry]) -> str:
    """Why an error, one of those `planted` in its kernel, changes nothing; "" where it is not listed."""
    for family, kind, was, sites, why in listed:
        if re.fullmatch(family, error.family) and kind == error.kind:
            found = alike(planted, kind, was)
            if error in found and found.index(error) in sites:
                return why
    return ""
