"""The check of arguments that every builder of the operator library makes: their types are those of its annotations.

A builder then meets tensors, numbers and lists of the right types only, and refuses values itself. Checks are made from
the annotations when a builder is first called.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from typing import Any, Literal, ParamSpec, TypeVar, Union

import numpy as np

from tilewright.errors import InvalidArgument
from tilewright.expr.core import Tensor
from tilewright.expr.dtypes import DTypeLike, named

_P = ParamSpec("_P")
_R = TypeVar("_R")
Check = Callable[[Any], bool]

_LONGEST = 60  # characters of a value that a message shows


def operator(build: Callable[_P, _R]) -> Callable[_P, _R]:
    """A builder that raises InvalidArgument for arguments that are unknown, missing, or of other types.

    Its tensors belong to one graph builder, which is not finished. Its element types (`DTypeLike`) arrive as names.
    """
    rules = _Rules(build)

    @wraps(build)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return build(**rules.checked(args, kwargs))  # type: ignore[call-arg]

    return checked


class _Rules:
    """What the arguments of one builder have to be."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self.build = build

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.build)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of all arguments by name, those of a typed mapping of keywords too."""
        found: dict[str, Any] = {}
        for name, hint in typing.get_type_hints(self.build, include_extras=True).items():
            if (
                name in self.signature.parameters
                and self.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            ):
                (keywords,) = typing.get_args(hint)
                found.update(typing.get_type_hints(keywords))
            elif name != "return":
                found[name] = hint
        return found

    @cached_property
    def checks(self) -> dict[str, Check]:
        return {name: check_of(hint) for name, hint in self.hints.items()}

    @cached_property
    def positional(self) -> list[str]:
        parameters = self.signature.parameters.values()
        return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]

    @cached_property
    def required(self) -> set[str]:
        parameters = self.signature.parameters.values()
        return {each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD}

    @cached_property
    def element_types(self) -> list[str]:
        """The arguments that are element types."""
        return [name for name, hint in self.hints.items() if _mentions(hint, DTypeLike)]

    @cached_property
    def tensors(self) -> list[str]:
        """The arguments that are or hold tensors."""
        return [name for name, hint in self.hints.items() if _mentions(hint, Tensor)]

    def checked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name; raises InvalidArgument unless the builder can be called with them."""
        given = dict(zip(self.positional, args, strict=False))
        if len(args) > len(self.positional) or kwargs.keys() & given or not kwargs.keys() <= self.checks.keys():
            raise self._miscalled(args, kwargs)
        given.update(kwargs)
        if not self.required <= given.keys():
            raise self._miscalled(args, kwargs)
        for name in self.element_types:
            if given.get(name) is not None:
                given[name] = named(given[name], where=f"{self.build.__name__}, {name}")
        for name, value in given.items():
            if not self.checks[name](value):
                raise self._wrong(name, value)
        self._check_builders([each for name in self.tensors for each in _flat(given.get(name))])
        return given

    def _check_builders(self, tensors: Sequence[Tensor]) -> None:
        """Raise InvalidArgument unless the tensors have one graph builder; InvalidExpression where it is finished."""
        where = self.build.__name__
        for tensor in tensors:
            try:
                builder = tensor.builder
            except InvalidArgument as error:
                raise InvalidArgument(error.message, where=where, help=error.help) from error
            if tensor is tensors[0]:
                builder.check_open(where)
            elif builder is not tensors[0].builder:
                fact = f"{tensors[0]} and {tensor} are tensors of two graph builders"
                raise InvalidArgument(fact, where=where, help="make both with one GraphBuilder")

    def _miscalled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> InvalidArgument:
        names = ", ".join(name for name in self.hints if name != "b")
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            return InvalidArgument(str(error), where=self.build.__name__, help=f"its arguments are {names}")
        raise AssertionError(f"{self.build.__name__} can be called with {names}")

    def _wrong(self, name: str, value: Any) -> InvalidArgument:
        shown = repr(value)
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
        fact = f"{name} is a {type(value).__name__}: {shown}"
        return InvalidArgument(fact, where=self.build.__name__, help=f"give {describe(self.hints[name])}")


def _mentions(hint: Any, part: Any) -> bool:
    """Whether an annotation is `part`, or has it among its parts."""
    return hint == part or any(_mentions(each, part) for each in typing.get_args(hint))


def _flat(value: Any) -> Iterator[Tensor]:
    """The tensors that an argument is or lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _flat(each)


def check_of(hint: Any) -> Check:
    """Whether a value has the type of an annotation. A number of NumPy is one of Python; a bool is no number."""
    if hint == DTypeLike:
        return lambda value: isinstance(value, str)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        options = [check_of(part) for part in parts]
        return lambda value: any(option(value) for option in options)
    if origin is Literal:
        return lambda value: isinstance(value, str | int) and value in parts
    if origin is tuple and parts[-1] is not Ellipsis:
        items = [check_of(part) for part in parts]
        return lambda value: (
            isinstance(value, tuple | list)
            and len(value) == len(items)
            and all(item(each) for item, each in zip(items, value, strict=True))
        )
    if origin in (tuple, list, Sequence):
        one = check_of(parts[0])
        return lambda value: isinstance(value, tuple | list | range) and all(map(one, value))
    if origin in (dict, Mapping):
        key, item = map(check_of, parts)
        return lambda value: isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items())
    if origin is Callable or hint is Callable:
        return callable
    if hint is Any:
        return lambda value: True
    if hint in _NUMBERS:
        kinds = _NUMBERS[hint]
        return lambda value: isinstance(value, kinds) and not isinstance(value, bool)
    if hint is bool:
        return lambda value: isinstance(value, bool | np.bool_)
    kind = type(None) if hint is None else origin or hint
    return lambda value: isinstance(value, kind)


_NUMBERS: dict[Any, tuple[type, ...]] = {
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
}

_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "a string", type(None): "None"}


def describe(hint: Any) -> str:
    """An annotation in words."""
    if hint == DTypeLike:
        return "an element type"
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(describe, parts)))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"a tuple of {' and '.join(map(describe, parts))}"
    if origin in (tuple, list, Sequence):
        return f"a list, each {describe(parts[0])}"
    if origin in (dict, Mapping):
        return f"a mapping from {describe(parts[0])} to {describe(parts[1])}"
    if origin is Callable:
        return "a function"
    name = getattr(hint, "__name__", str(hint))
    return _WORDS.get(hint, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
