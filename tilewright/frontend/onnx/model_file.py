"""Read and check a model: from a path, bytes or a ModelProto to a valid ModelProto of opset 13 or newer."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument, InvalidModel, MissingExtra, Unsupported
from tilewright.files import as_path, reason
from tilewright.frontend.onnx.content import Content, FileBytes
from tilewright.frontend.onnx.weights import Weights, without_weights

OLDEST_OPSET = 13
BY_CHANNEL = "by_channel"  # attribute of PRelu from before opset 7, which the conversion takes for today's
_MOST_BYTES = (1 << 31) - 1  # of a protocol buffer; more weights stand in files beside the model
_HELP = "the path of an .onnx file"
_LARGE_BYTES = 1 << 16  # weights from this size on are not shown to the checker


@dataclass(frozen=True)
class Source:
    """A model as it was given: an `onnx.ModelProto`, or the bytes of a file, which may be read later.

    `where` names it in errors; tensors in other files are looked for in `folder`.
    """

    model: Any
    where: str
    folder: Path | None = None

    @cached_property
    def content(self) -> Content:
        """The bytes of the model. Raises ValueError for a ModelProto that is larger than a protocol buffer may be."""
        if isinstance(self.model, memoryview | FileBytes):
            return self.model
        from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

        try:
            return memoryview(self.model.SerializeToString())
        except EncodeError as error:
            raise ValueError(str(error)) from error


def read_source(model: Any) -> Source:
    """The source that a path, the bytes of a file or a ModelProto stands for; a file is opened.

    Raises InvalidModel for a file that cannot be opened, and for what is none of these.
    """
    if isinstance(model, str | os.PathLike):
        try:
            path = as_path(model, "model")
        except InvalidArgument as wrong:
            raise InvalidModel(wrong.message, where=wrong.where, help=_HELP) from None
        try:
            return Source(FileBytes.opened(path, _MOST_BYTES), str(path), path.parent)
        except FileNotFoundError:
            raise InvalidModel("there is no such file", where=str(path), help=_HELP) from None
        except OSError as failure:
            raise InvalidModel(f"cannot be read: {reason(failure)}", where=str(path), help=_HELP) from failure
    if isinstance(model, bytes | bytearray | memoryview):
        return Source(memoryview(bytes(model)), "model")
    if type(model).__name__ != "ModelProto":
        raise InvalidModel(f"a model of type {type(model).__name__}", help="a path, bytes or an onnx.ModelProto")
    return Source(model, "model")


def read_model(source: Source) -> tuple[Any, Weights]:
    """The checked model of a source, and the elements of those initializers that are without them.

    Raises InvalidModel for what is not a valid model, Unsupported for versions that the onnx package does not know.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise MissingExtra("onnx", "onnx") from error
    where = source.where
    weights: Weights = {}
    if isinstance(source.model, memoryview | FileBytes):
        model, weights = _parse_light(source.model, where)
    else:
        model = onnx.ModelProto()
        model.CopyFrom(source.model)
    _check_versions(model, where)
    _load_external_data(model, source.folder, where)
    _check(model, weights, where)
    if weights and (len(model.functions) or _is_old(model)):
        model, weights = _parse(source.model, where), {}  # the onnx package rewrites it, and may need all of it
        _load_external_data(model, source.folder, where)
    if len(model.functions):
        from onnx import inliner

        try:
            model = inliner.inline_local_functions(model)
        except Exception as error:
            raise InvalidModel(f"its functions cannot be inlined: {_line(error)}", where=where) from error
    return _converted(model, where), weights


def _parse_light(content: Content, where: str) -> tuple[Any, Weights]:
    """The model without its large initializers; all of it where they cannot be separated."""
    try:
        light, weights = without_weights(content)
    except ValueError:
        return _parse(content, where), {}
    return _parse(memoryview(light), where), weights


def _parse(content: Content, where: str) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(bytes(content))
    except (DecodeError, RuntimeError) as error:
        raise InvalidModel(
            f"not an ONNX model: {_line(error)}", where=where, help="the file may be truncated, or of another format"
        ) from error
    if not model.ir_version or not model.HasField("graph"):
        raise InvalidModel("not an ONNX model: it has no graph", where=where, help="give an .onnx file")
    return model


def _check_versions(model: Any, where: str) -> None:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise Unsupported(
                f"opset {opset.version}; this onnx package knows opsets up to {newest}",
                where=where,
                help="export for an older opset, or install a newer onnx",
            )
    if model.ir_version > onnx.IR_VERSION:
        raise Unsupported(
            f"IR version {model.ir_version}; this onnx package knows versions up to {onnx.IR_VERSION}",
            where=where,
            help="export with an older onnx, or install a newer one",
        )


def _load_external_data(model: Any, folder: Path | None, where: str) -> None:
    from onnx import external_data_helper

    if not any(external_data_helper.uses_external_data(t) for t in external_data_helper._get_all_tensors(model)):
        return
    if folder is None:
        raise InvalidModel("its tensors are in other files", where=where, help="give the path of the .onnx file")
    try:
        external_data_helper.load_external_data_for_model(model, str(folder))
    except Exception as error:
        raise InvalidModel(
            f"external data: {_line(error)}", where=where, help="the data files belong beside the .onnx file"
        ) from error


def _check(model: Any, weights: Weights, where: str) -> None:
    """Refuse what the ONNX checker refuses, except inputs and outputs without a shape, which it insists on."""
    import onnx

    light = _shown(model, weights)
    for value in (*light.graph.input, *light.graph.output):
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(light)
    except Exception as error:  # the checker raises its own type, and others from its parsers
        raise InvalidModel(f"the ONNX checker refuses it: {_line(error)}", where=where) from error


def _shown(model: Any, weights: Weights) -> Any:
    """A copy with empty tensors for large weights: the checker copies its model, and has a limit of 2 GB."""
    import onnx

    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, part).extend(getattr(model.graph, part))
    light.graph.name = model.graph.name
    for tensor in model.graph.initializer:
        if tensor.name not in weights and len(tensor.raw_data) < _LARGE_BYTES:
            light.graph.initializer.append(tensor)
        else:
            light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0])
    return light


def _converted(model: Any, where: str) -> Any:
    """`model`, brought to opset 13 if it is older and any of its operators has changed since."""
    from onnx import version_converter

    if not _is_old(model):
        return model
    version = _opset(model)
    try:
        converted = version_converter.convert_version(model, OLDEST_OPSET)
        if list(converted.graph.input) != list(model.graph.input):
            raise ValueError("the conversion changes the inputs")
    except Exception as error:
        raise Unsupported(
            f"opset {version}, which cannot be converted to {OLDEST_OPSET}: {_line(error)}",
            where=where,
            help=f"export for opset {OLDEST_OPSET} or newer",
        ) from error
    if version < 7:
        _mark_slopes(converted.graph)
    return converted


def _is_old(model: Any) -> bool:
    """Whether the model has to be brought to a newer opset."""
    version = _opset(model)
    return version < OLDEST_OPSET and _changed_since(model.graph, version)


def _opset(model: Any) -> int:
    return next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), OLDEST_OPSET)


def _changed_since(graph: Any, version: int) -> bool:
    """Does any node mean something else in opset 13 than in `version`?"""
    import onnx

    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        if any(_changed_since(a.g, version) for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
            return True
        if not all(onnx.defs.has(node.op_type, opset, "") for opset in (version, OLDEST_OPSET)):
            return True
        old = onnx.defs.get_schema(node.op_type, version, "").since_version
        if onnx.defs.get_schema(node.op_type, OLDEST_OPSET, "").since_version != old:
            return True
    return False


def _mark_slopes(graph: Any) -> None:
    """Say of every PRelu that several slopes are of the channels, dimension 1: since opset 7 they broadcast."""
    from onnx import helper

    for node in graph.node:
        if node.op_type == "PRelu" and node.domain in ("", "ai.onnx"):
            node.attribute.append(helper.make_attribute(BY_CHANNEL, 1))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _mark_slopes(attribute.g)


def _line(error: BaseException) -> str:
    """The first lines of a foreign error message, as one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:400] or type(error).__name__
