import numpy as np
import pytest
from tiny_data import IDENTITY

from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.average import Average
from operators.coded_window import CodedWindow
from operators.compression import Threshold
from operators.follow import Follow
from operators.kept import Kept
from operators.layout import Layout
from operators.messages import Progress
from operators.vector_state import VectorState

MEMBERS = {"worker": (0, 1, 2)}
N = IDENTITY.size


def follow(window, over=6.0):
    states = {"replica": VectorState(IDENTITY.copy()), "average": Average(n_weights=N), "window": window}
    return Harness(Follow(over=over), node=NodeContext(index=0, members=MEMBERS), states=states)


def progress(step):
    return Progress(step=step, images=step * 40, epoch=0.0, loss=0.0)


def average(harness):
    return harness.states["average"].snapshot()


def test_follow_averages_the_weights_over_its_share_of_so_many_gradients_and_passes_progress_on():
    """Six gradients of three nodes are two of each: the mean of the first two, then half of what is new."""
    harness, seen = follow(Kept(receivers="worker")), []
    for step in range(3):
        harness.states["replica"].values[:] = IDENTITY * step**2
        seen.append(harness.states["replica"].current.copy())
        harness.send(progress(step))
    np.testing.assert_allclose(average(harness), ((seen[0] + seen[1]) / 2 + seen[2]) / 2, atol=1e-6)
    assert harness.emitted("followed") == [progress(step) for step in range(3)]


def test_follow_leaves_out_what_the_window_owes():
    """A residual of updates is subtracted in the node's own weights, and in nobody else's."""
    harness = follow(CodedWindow(layout=Layout.of(N), codec=Threshold(tau=0.5), receivers="worker"))
    update = np.linspace(-1, 1, N, dtype=np.float32)
    harness.states["window"].append(1, update)
    harness.states["window"].close()
    harness.states["replica"].values[:] = IDENTITY - update
    harness.send(progress(1))
    told = update - harness.states["window"].owed
    assert 0 < np.count_nonzero(told) < N
    np.testing.assert_allclose(average(harness), IDENTITY - told, atol=1e-6)


def test_follow_waits_for_the_window_to_have_the_gradient():
    harness = follow(CodedWindow(layout=Layout.of(N), codec=Threshold(tau=0.5), receivers="worker"))
    for step in (1, 2):
        assert not harness.ready()
        harness.states["window"].append(step, IDENTITY)
        assert harness.ready()
        harness.send(progress(step))


def test_follow_on_a_node_that_goes_on_far_behind_the_start_waits_for_nothing_at_first():
    harness = follow(CodedWindow(layout=Layout.of(N), codec=Threshold(tau=0.5), receivers="worker"))
    harness.states["window"].start(7)
    assert harness.ready()
    harness.send(progress(8))
    harness.states["window"].append(8, IDENTITY)
    assert not harness.ready()


def test_follow_takes_nothing_out_once_nobody_else_is_left():
    harness = follow(CodedWindow(layout=Layout.of(N), codec=Threshold(tau=0.5), receivers="worker"))
    window = harness.states["window"]
    window.append(1, np.linspace(-1, 1, N, dtype=np.float32))
    window.leave(1)
    window.leave(2)
    harness.send(progress(1))
    np.testing.assert_array_equal(average(harness), IDENTITY)


@pytest.mark.parametrize("over", [0, -1])
def test_follow_over_nothing_is_refused(over):
    with pytest.raises(ValueError, match="greater than 0"):
        Follow(over=over)
