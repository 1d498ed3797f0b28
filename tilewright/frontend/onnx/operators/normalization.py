"""Softmax and normalisations."""

from __future__ import annotations

from tilewright.errors import Unsupported
from tilewright.expr.core import Tensor
from tilewright.expr.ops import norm as ops
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


@op("Softmax")
def softmax(node: Node) -> Tensor:
    return ops.softmax(node.input(), axis=node.get_int("axis", -1), name=node.name)


@op("LogSoftmax")
def log_softmax(node: Node) -> Tensor:
    return ops.log_softmax(node.input(), axis=node.get_int("axis", -1), name=node.name)


@op("LayerNormalization")
def layer_norm(node: Node) -> tuple[Tensor, ...]:
    return ops.layer_norm_statistics(
        node.input(0),
        node.input(1),
        node.optional(2),
        axis=node.get_int("axis", -1),
        epsilon=node.get_float("epsilon", 1e-5),
        name=node.name,
    )


@op("RMSNormalization")
def rms_norm(node: Node) -> Tensor:
    return ops.rms_norm(
        node.input(0),
        node.input(1),
        axis=node.get_int("axis", -1),
        epsilon=node.get_float("epsilon", 1e-5),
        name=node.name,
    )


@op("BatchNormalization")
def batch_norm(node: Node) -> tuple[Tensor, ...]:
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    epsilon = node.get_float("epsilon", 1e-5)
    if node.get_int("training_mode", 0):
        momentum = node.get_float("momentum", 0.9)
        return ops.batch_norm_training(
            x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum, name=node.name
        )
    if any(node.wants(position) for position in range(1, 5)):
        raise Unsupported("statistics as outputs without training_mode")
    return (ops.batch_norm(x, scale, bias, mean, variance, epsilon=epsilon, name=node.name),)


@op("InstanceNormalization")
def instance_norm(node: Node) -> Tensor:
    return ops.instance_norm(
        node.input(0), node.input(1), node.input(2), epsilon=node.get_float("epsilon", 1e-5), name=node.name
    )


@op("GroupNormalization")
def group_norm(node: Node) -> Tensor:
    """Scale and bias are per group before opset 21, per channel since; the builder takes both."""
    return ops.group_norm(
        node.input(0),
        node.input(1),
        node.input(2),
        groups=node.get_int("num_groups"),
        epsilon=node.get_float("epsilon", 1e-5),
        name=node.name,
    )


@op("MeanVarianceNormalization")
def mean_variance_norm(node: Node) -> Tensor:
    return ops.mean_variance_norm(node.input(), axes=node.get_ints("axes", [0, 2, 3]), name=node.name)


@op("LpNormalization")
def lp_norm(node: Node) -> Tensor:
    return ops.lp_norm(node.input(), axis=node.get_int("axis", -1), p=node.get_int("p", 2), name=node.name)


@op("LRN")
def local_response_norm(node: Node) -> Tensor:
    return ops.local_response_norm(
        node.input(),
        size=node.get_int("size"),
        alpha=node.get_float("alpha", 1e-4),
        beta=node.get_float("beta", 0.75),
        bias=node.get_float("bias", 1.0),
        name=node.name,
    )
