"""Warm start: the weights and statistics that all nodes begin with, after one replica has trained alone for a while.

Every node computes them for itself from the job's seed, bit for bit alike, so nothing has to be sent and nobody waits
longer than for one replica's training (docs/decisions).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from operators.data import DataRef, open_data, pixels
from operators.dnn import Network, NetworkSpec, build_network
from operators.messages import Vector
from operators.optimizer import Sgd
from operators.preprocess import Normalise
from operators.sampling import epoch_order
from operators.source import training_rows

_RANK = 1 << 20
"""Rank whose order of samples the warm start uses: no worker's."""


class WarmStart(BaseModel):
    """SGD at a constant rate on a fraction of one epoch. Its velocity is not kept: training begins without.

    Args:
        fraction: of the training images.
        lr: learning rate.
        optimizer: momentum and weight decay.
        batch: mini-batch size.
        data: the data set.
        holdout: fraction kept out for validation, as in `Source`.
        normalise: what the training batches are normalised with; None if they are not.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    fraction: float = Field(gt=0, le=1)
    lr: float = Field(gt=0)
    optimizer: Sgd = Sgd()
    batch: int = Field(ge=1)
    data: DataRef
    holdout: float = 0.0
    normalise: Normalise | None = None


def initial_weights(spec: NetworkSpec, warm_start: WarmStart | None, seed: int) -> Vector:
    """The weights that every node begins with, (weights,) float32; read-only."""
    return _start(spec, warm_start, seed)[0]


def initial_statistics(spec: NetworkSpec, warm_start: WarmStart | None, seed: int) -> Vector:
    """The statistics that every node begins with, (statistics,) float32; read-only."""
    return _start(spec, warm_start, seed)[1]


@lru_cache(maxsize=1)
def _start(spec: NetworkSpec, warm_start: WarmStart | None, seed: int) -> tuple[Vector, Vector]:
    network = build_network(spec)
    weights = network.initial(np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,))))
    statistics = network.initial_statistics()
    if warm_start is not None:
        _train(network, weights, statistics, warm_start, seed)
    weights.flags.writeable = statistics.flags.writeable = False
    return weights, statistics


def _train(network: Network, weights: Vector, statistics: Vector, warm: WarmStart, seed: int) -> None:
    network.compile()
    data = open_data(warm.data)
    rows = training_rows(len(data.train_images), warm.holdout, seed)
    rows = rows[epoch_order(len(rows), seed, 0, _RANK)][: round(warm.fraction * len(rows))]
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_RANK,)))
    velocity = warm.optimizer.velocity(network.n_weights)
    workspace, gradient = network.workspace(max(1, min(warm.batch, len(rows)))), np.empty_like(weights)
    for begin in range(0, len(rows), warm.batch):
        batch = rows[begin : begin + warm.batch]
        images = pixels(data.train_images[batch], data.scale)
        images = images if warm.normalise is None else warm.normalise.apply(images)
        network.gradient(
            weights,
            images,
            data.train_labels[batch],
            gradient,
            workspace,
            1.0 / len(batch),
            statistics=statistics,
            seed=int(rng.integers(1 << 63)),
        )
        warm.optimizer.direct(gradient, weights, velocity)
        weights -= np.float32(warm.lr) * gradient
