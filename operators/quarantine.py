"""Quarantine: numbers that are not finite go no further than the node, and the message, in which they arose.

A poisoned gradient counts as a zero gradient under its own number, so that clocks, gates and barriers go on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from dataflow.errors import OperatorError
from dataflow.node_context import NodeContext
from operators.dnn.arrays import read_only
from operators.jit import compiled
from operators.messages import Batch, Fragment, Vector, Weights

MAX_POISON = 10
"""Poisoned gradients of a node that a job bears unless it is told otherwise."""

GROWN = 100.0
"""A weight larger than this speaks for training that diverges, and not for poisoned data."""

_IMAGE = "has pixels that are not finite"


def sound(values: Vector) -> bool:
    """Whether all values are finite, and so small that the sum of their squares is too: their norm is below 1.8e19.

    What is larger diverges, and would soon be infinite in sums. One pass, without the interpreter.

    Args:
        values: (elements,) float32, contiguous.
    """
    return math.isfinite(_squares(values))


def compile_check() -> None:
    """Compile what `sound` needs, or load it from disk, so that no step waits for it."""
    values = np.zeros(1, np.float32)
    sound(values)
    sound(read_only(values))


def poison(batch: Batch, loss: float, gradient: Vector) -> str:
    """What is wrong with the gradient of a shard; empty if nothing is.

    Args:
        batch: the shard.
        loss: of its images.
        gradient: (weights,) float32, of that loss.
    """
    if math.isfinite(loss) and sound(gradient):
        return ""
    images = np.flatnonzero(~np.isfinite(batch.images).all(axis=tuple(range(1, batch.images.ndim))))
    if images.size:
        return f"image {images[0]} in shard {batch.shard} of mini-batch {batch.step} {_IMAGE}"
    return (
        f"the loss is {loss}" if not math.isfinite(loss) else "the gradient is not finite, or larger than any sum bears"
    )


def advice(poison: str, weights: Vector) -> tuple[str, str]:
    """What a poisoned gradient speaks for besides `poison`, and what to do about it.

    Args:
        poison: what is wrong with it.
        weights: (weights,) float32, that it was computed with.
    """
    if poison.endswith(_IMAGE):
        return "", "look at the data, and at the operators between source and compute"
    largest = float(np.abs(weights).max(initial=0.0))
    if largest <= GROWN:
        fix = "look at the data and at the network's own layers, or lower lr; max_poison=N bears more"
        return f" though no weight is larger than {largest:.3g}", fix
    fix = "lower lr or momentum, add warm-up (warmup=1) or a warm start (warm_start=0.1)"
    grown = f"a weight has grown to {largest:.3g}" if math.isfinite(largest) else "weights are no longer finite"
    return f" and {grown}: training diverges", fix


def check_shard(weights: Vector, node: NodeContext, *moved_by: object) -> None:
    """Nothing, if a server can go on with its weights: workers refuse any others, and would train on old ones for ever.

    Args:
        weights: (weights,) float32.
        node: the server.
        moved_by: words that say what has moved them last.

    Raises:
        OperatorError: it cannot.
    """
    if not sound(weights):
        besides, fix = advice("", weights)
        after = " ".join(map(str, moved_by))
        what = f"the server's weights are not finite, or too large for any sum, after {after}{besides}"
        raise OperatorError(what, where=f"node {node.name}, operator serve", fix=fix)


def refused(message: Fragment | Weights) -> bool:
    """Whether nothing of a message may be applied; a code with numbers that are not finite is refused when read."""
    return message.values.dtype != np.uint8 and not sound(cast("Vector", message.values))


def zeros(fragment: Fragment) -> Fragment:
    """A fragment that says nothing of the same gradients."""
    return replace(fragment, values=np.zeros_like(fragment.values))


# Added up in any order, which lets the compiler take eight at a time; what is not finite stays so in any of them.
@partial(compiled, fastmath={"reassoc", "contract"})
def _squares(values: Vector) -> float:
    total = np.float32(0)
    for i in range(values.size):
        total += values[i] * values[i]
    return float(total)
