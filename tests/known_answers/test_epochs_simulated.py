"""Parameter servers without a barrier make as many passes over the data as they are asked for, whoever is there."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ako_jobs import parameter_server
from dataflow.operators_api import Emissions
from operators.accumulate import Accumulate
from operators.compute import Compute
from operators.messages import Batch, Gradient
from operators.window import WindowState
from tests.known_answers.simulated import simulate

WORKERS, BATCH, EPOCHS, LR = 4, 320, 60, 0.01
IMAGES = 1298
"""Of four workers each has 324 of them, and makes gradients of 320 and 4 images in an epoch; of two 649, and three."""


@pytest.mark.parametrize(
    ("settings", "faults"),
    [
        ({}, ()),
        ({}, ("fail:1@0.1",)),
        ({}, ("fail:1@0.1", "fail:2@0.1", "fail:3@0.3+0.2")),
        ({"servers": 2, "consistency": "ssp"}, ("fail:1@0.1", "fail:2@0.1", "fail:3@0.3+0.2")),
        ({"rule": "dana-slim", "momentum": 0.5}, ("fail:1@0.1", "fail:2@0.1", "fail:3@0.3+0.2")),
        ({"n_push": 2, "n_fetch": 4, "codec": "int8"}, ("fail:1@0.1", "fail:2@0.1", "fail:3@0.3+0.2")),
    ],
)
def test_passes_over_the_data_and_the_learning_rate_are_as_asked_for_whoever_dies_or_joins(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], faults: tuple[str, ...]
) -> None:
    read: list[int] = []
    made: list[tuple[int, float]] = []
    local_steps, accumulate = Compute._local_steps, Accumulate.process

    def reading(self: Compute, batch: Batch) -> int:
        read.append(batch.size)
        return local_steps(self, batch)

    def making(self: Accumulate, gradient: Gradient, window: WindowState) -> Emissions:
        made.append((sum(read), gradient.rate))
        yield from accumulate(self, gradient, window)

    monkeypatch.setattr(Compute, "_local_steps", reading)
    monkeypatch.setattr(Accumulate, "process", making)
    whole = {"batch": BATCH, "epochs": EPOCHS, "schedule": "cosine", "lr": LR, "holdout": 0.1, "warm_start": 0}
    config = parameter_server.Config.parse({"consistency": "async", "validate_every": 10**9, **whole, **settings})
    servers = settings.get("servers", 1)
    run = simulate(parameter_server.build(config), WORKERS + servers, faults=faults, rate=1e9, latency_s=0.0005)
    joined: Any = run.nodes[3].states["roll"]
    assert joined.lent == (len(faults) == 3)

    under_way = WORKERS * BATCH * settings.get("n_fetch", 1)
    assert EPOCHS * IMAGES <= sum(read) <= EPOCHS * IMAGES + under_way
    for node in run.nodes[-servers:]:
        come: Any = node.states["images"].tensors()["images"]
        assert EPOCHS * IMAGES - under_way <= come[come > 0].min() <= come.max() <= sum(read)
    amiss = LR * math.pi / 2 * under_way / (EPOCHS * IMAGES)  # a cosine is steepest at half
    assert next(rate for images, rate in made if images > EPOCHS * IMAGES / 2) == pytest.approx(LR / 2, abs=2 * amiss)
    assert min(rate for _, rate in made) <= made[-1][1] < 0.01 * LR
