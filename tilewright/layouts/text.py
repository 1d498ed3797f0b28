"""The text of layouts: ``#blocked<S=[1,8], T=[16,2], W=[1,1], O=[1,0]>`` and its relatives, read back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from tilewright.errors import InvalidArgument, nearest
from tilewright.layouts.blocked import Blocked, Slice
from tilewright.layouts.form import Distributed, Form, InShared
from tilewright.layouts.linear import SHORT, LinearLayout, implied_shape, linear, named
from tilewright.layouts.mma import AmdWmma, DotOperand, Mfma, Mma, Wmma
from tilewright.layouts.shared import NvmmaShared, Padded, Shared

Layout = LinearLayout | Distributed | InShared
FORMS: dict[str, type[Form]] = {
    form.FORM: form
    for form in (Blocked, Slice, Mma, Wmma, AmdWmma, Mfma, DotOperand, Shared, Padded, NvmmaShared)
}  # fmt: skip

_TOKEN = re.compile(r"\s*(?:(?P<number>-?\d+)|(?P<name>#?[A-Za-z_]\w*)|(?P<sign>[<>\[\](),:=]))")
_LONG = {short: name for name, short in SHORT.items()}
_SIGNS = dict(zip("<[(", ">])", strict=True))


def parse(text: str, aliases: Mapping[str, Layout] | None = None) -> Layout:
    """Read a layout; a parent may be one of `aliases` (``parent=#b``). The first ``#`` may be left out.

    Raises InvalidArgument, with the place in the text and the nearest legal word.

    >>> str(parse("slice<dim=0, parent=#b>", {"b": parse("blocked<S=[1,8], T=[16,2], W=[1,1], O=[1,0]>")}))
    '#slice<dim=0, parent=#blocked<S=[1,8], T=[16,2], W=[1,1], O=[1,0]>>'
    """
    reader = _Reader(text, aliases or {})
    layout = reader.layout()
    reader.end()
    return layout


class _Reader:
    """Recursive descent: layout = name < key = value, … >; value = number | name | layout | [values] | (values)."""

    def __init__(self, text: str, aliases: Mapping[str, Layout]) -> None:
        self.text, self.aliases, self.at = text, aliases, 0

    def layout(self) -> Layout:
        start = self.at
        name = self.take("name", "a layout").removeprefix("#")
        if not self.sees("<"):
            if name in self.aliases:
                return self.aliases[name]
            self.at = start
            known = [f"#{each}" for each in self.aliases]
            raise self.error(f"{name!r} has no parameters and is no alias", _nearest(name, [*FORMS, "linear"], known))
        if name != "linear" and name not in FORMS:
            self.at = start
            raise self.error(f"no layout {name!r}", _nearest(name, [*FORMS, "linear"]))
        given = self.parameters()
        try:
            return _linear(given) if name == "linear" else _form(FORMS[name], given)
        except InvalidArgument as error:
            where = error.where or self.text[start : self.at]
            raise InvalidArgument(error.message, where=where, help=error.help) from None

    def parameters(self) -> dict[str, Any]:
        self.sign("<")
        found: dict[str, Any] = {}
        while not self.sees(">"):
            start = self.at
            key = self.take("name", "a parameter")
            if key in found:
                self.at = start
                raise self.error(f"two values for {key}", "give one")
            self.sign("=")
            found[key] = self.value()
            if not self.sees(">"):
                self.sign(",")
        self.sign(">")
        return found

    def value(self) -> Any:
        if self.sees("[") or self.sees("("):
            closing = _SIGNS[self.take("sign", "a list")]
            items: list[Any] = []
            while not self.sees(closing):
                items.append(self.value())
                if not self.sees(closing):
                    self.sign(",")
            self.sign(closing)
            return tuple(items)
        if (found := _TOKEN.match(self.text, self.at)) and found["number"]:
            self.at = found.end()
            return int(found["number"])
        if found and found["name"]:
            if found["name"] in ("true", "false"):
                self.at = found.end()
                return found["name"] == "true"
            if found["name"].startswith("#") or self.text[found.end() :].lstrip().startswith("<"):
                return self.layout()
            self.at = found.end()
            if self.sees(":"):  # out=[r:4, l:32]
                self.sign(":")
                return found["name"], int(self.take("number", "an extent"))
        raise self.error("expected a value", "a number, true, false, a list, or a layout")

    def sees(self, sign: str) -> bool:
        found = _TOKEN.match(self.text, self.at)
        return found is not None and found["sign"] == sign

    def sign(self, sign: str) -> None:
        if not self.sees(sign):
            raise self.error(f"expected {sign!r}")
        self.take("sign", sign)

    def take(self, kind: str, what: str) -> str:
        found = _TOKEN.match(self.text, self.at)
        if found is None or not found[kind]:
            raise self.error(f"expected {what}")
        self.at = found.end()
        return found[kind]

    def end(self) -> None:
        if self.text[self.at :].strip():
            raise self.error("the layout has ended")

    def error(self, message: str, help: str = "") -> InvalidArgument:
        rest = self.text[self.at :].strip()
        place = f"before {rest[:20]!r}" if rest else "at the end"
        where = f"layout {self.text.strip()!r}, column {self.at + 1}"
        return InvalidArgument(f"{message} {place}", where=where, help=help)


def _form(form: type[Form], given: dict[str, Any]) -> Any:
    optional = {field.name: field.default for field in fields(form)}  # type: ignore[arg-type]
    if unknown := [key for key in given if key not in form.KEYS]:
        raise InvalidArgument(f"#{form.FORM} has no {unknown[0]}", help=_nearest(unknown[0], list(form.KEYS)))
    missing = [key for key, name in form.KEYS.items() if key not in given and optional[name] is MISSING]
    if missing:
        raise InvalidArgument(f"#{form.FORM} without {', '.join(missing)}", help=f"give {', '.join(form.KEYS)}")
    for key, value in given.items():
        kind = {field.name: field.type for field in fields(form)}[form.KEYS[key]]  # type: ignore[arg-type]
        if not _fits(str(kind), value):
            raise InvalidArgument(f"{key} of #{form.FORM} is {value!s}", help=f"expected {_KINDS.get(str(kind), kind)}")
    return form(**{form.KEYS[key]: value for key, value in given.items()})


_KINDS = {"int": "a number", "bool": "true or false", "tuple[int, ...]": "a list of numbers"}


def _fits(kind: str, value: Any) -> bool:
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "tuple[int, ...]":
        return isinstance(value, tuple) and all(_fits("int", each) for each in value)
    return isinstance(value, Distributed)


def _linear(given: dict[str, Any]) -> LinearLayout:
    shape, outs = given.pop("shape", None), given.pop("out", None)
    bases = {_LONG.get(key, key): value for key, value in given.items()}
    for key, vectors in bases.items():
        if not isinstance(vectors, tuple) or not all(_fits("tuple[int, ...]", base) for base in vectors):
            raise InvalidArgument(f"bases of {key} are {vectors!s}", help="a list of tuples, as [(0,1),(8,0)]")
    ranks = {len(base) for vectors in bases.values() for base in vectors}
    if len(ranks) > 1:
        given_ranks = " and ".join(map(str, sorted(ranks)))
        raise InvalidArgument(f"bases of {given_ranks} dimensions", help="one number per dimension")
    if outs is not None:
        return named(bases, {_LONG.get(name, name): extent for name, extent in outs})
    if shape is None:
        rank = next(iter(ranks), 0)
        shape = implied_shape((base for vectors in bases.values() for base in vectors), rank)
    return linear(shape, **bases)


def _nearest(word: str, known: list[str], more: list[str] | None = None) -> str:
    close = nearest(word, known)
    listed = f"one of {', '.join([*known, *(more or [])])}"
    return f"did you mean {close[0]}? {listed}" if close else listed
