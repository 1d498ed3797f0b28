"""Padding becomes storage: a padded image is its source, stored with a border."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.decision import Decision, Refusal
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, static_shape
from tilewright.expr.names import claim
from tilewright.expr.rewrite import copy_of, inline
from tilewright.graph.passes.rewritten import Border, Rewritten


@dataclass(frozen=True)
class FoldPadding:
    """Store the source of a padding node with a border, and read the source instead.

    Before:  P[c, p] = p - 1 >= 0 and p - 1 < 8 ? X[c, p - 1] : 0.0    Y[c, p] += P[c, p + r] * W[r]
    After:   Y[c, p] += X[c, p + r - 1] * W[r]    X stored with one 0.0 before and after its second dimension
    Legal when neither X nor P is an output, and X has no border of another value: the readers of P then find in the
    border what the guard gave them. An input is copied into a tensor with a border first. Needs maps inlined, so that
    only readers of windows are left. Afterwards the graph reads outside of shapes, which only storage with these
    borders allows; no pass that assumes otherwise may follow.
    """

    name: ClassVar[str] = "fold-padding"

    def apply(self, state: Rewritten) -> Rewritten:
        produced = {node.name for node in state.graph.nodes}
        outputs = {tensor.name for tensor in state.graph.outputs}
        borders = dict(state.borders)
        nodes = state.graph.producers()
        readers = state.graph.consumers()
        decisions = []
        folded = set()
        inputs = {tensor.name for tensor in state.graph.inputs}
        copies: dict[str, Compute] = {}
        taken = set(state.graph.tensors())
        for name in list(nodes):
            pad = nodes[name]
            found = padding_of(pad)
            if found is None:
                continue
            read, border = found
            if read.tensor.name in inputs and pad.name not in outputs:
                read = _copied(read, copies, taken)
                produced.add(read.tensor.name)
            refusal = _refusal(pad, read, border, produced, outputs, borders)
            if refusal is not None:
                rule, values = refusal
                refused = (Refusal(f"a border of {read.tensor.name}", rule, values),)
                decisions.append(Decision(f"padding {pad.name}", "a copy", "no border can replace it", refused=refused))
                continue
            borders[read.tensor.name] = _joined(borders.get(read.tensor.name), border)
            plain = replace(pad, body=read)
            for reader in readers.get(name, ()):
                nodes[reader.name] = inline(nodes[reader.name], plain)
            folded.add(pad.name)
            chosen = f"a border of {read.tensor.name}, {_words(border)}"
            decisions.append(Decision(f"padding {pad.name}", chosen, "all its readers find the border in memory"))
        kept = (*copies.values(), *(node for node in nodes.values() if node.name not in folded))
        graph = replace(state.graph, nodes=kept)
        return replace(state, graph=graph, borders=borders, decisions=(*state.decisions, *decisions))


def _copied(read: Read, copies: dict[str, Compute], taken: set[str]) -> Read:
    """The same read of a copy of an input, which, unlike the input, has room for a border."""
    source = read.tensor
    if source.name not in copies:
        target = Tensor(claim(f"{source.name}.copy", taken), source.shape, source.dtype)
        copies[source.name] = replace(copy_of(source, target), source=source.name)
    return Read(copies[source.name].output, read.indices)


def _refusal(
    pad: Compute, read: Read, border: Border, produced: set[str], outputs: set[str], borders: dict[str, Border]
) -> tuple[str, str] | None:
    """The rule that keeps a padding node, and the values that break it."""
    source = read.tensor.name
    if pad.name in outputs:
        return "the padded tensor is no output", ""
    if source not in produced:
        return "a kernel of the graph writes the tensor", f"{source} is an input or a constant"
    if source in outputs:
        return "the tensor is no output", ""
    known = borders.get(source)
    if known is not None and known.value != border.value:
        return "one value per border", f"{known.value.value} and {border.value.value}"
    return None


def _joined(known: Border | None, border: Border) -> Border:
    if known is None:
        return border
    pairs = zip(known.widths, border.widths, strict=True)
    return replace(border, widths=tuple((max(a, c), max(b, d)) for (a, b), (c, d) in pairs))


def _words(border: Border) -> str:
    widths = " x ".join(f"{before}+{after}" for before, after in border.widths if before or after)
    return f"{widths} elements of {border.value.value}"


def padding_of(node: Compute) -> tuple[Read, Border] | None:
    """The guarded read and the border of a node that pads with a constant, or None for any other node."""
    body = node.body
    if node.accum is not None or not isinstance(body, Apply) or body.function != "select":
        return None
    condition, read, other = body.args
    if not isinstance(read, Read) or not isinstance(other, Const):
        return None
    wanted: dict[Axis, tuple[int, int]] = {}
    left = [axis for axis in node.axes if axis.extent != 1]
    widths = []
    for index, extent in zip(read.indices, static_shape(read.tensor.shape), strict=True):
        form = affine(index)
        if form is None or len(form.terms) > 1:
            return None
        if not form.terms:
            if form.constant or extent != 1:
                return None
            widths.append((0, 0))
            continue
        ((axis, coefficient),) = form.terms.items()
        before = -form.constant
        after = int(axis.extent) - before - extent  # type: ignore[arg-type]
        if coefficient != 1 or axis not in node.axes or before < 0 or after < 0:
            return None
        if axis in left:
            left.remove(axis)
        elif axis.extent != 1:
            return None
        widths.append((before, after))
        if before or after:
            wanted[axis] = (before, before + extent - 1)
    if left or not wanted or _intervals(condition, node.axes) != wanted:
        return None
    return read, Border(tuple(widths), other)


def _intervals(condition: Expr, axes: tuple[Axis, ...]) -> dict[Axis, tuple[int, int]] | None:
    """The box in which a conjunction of comparisons of single loops holds, for the loops it restricts."""
    found: dict[Axis, tuple[int, int]] = {}
    stack = [condition]
    while stack:
        term = stack.pop()
        if not isinstance(term, Apply):
            return None
        if term.function == "and":
            stack.extend(term.args)
            continue
        if term.function not in ("lt", "le", "gt", "ge") or term.args[0].dtype != "i64":
            return None
        form = affine(term.args[0] - term.args[1])
        if form is None or len(form.terms) != 1:
            return None
        ((axis, coefficient),) = form.terms.items()
        if axis not in axes or coefficient not in (1, -1):
            return None
        low, high = found.get(axis, (0, int(axis.extent) - 1))  # type: ignore[arg-type]
        less = (term.function in ("lt", "le")) == (coefficient == 1)
        strict = 1 if term.function in ("lt", "gt") else 0
        limit = -form.constant * coefficient
        if less:
            high = min(high, limit - strict)
        else:
            low = max(low, limit + strict)
        found[axis] = (low, high)
    return found
