"""Ledgers of peers: whether a worker that goes on had applied all that was given."""

import numpy as np
import pytest

from dataflow.node_context import NodeContext
from dataflow.state import Kept
from operators.compression import Residual, Threshold
from operators.ledger import PeersLedgerState
from operators.vector_state import VectorState

NODE = NodeContext(index=0, role="worker", members={"worker": (0, 1)})


def kept(node: int, sent: float, replica: float, applied: dict[int, int]) -> Kept:
    """A worker of one weight that has made two gradients, and has applied so many of each that it follows."""
    tensors = {
        "ledger": {"whole": np.array([1]), "start": np.zeros(1, np.float32)},
        "residual": {"values": np.zeros(1, np.float32), "sent": np.full(1, sent, np.float32)},
        "replica": {"values": np.full(1, replica, np.float32)},
        "clocks": {"origins": np.array(list(applied)), "applied": np.array(list(applied.values())).reshape(-1, 1)},
    }
    return Kept(node, 2, tensors)


def balanced(replica: float, applied: dict[int, int]) -> float:
    """The weight that worker 0 goes on with, where it and worker 1 have given 3 and 4."""
    states = {
        "replica": VectorState(np.full(1, replica, np.float32)),
        "residual": Residual(Threshold(tau=1), 1, counted=True),
    }
    files = [kept(0, 3, replica, applied), kept(1, 4, -7, {0: 2, 1: 2})]
    ledger = PeersLedgerState(np.zeros(1, np.float32), "residual", NODE, local=False)
    ledger.balance(states, files, divided=False, whole=True)
    return float(states["replica"].values[0])


@pytest.mark.parametrize("applied", [{0: 1, 1: 2}, {0: 2, 1: 1}, {0: 2}, {0: 2, 1: 3}])
def test_worker_that_lacks_an_update_or_has_one_too_many_goes_on_with_the_sum_of_all(applied: dict[int, int]) -> None:
    assert balanced(-5, applied) == -7


@pytest.mark.parametrize("applied", [{0: 2, 1: 2}, {1: 2}])
def test_worker_that_has_all_goes_on_with_its_own_replica(applied: dict[int, int]) -> None:
    assert balanced(-5, applied) == -5
