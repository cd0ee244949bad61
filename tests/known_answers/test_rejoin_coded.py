"""With a codec: what a worker that has come back holds, and what all owe, is what the others hold, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from dataflow.plan.compile import compile_graph
from tests.known_answers.coded import CODECS, NODES, STEPS, coded_job, owed
from tests.known_answers.rejoining import Dying, borrowed, clocks_of, values

WHOLE = ("ako p=1 every=1", "ako p=1 every=4", "all_to_all ssp", "all_to_all async")
"""Own gradients are applied whole, so that a replica holds what its node owes, too."""

SENT = ("all_to_all bsp", "sparse synchronous", "sparse async")


@pytest.mark.parametrize("codec", CODECS[:3])
@pytest.mark.parametrize("job", [*WHOLE, *SENT])
def test_worker_that_comes_back_holds_what_the_others_do(job: str, codec: str) -> None:
    driver = Dying(compile_graph(coded_job(job, codec), NODES), [(120, 2), (220, 2)])
    nodes = driver.execute().nodes
    assert driver.incarnations == [0, 0, 1, 0]
    assert borrowed(nodes[2])
    assert all(clocks_of(node).rejected == 0 for node in nodes)
    assert 0 < clocks_of(nodes[2]).made <= STEPS + 4  # of an epoch that three share there are more
    held = [values(node) + (owed(node) if job in WHOLE else 0) for node in nodes]
    assert held[0].any()
    for other in held[1:]:
        np.testing.assert_array_equal(other, held[0])
