"""The frozen data classes of this package behave as those of the standard library, and compile their methods late."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tilewright import dataclass as module
from tilewright.dataclass import dataclass

PACKAGE = Path(module.__file__).parent


def _classes(decorate: Callable[..., Any]) -> dict[str, Any]:
    """The same classes by another decorator."""

    @decorate(frozen=True)
    class Point:
        """Two coordinates."""

        x: int
        y: int = 2
        zero: ClassVar[int] = 0

    @decorate(frozen=True)
    class Named(Point):
        """A point with fields of every kind."""

        names: list[str] = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)
        weight: float = field(default=1.0, hash=False)
        size: int = field(init=False)
        kind: str = field(default="named", init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "size", len(self.names))

    @decorate(frozen=True, kw_only=True)
    class Keywords:
        """Arguments by keyword only."""

        a: int
        b: int = 3

    @decorate(frozen=True, slots=True)
    class Slots:
        """Without a `__dict__`."""

        a: int
        b: tuple[int, ...] = ()

    @decorate(frozen=True, eq=False)
    class Identity:
        """Compared by identity."""

        a: int

    @decorate(frozen=True)
    class Own:
        """Has methods of its own."""

        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    @decorate(frozen=True)
    class Empty:
        """No fields."""

    @decorate
    class Mutable:
        """Not frozen."""

        a: int = 0

    return {each.__name__: each for each in (Point, Named, Keywords, Slots, Identity, Own, Empty, Mutable)}


OURS, STANDARD = _classes(dataclass), _classes(dataclasses.dataclass)
ARGUMENTS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}), ("Point", (1, 3), {}), ("Point", (), {"x": 1, "y": 5}), ("Point", (float("nan"),), {}),
    ("Named", (1, 2, ["a"]), {"note": "n"}), ("Named", (1,), {"weight": 2.0}), ("Named", (1,), {"note": "other"}),
    ("Keywords", (), {"a": 1}), ("Slots", (1, (2,)), {}), ("Slots", (1,), {}), ("Identity", (1,), {}),
    ("Own", (1,), {}), ("Empty", (), {}), ("Mutable", (4,), {}),
]  # fmt: skip


@pytest.mark.parametrize("name", list(OURS))
def test_the_class_is_described_as_by_the_standard_library(name: str) -> None:
    ours, standard = OURS[name], STANDARD[name]
    assert dataclasses.is_dataclass(ours)
    assert [str(each) for each in dataclasses.fields(ours)] == [str(each) for each in dataclasses.fields(standard)]
    assert ours.__match_args__ == standard.__match_args__
    assert str(inspect.signature(ours)) == str(inspect.signature(standard))
    assert ours.__doc__ == standard.__doc__
    assert hasattr(ours, "__slots__") == hasattr(standard, "__slots__")


@pytest.mark.parametrize(("name", "arguments", "named"), ARGUMENTS)
def test_an_instance_behaves_as_one_of_the_standard_library(
    name: str, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    ours, standard = OURS[name](*arguments, **named), STANDARD[name](*arguments, **named)
    assert repr(ours).replace("at 0x", "")[:20] == repr(standard).replace("at 0x", "")[:20]
    assert dataclasses.asdict(ours) == dataclasses.asdict(standard) or name == "Point"  # NaN
    for count in (1, 2):  # the first call compiles, the second one runs what was compiled
        assert ours == copy.copy(ours) or name == "Identity", count
        assert (ours == OURS[name](*arguments, **named)) is (standard == STANDARD[name](*arguments, **named)), count
        assert (ours == standard) is (name == "Own")
    if name not in ("Identity", "Empty", "Named"):
        assert (standard.__hash__ is None) or hash(ours) == hash(standard)


@pytest.mark.parametrize("classes", [OURS, STANDARD], ids=["ours", "standard"])
def test_what_is_compared_and_hashed(classes: dict[str, Any]) -> None:
    point, named, slots = classes["Point"], classes["Named"], classes["Slots"]
    assert point(1) == point(1, 2) != point(1, 3)
    assert hash(slots(1)) == hash((1, ())) == hash(slots(1, ()))
    assert named(1, note="a") == named(1, note="b") != named(1, weight=2.0)
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        hash(named(1))
    assert point(1) != named(1, 2)
    assert point(1).__eq__(1) is NotImplemented
    assert {point(1): "found"}[point(1, 2)] == "found"


@pytest.mark.parametrize("classes", [OURS, STANDARD], ids=["ours", "standard"])
@pytest.mark.parametrize("name", ["Point", "Named", "Keywords", "Slots", "Identity"])
def test_an_instance_is_frozen(classes: dict[str, Any], name: str) -> None:
    instance = classes[name](a=1) if name in ("Keywords", "Slots", "Identity") else classes[name](1)
    first = dataclasses.fields(instance)[0].name
    with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{first}'"):
        setattr(instance, first, 2)
    with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{first}'"):
        delattr(instance, first)
    changed = dataclasses.replace(instance, **{first: 9})
    assert getattr(changed, first) == 9


@pytest.mark.parametrize("classes", [OURS, STANDARD], ids=["ours", "standard"])
def test_wrong_arguments_are_refused(classes: dict[str, Any]) -> None:
    for name, arguments, named in [("Point", (), {}), ("Point", (1, 2, 3), {}), ("Keywords", (1,), {}),
                                   ("Named", (1,), {"size": 2}), ("Empty", (1,), {})]:  # fmt: skip
        with pytest.raises(TypeError, match="__init__"):
            classes[name](*arguments, **named)


@dataclass(frozen=True, slots=True)
class Stored:
    """Slots that are pickled."""

    a: int
    b: Any = None


@dataclass(frozen=True)
class Held:
    """Holds another, or itself."""

    inner: Any


@pytest.mark.parametrize("value", [Stored(1), Stored(1, Stored(2)), Held(Stored(3)), Held(Held(1))])
def test_pickles_and_copies_are_equal(value: object) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert copy.deepcopy(value) == value == copy.copy(value)


def test_a_cycle_is_printed() -> None:
    inner: list[Any] = []
    held = Held(inner)
    inner.append(held)
    assert repr(held) == "Held(inner=[...])"


def test_patterns_match() -> None:
    match Stored(1, 2):
        case Stored(a, b):
            assert (a, b) == (1, 2)
        case _:
            pytest.fail("no match")


def test_subclasses_and_instances_have_signatures_of_their_own() -> None:
    @dataclass(frozen=True)
    class Called:
        """Is a function, too."""

        x: int

        def __call__(self, first: int, second: int) -> int:
            return self.x

    class Plain(Called):
        """Has another `__init__`."""

        def __init__(self, other: str) -> None:
            super().__init__(len(other))

    assert list(inspect.signature(Called).parameters) == ["x"]
    assert list(inspect.signature(Called(1)).parameters) == ["first", "second"]
    assert list(inspect.signature(Plain).parameters) == ["other"]
    assert Plain("abc").x == 3


def test_a_method_is_compiled_when_it_is_first_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_method = module._compiled

    def counted(name: str, *arguments: Any) -> Any:
        compiled.append(name)
        return compile_method(name, *arguments)

    monkeypatch.setattr(module, "_compiled", counted)

    @dataclass(frozen=True)
    class Late:
        """A class that was not used."""

        x: int = 0

    assert compiled == []
    for _ in range(3):
        instance, other = Late(1), Late(1)
        assert (instance == other, hash(instance) == hash(other)) == (True, True)
    assert compiled == ["__init__", "__eq__", "__hash__"]
    assert Late.__init__.__qualname__.endswith("Late.__init__")


def test_threads_may_make_the_first_instances_together() -> None:
    @dataclass(frozen=True)
    class Shared:
        """Used by all threads at once."""

        x: int
        y: int = 1

    found: list[object] = []
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait()
        found.append((Shared(1), hash(Shared(1))))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(Shared(1), hash((1, 1)))] * 8


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(TypeError, match="defines __setattr__"):

        @dataclass(frozen=True)
        class _Assigned:
            x: int

            def __setattr__(self, name: str, value: object) -> None: ...

    with pytest.raises(TypeError, match="InitVar"):

        @dataclass(frozen=True)
        class _Passed:
            x: dataclasses.InitVar[int]


def test_all_data_classes_of_the_package_are_made_here() -> None:
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "tests" not in path.parts and path.name != "dataclass.py" and "dataclasses" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses"
        if any(alias.name == "dataclass" for alias in node.names)
    ]
    assert found == []


def test_a_method_that_wraps_one_not_made_yet_stays() -> None:
    @dataclass(frozen=True)
    class Pair:
        left: int
        right: int

    seen = []
    made: Any = Pair.__init__

    def noted(pair: Any, *given: Any, **named: Any) -> None:
        made(pair, *given, **named)
        seen.append(pair)

    Pair.__init__ = noted  # type: ignore[method-assign]
    assert [Pair(1, 2), Pair(3, right=4)] == seen
