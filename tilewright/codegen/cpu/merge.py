"""Relocatable ELF files to one: sections of a name follow each other, symbols are resolved among the files.

What a linker does for a relocatable result (`ld -r`), for what LLVM emits here: 64 bits, little-endian, relocations
with addends (RELA), no groups of sections. Layouts of headers, symbols and relocations are those of elf(5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Final, NamedTuple

from tilewright.dataclass import dataclass

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QIIq")  # offset, type, symbol, addend
_SYMTAB, _STRTAB, _RELA, _NOBITS = 2, 3, 4, 8  # types of sections
_DROPPED: Final = (b".llvm_addrsig",)  # holds numbers of symbols, for linkers that fold equal functions
_LOCAL, _SECTION_SYMBOL = 0, 3  # binding and type of a symbol
_RESERVED: Final = 0xFF00  # section numbers from here on are no sections
_MOST_SECTIONS: Final = _RESERVED - 4


class _Symbol(NamedTuple):
    name: bytes
    kind: int  # binding and type
    other: int  # visibility
    section: int  # of its file
    value: int
    size: int

    @property
    def is_local(self) -> bool:
        return self.kind >> 4 == _LOCAL


@dataclass
class _Section:
    """A section of the result; `symbol` is the number of the symbol that stands for it."""

    name: bytes
    type: int
    flags: int
    entry_bytes: int
    align: int = 1
    content: bytearray = field(default_factory=bytearray)
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)  # as in `_RELOCATION`
    symbol: int = 0

    def append(self, content: bytes | bytearray, align: int) -> int:
        """The offset at which `content` then lies."""
        self.align = max(self.align, align)
        self.content += bytes(-len(self.content) % max(1, align))
        start = len(self.content)
        self.content += content
        return start


class _File:
    """A relocatable file that is read."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.header = _HEADER.unpack_from(code)
        offset, count, names = self.header[6], self.header[12], self.header[13]
        self.sections = [_SECTION.unpack_from(code, offset + number * _SECTION.size) for number in range(count)]
        strings = self.content(names)
        self.names = [_text(strings, section[0]) for section in self.sections]
        self.symbols = list(self._symbols())

    def content(self, number: int) -> bytes:
        _, kind, _, _, offset, size, *_ = self.sections[number]
        assert kind != _NOBITS, "kernels have no variables"
        return self.code[offset : offset + size]

    def _symbols(self) -> Iterator[_Symbol]:
        number = next(number for number, section in enumerate(self.sections) if section[1] == _SYMTAB)
        strings = self.content(self.sections[number][6])
        for name, *rest in _SYMBOL.iter_unpack(self.content(number)):
            yield _Symbol(_text(strings, name), *rest)


def merged(files: Sequence[bytes]) -> bytes:
    """One relocatable file with all that is in `files`, which are for one machine. The same files, the same bytes."""
    return files[0] if len(files) == 1 else _Merged([_File(code) for code in files]).written()


class _Merged:
    """The result while it is made: sections by name, local symbols before global ones."""

    def __init__(self, files: Sequence[_File]) -> None:
        self.header = files[0].header
        self.sections: dict[bytes, _Section] = {}
        starts = [self._placed(file) for file in files]
        self.numbers = {name: number for number, name in enumerate(self.sections, 1)}
        assert len(self.numbers) < _MOST_SECTIONS, "sections are those of a few names"
        self.symbols = [_Symbol(b"", 0, 0, 0, 0, 0)]
        for number, section in enumerate(self.sections.values(), 1):
            section.symbol = len(self.symbols)
            self.symbols.append(_Symbol(b"", _SECTION_SYMBOL, 0, number, 0, 0))
        numbers = [self._locals(file, start) for file, start in zip(files, starts, strict=True)]
        self.locals = len(self.symbols)
        globals_ = self._globals(files, starts)
        for file, start, own in zip(files, starts, numbers, strict=True):
            own |= {n: globals_[symbol.name] for n, symbol in enumerate(file.symbols) if not symbol.is_local}
            self._relocate(file, start, own)

    def _placed(self, file: _File) -> dict[int, int]:
        """Appends the sections of a file; where each of them, by number, begins in the one of its name."""
        starts = {}
        for number, (_, kind, flags, _, _, _, _, _, align, entry) in enumerate(file.sections):
            name = file.names[number]
            if kind not in (0, _SYMTAB, _STRTAB, _RELA) and name not in _DROPPED:
                section = self.sections.setdefault(name, _Section(name, kind, flags, entry))
                starts[number] = section.append(file.content(number), align)
        return starts

    def _moved(self, file: _File, starts: dict[int, int], symbol: _Symbol) -> _Symbol:
        if symbol.section == 0 or symbol.section >= _RESERVED:
            return symbol
        place = self.numbers[file.names[symbol.section]]
        return symbol._replace(section=place, value=symbol.value + starts[symbol.section])

    def _locals(self, file: _File, starts: dict[int, int]) -> dict[int, int]:
        """Adds the local symbols of a file, but not those of sections; their numbers here, by those in the file."""
        numbers = {}
        for number, symbol in enumerate(file.symbols[1:], 1):
            if symbol.is_local and symbol.kind != _SECTION_SYMBOL:
                numbers[number] = len(self.symbols)
                self.symbols.append(self._moved(file, starts, symbol))
        return numbers

    def _globals(self, files: Sequence[_File], starts: Sequence[dict[int, int]]) -> dict[bytes, int]:
        """Adds the global symbols, each where it is defined; their numbers by name."""
        found: dict[bytes, _Symbol] = {}
        for file, start in zip(files, starts, strict=True):
            for symbol in file.symbols:
                if not symbol.is_local and (symbol.section or symbol.name not in found):
                    assert symbol.name not in found or not found[symbol.name].section, "kernels have names of their own"
                    found[symbol.name] = self._moved(file, start, symbol)
        numbers = {name: number for number, name in enumerate(found, len(self.symbols))}
        self.symbols += found.values()
        return numbers

    def _relocate(self, file: _File, starts: dict[int, int], numbers: dict[int, int]) -> None:
        for number, (_, kind, _, _, _, _, _, place, _, _) in enumerate(file.sections):
            if kind != _RELA or place not in starts:
                continue
            section = self.sections[file.names[place]]
            for offset, relocation, target, addend in _RELOCATION.iter_unpack(file.content(number)):
                symbol = file.symbols[target]
                if symbol.kind == _SECTION_SYMBOL:
                    addend += starts[symbol.section]
                    own = self.sections[file.names[symbol.section]].symbol
                else:
                    own = numbers[target]
                section.relocations.append((starts[place] + offset, relocation, own, addend))

    def written(self) -> bytes:
        strings = _Strings()
        tables: list[_Section] = []
        links: list[tuple[int, int]] = [(0, 0)] * len(self.sections)
        symtab = len(self.sections) + sum(bool(section.relocations) for section in self.sections.values()) + 1
        for number, section in enumerate(self.sections.values(), 1):
            if section.relocations:
                content = bytearray(b"".join(_RELOCATION.pack(*each) for each in section.relocations))
                flags = 0x40  # SHF_INFO_LINK: the field `info` is the number of a section
                tables.append(_Section(b".rela" + section.name, _RELA, flags, _RELOCATION.size, 8, content))
                links.append((symtab, number))
        symbols = b"".join(_SYMBOL.pack(strings.place(symbol.name), *symbol[1:]) for symbol in self.symbols)
        tables.append(_Section(b".symtab", _SYMTAB, 0, _SYMBOL.size, 8, bytearray(symbols)))
        links.append((symtab + 1, self.locals))
        sections = [*self.sections.values(), *tables]
        names = [strings.place(section.name) for section in sections] + [strings.place(b".strtab")]
        sections.append(_Section(b".strtab", _STRTAB, 0, 0, 1, strings.content))
        links.append((0, 0))
        return self._file(sections, names, links)

    def _file(self, sections: Sequence[_Section], names: Sequence[int], links: Sequence[tuple[int, int]]) -> bytes:
        code = _Section(b"", 0, 0, 0, content=bytearray(_HEADER.size))
        headers = [_SECTION.pack(*[0] * 10)]
        for section, name, (link, info) in zip(sections, names, links, strict=True):
            start, size = code.append(section.content, section.align), len(section.content)
            fields = (name, section.type, section.flags, 0, start, size, link, info, section.align, section.entry_bytes)
            headers.append(_SECTION.pack(*fields))
        start = code.append(b"".join(headers), 8)
        header = [*self.header[:6], start, *self.header[7:12], len(headers), len(headers) - 1]
        _HEADER.pack_into(code.content, 0, *header)
        return bytes(code.content)


class _Strings:
    """A string table; equal strings stand there once."""

    def __init__(self) -> None:
        self.content = bytearray(1)
        self._places = {b"": 0}

    def place(self, text: bytes) -> int:
        if text not in self._places:
            self._places[text] = len(self.content)
            self.content += text + b"\0"
        return self._places[text]


def _text(strings: bytes, place: int) -> bytes:
    return strings[place : strings.index(b"\0", place)]
