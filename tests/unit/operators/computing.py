"""A worker's compute operator on four images, for tests."""

import numpy as np
from tiny_data import IDENTITY, TWO

from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.average import Average
from operators.clocks import ClocksState, everything
from operators.compute import Compute
from operators.dnn import Model
from operators.messages import Batch
from operators.optimizer import Sgd
from operators.passes import Passes
from operators.schedule import Schedule
from operators.vector_state import VectorState

MODEL = Model(TWO)
IMAGES = np.array([[1, 0], [0, 1], [0.5, 0.25], [0.75, 1]], np.float32).reshape(4, 1, 1, 2)
LABELS = np.array([0, 0, 1, 1])
RATE = np.float32(0.3)
NONE = np.zeros(0, np.float32)
NODE = NodeContext(index=1, name="left", members={"worker": (0, 1, 2)})


SLOW = Schedule(lr=0.3, warmup=1.0, passes=Passes(images=24, batch=4))
"""Three workers make two gradients each in an epoch, at 0.1 and 0.2, and go on at 0.3."""


def shards(count, *, step=0, size=4, before=0.0):
    cuts = [size * shard // count for shard in range(count + 1)]
    return [
        Batch(
            step=step,
            shard=shard,
            shards=count,
            images=IMAGES[cuts[shard] : cuts[shard + 1]],
            labels=LABELS[cuts[shard] : cuts[shard + 1]],
            size=size,
            epoch_before=before,
            epoch=0.5,
            of_all=3 * size,
        )
        for shard in range(count)
    ]


def gradient(images, labels, scale):
    out = np.empty_like(IDENTITY)
    loss, _ = MODEL.gradient(IDENTITY, images, labels, out, MODEL.workspace(4), scale, statistics=NONE, seed=0)
    return out, loss


def make(origins=(), weights=IDENTITY, node=NODE, **fields):
    states = {
        "replica": VectorState(weights.copy()),
        "statistics": VectorState(np.zeros(0, np.float32)),
        "velocity": VectorState(fields.get("optimizer", Sgd()).velocity(len(weights))),
        "average": Average(n_weights=len(weights)),
        "clocks": ClocksState(2, everything(origins, 2, without=None)),
    }
    return Harness(Compute(**{"model": TWO, "schedule": Schedule(lr=0.3)} | fields), node=node, states=states)


def weights(harness):
    return harness.states["replica"].values
