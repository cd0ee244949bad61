from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from tiny_data import IDENTITY, TWO, data

from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.clocks import ClocksState
from operators.messages import Progress
from operators.preprocess import Normalise
from operators.sampling import split_validation
from operators.validate import Validate, at_once
from operators.vector_state import VectorState

# Pixels (9, 1), (8, 3), (2, 7), (0, 5), (6, 4) of labels 0, 0, 1, 1, 1; the model's logits are the pixels over ten.
MARGINS = np.array([0.8, 0.5, 0.5, 0.5, -0.2])


def loss(margins):
    return float(np.mean(np.log1p(np.exp(-margins))))


def validate(*, index=0, seed=0, count=8, **fields):
    node = NodeContext(index=index, members={"worker": (0, 1)}, seed=seed)
    states = {
        "replica": VectorState(IDENTITY.copy()),
        "statistics": VectorState(np.zeros(0, np.float32)),
        "clocks": ClocksState(1, {}),
    }
    return Harness(Validate(model=TWO, data=data(count), **fields), node=node, states=states)


def send(harness, step, *, ahead=0, final=False):
    """Tell of `step` of two nodes' mini-batches of 8 images, when `ahead` steps more have been made."""
    clocks = harness.states["clocks"]
    clocks.made, clocks.images = step + ahead, 16 * (step + ahead)
    harness.send(progress(step, final=final))


def progress(step, *, final=False):
    return Progress(step=step, images=step * 16, epoch=step / 10, loss=0.7, final=final)


def test_validate_accuracy_and_loss_worked_out():
    harness = validate()
    send(harness, 7)
    (result,) = harness.emitted("results")
    assert result.accuracy == 0.8
    assert result.loss == pytest.approx(loss(MARGINS), rel=1e-6)
    assert (result.step, result.images, result.epoch, result.training_loss) == (7, 112, 0.7, 0.7)
    assert (result.validation_accuracy, result.validation_loss) == (None, None)


def test_validate_result_is_labelled_with_the_gradients_in_its_weights():
    """Told of step 7, 0.7 epochs, when two more have been made, it looks at the weights after step 9."""
    harness = validate()
    send(harness, 7, ahead=2)
    (result,) = harness.emitted("results")
    assert (result.step, result.images, result.epoch) == (9, 144, pytest.approx(0.9))
    assert harness.emitted("predictions")[0].images == 144


def test_validate_predictions_are_what_the_model_says():
    harness = validate()
    send(harness, 7)
    (predictions,) = harness.emitted("predictions")
    assert predictions.images == 112
    assert predictions.labels.tolist() == [0, 0, 1, 1, 1]
    assert predictions.predicted.tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("batch", [1, 2, 5, 256])
def test_validate_batch_size_does_not_matter(batch):
    harness = validate(batch=batch)
    send(harness, 7)
    (result,) = harness.emitted("results")
    assert (result.accuracy, result.loss) == (0.8, pytest.approx(loss(MARGINS), rel=1e-6))


def test_validate_normalises_like_training():
    harness = validate(normalise=Normalise(mean=(0.25,), std=(0.5,)))
    send(harness, 7)
    assert harness.emitted("results")[0].loss == pytest.approx(loss(2 * MARGINS), rel=1e-6)


def test_validate_holdout_is_measured_beside_the_test_images():
    harness = validate(count=40, holdout=0.25, seed=3)
    send(harness, 7)
    held_out = split_validation(40, 0.25, 3)[1]
    (result,) = harness.emitted("results")
    # Training image i shows (i, 0): class 0 is the answer, right where i is even.
    assert result.validation_accuracy == np.mean(held_out % 2 == 0)
    margins = np.where(held_out % 2 == 0, held_out, -held_out) / 10
    assert result.validation_loss == pytest.approx(loss(margins), rel=1e-5)
    assert result.accuracy == 0.8


def test_validate_measures_at_every_progress_it_is_told():
    harness = validate()
    for step in (1, 2, 5):
        send(harness, step)
    assert [result.step for result in harness.emitted("results")] == [1, 2, 5]
    assert [said.images for said in harness.emitted("predictions")] == [16, 32, 80]


class Meeting:
    """A network of which two evaluations wait for each other."""

    def __init__(self, network):
        self.network, self.both, self.workspaces = network, Barrier(2, timeout=30), []
        self.workspace = network.workspace

    def evaluate(self, weights, images, labels, workspace, *, statistics):
        self.workspaces.append(workspace)
        self.both.wait()
        return self.network.evaluate(weights, images, labels, workspace, statistics=statistics)


def test_validate_two_at_once_share_no_workspace():
    """A node with two compute tasks validates the end of an epoch and the end of the run at the same time."""
    harness = validate()
    operator, states = harness.operator, harness.states
    operator._model = meeting = Meeting(operator._model)
    given = states["replica"].snapshot(), states["statistics"].snapshot(), states["clocks"]
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(lambda: list(operator.process(progress(7), *given))) for _ in range(2)]
    first, second = meeting.workspaces
    assert first is not second
    for run in runs:
        result = run.result()[0].message
        assert (result.accuracy, result.loss) == (0.8, pytest.approx(loss(MARGINS), rel=1e-6))


def test_validate_end_itself_measures_nothing():
    harness = validate()
    send(harness, 7)
    assert harness.end() == []


def test_validate_final_progress_reports_the_final_weights():
    harness = validate()
    send(harness, 3)
    harness.states["replica"].values[:4] = [0, 1, 1, 0]  # the other way round
    send(harness, 3, final=True)
    first, last = harness.emitted("results")
    assert (first.step, first.images, first.accuracy, first.final) == (3, 48, pytest.approx(0.8), False)
    assert (last.step, last.images, last.accuracy, last.final) == (3, 48, pytest.approx(0.2), True)


def test_validate_weights_are_only_read():
    harness = validate()
    weights = np.frombuffer(IDENTITY.tobytes(), np.float32)  # read-only
    accuracy, _, _ = harness.operator._evaluate(harness.operator._test, weights, np.zeros(0, np.float32))
    assert accuracy == pytest.approx(0.8)


@pytest.mark.parametrize(("shape", "images"), [((1, 28, 28), 256), ((3, 32, 32), 85), ((3, 100, 100), 16)])
def test_validate_looks_at_fewer_of_larger_images_at_once(shape, images):
    """A MiB of float32 pixels: more would take much memory for large images, fewer would be slow for small ones."""
    assert at_once(shape) == images
