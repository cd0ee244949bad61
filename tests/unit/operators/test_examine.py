from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from tiny_data import IDENTITY, TWO, data

from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.average import Average
from operators.clocks import ClocksState
from operators.examine import Examine, at_once
from operators.messages import Share
from operators.passes import Passes
from operators.preprocess import Normalise
from operators.sampling import split_validation
from operators.vector_state import VectorState

# Pixels (9, 1), (8, 3), (2, 7), (0, 5), (6, 4) of labels 0, 0, 1, 1, 1; the model's logits are the pixels over ten.
MARGINS = np.array([0.8, 0.5, 0.5, 0.5, -0.2])
PREDICTED = [0, 0, 1, 1, 0]


def loss(margins):
    return float(np.sum(np.log1p(np.exp(-margins))))


def examine(*, index=0, seed=0, count=8, **fields):
    node = NodeContext(index=index, members={"worker": (0, 1)}, seed=seed)
    states = {
        "replica": VectorState(IDENTITY.copy()),
        "average": Average(n_weights=IDENTITY.size),
        "statistics": VectorState(np.zeros(0, np.float32)),
        "clocks": ClocksState(1, {}),
    }
    return Harness(Examine(model=TWO, data=data(count), **fields), node=node, states=states)


def share(step, *, nodes=(0,), turn=1, final=False):
    return Share(turn, np.array(nodes), step, step / 10, 0.7, final=final)


def send(harness, step, *, ahead=0, **fields):
    """Tell of `step` of two nodes' mini-batches of 8 images, when `ahead` steps more have been made."""
    clocks = harness.states["clocks"]
    clocks.made, clocks.images = step + ahead, 16 * (step + ahead)
    harness.send(share(step, **fields))


def looked_at(harness):
    """What is told, wherever it goes to."""
    return harness.emitted("examined") + harness.emitted("whole")


def test_examine_accuracy_and_loss_worked_out():
    harness = examine()
    send(harness, 7, turn=3)
    (found,) = looked_at(harness)
    assert (found.correct, found.predicted.tolist()) == (4, PREDICTED)
    assert found.loss == pytest.approx(loss(MARGINS), rel=1e-6)
    assert (found.step, found.images, found.epoch, found.training_loss) == (7, 112, 0.7, 0.7)
    assert (found.held_out, found.held_out_correct, found.held_out_loss) == (0, 0, 0.0)
    assert (found.origin, found.turn, found.nodes.tolist(), found.final) == (0, 3, [0], False)


def test_examine_nodes_that_share_look_at_every_image_once():
    """Nodes 1, 4 and 6: images 0 and 3, 1 and 4, and 2."""
    correct = []
    for place, index in enumerate((1, 4, 6)):
        harness = examine(index=index)
        send(harness, 7, nodes=(1, 4, 6))
        (found,) = looked_at(harness)
        assert found.predicted.tolist() == PREDICTED[place::3]
        assert found.loss == pytest.approx(loss(MARGINS[place::3]), rel=1e-6)
        assert (found.origin, found.nodes.tolist()) == (index, [1, 4, 6])
        correct.append(found.correct)
    assert correct == [2, 1, 1]


def test_examine_more_nodes_than_images_leaves_some_with_nothing():
    harness = examine(index=6)
    send(harness, 7, nodes=range(7))
    (found,) = looked_at(harness)
    assert (found.loss, found.correct, found.predicted.tolist()) == (0.0, 0, [])


def test_examine_result_is_labelled_with_the_gradients_in_its_weights():
    """Told of step 7, 0.7 epochs, when two more have been made, it looks at the weights after step 9."""
    harness = examine()
    send(harness, 7, ahead=2)
    (found,) = looked_at(harness)
    assert (found.step, found.images, found.epoch) == (9, 144, pytest.approx(0.9))


@pytest.mark.parametrize(("come", "images", "epoch"), [(48, 112, 0.7), (120, 120, 1.5)], ids=["as it was", "more"])
def test_examine_result_tells_of_all_images_that_have_come_where_workers_go_on_as_they_can(come, images, epoch):
    """Told of 0.7 epochs and 112 images, it has seen gradients of 48 of all by then, or 120: of 80 in an epoch."""
    harness = examine(count=80, passes=Passes(images=80, batch=4))
    harness.states["clocks"].come = come
    send(harness, 7)
    (found,) = looked_at(harness)
    assert (found.step, found.images, found.epoch) == (7, images, pytest.approx(epoch))


@pytest.mark.parametrize("come", [48, 119])
def test_examine_last_result_tells_of_just_the_gradients_that_have_come(come):
    """Told of 0.7 epochs and 112 images, which is rounded up to as many gradients as there are workers."""
    harness = examine(count=80, passes=Passes(images=80, batch=4))
    harness.states["clocks"].come = come
    send(harness, 7, final=True)
    (found,) = looked_at(harness)
    assert (found.images, found.epoch) == (come, pytest.approx(come / 80))


@pytest.mark.parametrize("batch", [1, 2, 5, 256])
def test_examine_batch_size_does_not_matter(batch):
    harness = examine(batch=batch)
    send(harness, 7)
    (found,) = looked_at(harness)
    assert (found.correct, found.loss) == (4, pytest.approx(loss(MARGINS), rel=1e-6))


def test_examine_normalises_like_training():
    harness = examine(normalise=Normalise(mean=(0.25,), std=(0.5,)))
    send(harness, 7)
    assert looked_at(harness)[0].loss == pytest.approx(loss(2 * MARGINS), rel=1e-6)


def test_examine_held_out_images_are_shared_beside_the_test_images():
    held_out = split_validation(40, 0.25, 3)[1]
    for place in (0, 1):
        harness = examine(index=place, count=40, holdout=0.25, seed=3)
        send(harness, 7, nodes=(0, 1))
        (found,) = looked_at(harness)
        # Training image i shows (i, 0): class 0 is the answer, right where i is even.
        mine = held_out[place::2]
        assert (found.held_out, found.held_out_correct) == (5, np.sum(mine % 2 == 0))
        margins = np.where(mine % 2 == 0, mine, -mine) / 10
        assert found.held_out_loss == pytest.approx(loss(margins), rel=1e-5)


def test_examine_takes_the_average_of_the_weights_where_there_is_one():
    harness = examine()
    other = IDENTITY.copy()
    other[:4] = [0, 1, 1, 0]  # the other way round
    harness.states["average"].follow(other, 2.0)
    send(harness, 7)
    assert looked_at(harness)[0].correct == 1


class Meeting:
    """A network of which two evaluations wait for each other."""

    def __init__(self, network):
        self.network, self.both, self.workspaces = network, Barrier(2, timeout=30), []
        self.workspace, self.n_classes = network.workspace, network.n_classes

    def evaluate(self, weights, images, labels, workspace, *, statistics):
        self.workspaces.append(workspace)
        self.both.wait()
        return self.network.evaluate(weights, images, labels, workspace, statistics=statistics)


def test_examine_two_at_once_share_no_workspace():
    """A node with two compute tasks examines the end of an epoch and the end of the run at the same time."""
    harness = examine()
    operator, states = harness.operator, harness.states
    operator._model = meeting = Meeting(operator._model)
    given = states["replica"].snapshot(), None, states["statistics"].snapshot(), states["clocks"], NodeContext()
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(lambda: list(operator.process(share(7), *given))) for _ in range(2)]
    first, second = meeting.workspaces
    assert first is not second
    for run in runs:
        found = run.result()[0].message
        assert (found.correct, found.loss) == (4, pytest.approx(loss(MARGINS), rel=1e-6))


def test_examine_end_itself_looks_at_nothing():
    harness = examine()
    send(harness, 7)
    assert harness.end() == []


def test_examine_final_share_is_of_the_final_weights():
    harness = examine()
    send(harness, 3)
    harness.states["replica"].values[:4] = [0, 1, 1, 0]  # the other way round
    send(harness, 3, final=True)
    first, last = looked_at(harness)
    assert (first.step, first.images, first.correct, first.final) == (3, 48, 4, False)
    assert (last.step, last.images, last.correct, last.final) == (3, 48, 1, True)


def test_examine_weights_are_only_read():
    harness = examine()
    weights = np.frombuffer(IDENTITY.tobytes(), np.float32)  # read-only
    _, correct, _ = harness.operator._evaluate(harness.operator._test, weights, np.zeros(0, np.float32))
    assert correct == 4


@pytest.mark.parametrize(("shape", "images"), [((1, 28, 28), 256), ((3, 32, 32), 85), ((3, 100, 100), 16)])
def test_examine_looks_at_fewer_of_larger_images_at_once(shape, images):
    """A MiB of float32 pixels: more would take much memory for large images, fewer would be slow for small ones."""
    assert at_once(shape) == images


def test_examine_what_several_look_at_crosses_and_what_one_looks_at_stays():
    harness = examine()
    send(harness, 1, nodes=(0, 1))
    send(harness, 2, nodes=(0,))
    assert [found.step for found in harness.emitted("examined")] == [1]
    assert [found.step for found in harness.emitted("whole")] == [2]
