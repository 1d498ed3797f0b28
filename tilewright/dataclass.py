"""`dataclass`: that of the standard library, but a frozen class compiles a method when it is first called.

The standard decorator compiles up to six methods for each class while the class is defined. Most classes that a
process imports are never compared, hashed or printed in it, and many have no instance. Here `__init__`, `__eq__`,
`__hash__` and `__repr__` are at first functions that compile the method, put it in their place and call it. All frozen
classes share `__setattr__` and `__delattr__`. Fields, `replace`, `asdict`, `__match_args__`, `__post_init__` and the
signature of a class are those of the standard decorator. A frozen class cannot have fields of type `InitVar`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_Method = Callable[..., Any]
_FACTORY = type("_Factory", (), {"__repr__": lambda self: "<factory>"})()  # default of a parameter with a factory


def _frozen(cls: Any, *, eq: bool = True, repr: bool = True, slots: bool = False, kw_only: bool = False) -> Any:
    """A frozen data class; raises TypeError for what the standard decorator refuses."""
    defined = set(cls.__dict__)
    if passed := [name for name, kind in inspect.get_annotations(cls).items() if "InitVar" in str(kind)]:
        raise TypeError(f"{cls.__name__}.{passed[0]} is an InitVar: a frozen class stores all that it is given")
    hashes = "__hash__" in defined and not (cls.__hash__ is None and "__eq__" in defined)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # the standard decorator would take the signature of `__init__` for it
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
    if "__init__" not in defined:
        _make_later(made, "__init__", _init)
        made.__signature__ = _Signature(made)
    if repr and "__repr__" not in defined:
        _make_later(made, "__repr__", _repr)
    if eq and "__eq__" not in defined:
        _make_later(made, "__eq__", _eq)
    if eq and not hashes:
        _make_later(made, "__hash__", _hash)
    for method in (_refuse_assignment, _refuse_deletion):
        if method.__name__ in defined:
            raise TypeError(f"{cls.__name__} defines {method.__name__}, which a frozen class cannot")
        setattr(made, method.__name__, method)
    if slots and "__getstate__" not in defined:
        made.__getstate__, made.__setstate__ = _state, _set_state
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """As `dataclasses.dataclass`, which makes the classes that are not frozen or extend a frozen one of its own."""

        def decorated(cls: type) -> type:
            bases = (getattr(base, "__dataclass_params__", None) for base in cls.__mro__[1:])
            if not options.get("frozen") or any(base.frozen for base in bases if base is not None):
                return dataclasses.dataclass(**options)(cls)
            return _frozen(cls, **{name: value for name, value in options.items() if name != "frozen"})

        return decorated if cls is None else decorated(cls)


# Methods of every frozen class ----------------------------------------------------------------------------------------


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_refuse_assignment.__name__, _refuse_deletion.__name__ = "__setattr__", "__delattr__"


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


class _Signature:
    """The signature of a class: that of the `__init__` it will have. Subclasses and instances have their own."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __get__(self, instance: object, owner: type) -> inspect.Signature | None:
        if instance is not None or owner is not self.cls:
            return None
        whole = inspect.signature(_init(owner))
        return whole.replace(parameters=list(whole.parameters.values())[1:])  # without `self`


# Methods that are made when they are first called ---------------------------------------------------------------------


def _make_later(cls: type, name: str, make: Callable[[type], _Method]) -> None:
    """Give `cls` a method that replaces itself by what `make` makes for the class.

    Where another method has taken its place meanwhile, such as one that calls it, that one stays.
    """

    def first(self: Any, /, *arguments: Any, **named: Any) -> Any:
        method = make(cls)
        method.__qualname__, method.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        if cls.__dict__.get(name) is first:
            setattr(cls, name, method)
        return method(self, *arguments, **named)

    first.__name__, first.__qualname__ = name, f"{cls.__qualname__}.{name}"
    setattr(cls, name, first)


def _init(cls: Any) -> _Method:
    """Stores its arguments in the fields, then calls `__post_init__` where there is one."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_factory": _FACTORY}
    parameters: dict[bool, list[str]] = {False: [], True: ["*"]}  # by position, by keyword only
    lines = []
    for field in _fields(cls):
        given = field.name
        if field.default_factory is not MISSING:
            names[f"_make_{field.name}"] = field.default_factory
            default, given = "=_factory", f"_make_{field.name}()"
            if field.init:
                given = f"{given} if {field.name} is _factory else {field.name}"
        elif field.default is not MISSING:
            names[f"_default_{field.name}"] = field.default
            default = f"=_default_{field.name}"
            if not field.init:
                given = f"_default_{field.name}"
        elif not field.init:
            continue  # `__post_init__` stores it
        else:
            default = ""
        if field.init:
            parameters[bool(field.kw_only)].append(field.name + default)
        lines.append(f"_set(self, {field.name!r}, {given})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    keywords = parameters[True] if len(parameters[True]) > 1 else []
    made = _compiled("__init__", ["self", *parameters[False], *keywords], lines or ["pass"], names)
    made.__annotations__ = {**{field.name: field.type for field in _fields(cls) if field.init}, "return": None}
    return made


def _eq(cls: Any) -> _Method:
    compared = [field.name for field in _fields(cls) if field.compare]
    own, others = (_tuple(owner, compared) for owner in ("self", "other"))
    lines = ["if other.__class__ is self.__class__:", f" return {own} == {others}", "return NotImplemented"]
    return _compiled("__eq__", ["self", "other"], lines, {})


def _hash(cls: Any) -> _Method:
    hashed = [field.name for field in _fields(cls) if (field.compare if field.hash is None else field.hash)]
    return _compiled("__hash__", ["self"], [f"return hash({_tuple('self', hashed)})"], {})


def _repr(cls: Any) -> _Method:
    shown = ", ".join(f"{field.name}={{self.{field.name}!r}}" for field in _fields(cls) if field.repr)
    made = _compiled("__repr__", ["self"], [f'return f"{{self.__class__.__qualname__}}({shown})"'], {})
    return recursive_repr("...")(made)


def _fields(cls: Any) -> tuple[Field[Any], ...]:
    return dataclasses.fields(cls)


def _tuple(owner: str, names: list[str]) -> str:
    return f"({''.join(f'{owner}.{name},' for name in names)})"


def _compiled(name: str, parameters: list[str], lines: list[str], names: dict[str, Any]) -> _Method:
    """A function of these lines; `names` are what it uses besides built-in functions."""
    body = "".join(f"\n  {line}" for line in lines)
    enclosing = f"def make({', '.join(names)}):\n def {name}({', '.join(parameters)}):{body}\n return {name}"
    found: dict[str, Any] = {}
    exec(enclosing, {}, found)
    method: _Method = found["make"](**names)
    return method
