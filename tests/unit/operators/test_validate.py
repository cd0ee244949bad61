import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_data import data

from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.messages import Examined
from operators.validate import Examinations, Validate

LABELS = [0, 0, 1, 1, 1]


def validate(nodes=(0, 1), **fields):
    node = NodeContext(index=nodes[0], members={"worker": tuple(nodes)})
    return Harness(Validate(data=data(4), **fields), node=node, states={"waiting": Examinations()})


def examined(origin, *, turn=1, nodes=(0, 1), predicted=None, loss=1.0, final=False, **fields):
    """Of five test images a node looks at those of its place; it takes all of them for class 1, unless it is said."""
    place, of = list(nodes).index(origin), len(nodes)
    predicted = [1] * len(LABELS[place::of]) if predicted is None else predicted
    correct = int(np.sum(np.array(predicted) == np.array(LABELS[place::of])))
    known = {"step": 10 * turn, "images": 100 * turn, "epoch": turn / 2, "training_loss": 0.5}
    known |= {"held_out": 0, "held_out_correct": 0, "held_out_loss": 0.0} | fields
    return Examined(
        origin,
        turn,
        np.array(nodes),
        final=final,
        loss=loss,
        predicted=np.array(predicted, np.uint8),
        correct=correct,
        **known,
    )


def turns(harness):
    return [(result.step // 10, result.final) for result in harness.emitted("results")]


def test_validate_adds_up_what_the_nodes_have_made_of_their_shares():
    harness = validate()
    harness.send(examined(1, loss=3.0, step=12, images=120, epoch=0.75, training_loss=0.25))
    assert harness.emitted("results") == []
    harness.send(examined(0, loss=2.0))
    (result,) = harness.emitted("results")
    assert (result.tested, result.accuracy, result.loss) == (5, 0.6, 1.0)  # 3 of 5 images are of class 1; 2 + 3 over 5
    assert (result.step, result.images, result.epoch, result.training_loss) == (11, 110, 0.625, 0.375)
    assert (result.validation_accuracy, result.validation_loss, result.final) == (None, None, False)
    (predictions,) = harness.emitted("predictions")
    assert (predictions.images, predictions.predicted.tolist()) == (110, [1] * 5)
    assert predictions.labels.tolist() == LABELS[::2] + LABELS[1::2]
    assert predictions.predicted.dtype == np.int64


def test_validate_held_out_images_are_added_up_too():
    harness = validate()
    harness.send(examined(0, held_out=3, held_out_correct=1, held_out_loss=2.0))
    harness.send(examined(1, held_out=2, held_out_correct=2, held_out_loss=0.5))
    (result,) = harness.emitted("results")
    assert (result.validation_accuracy, result.validation_loss) == (0.6, 0.5)


def test_validate_of_one_node_is_reported_at_once():
    harness = validate((0,))
    for turn in (1, 2):
        harness.send(examined(0, turn=turn, nodes=(0,), predicted=[0, 0, 1, 1, 0]))
    assert [result.accuracy for result in harness.emitted("results")] == [0.8, 0.8]


def test_validate_more_nodes_than_images_count_what_there_is():
    harness, nodes = validate(range(6)), range(6)
    for origin in nodes:
        harness.send(examined(origin, nodes=nodes, loss=0.0))
    assert harness.emitted("results")[0].accuracy == 0.6


def test_validate_one_after_the_other_and_the_final_last():
    harness = validate()
    for turn in (1, 2):
        harness.send(examined(0, turn=turn))
    harness.send(examined(0, turn=2, nodes=(0,), final=True))
    assert turns(harness) == []
    harness.send(examined(1, turn=1))
    assert turns(harness) == [(1, False)]
    harness.send(examined(1, turn=2))
    assert turns(harness) == [(1, False), (2, False), (2, True)]
    assert harness.end() == []


def test_validate_goes_on_without_a_node_that_has_left():
    """Of the test images, node 1 would have had the second and the fourth."""
    harness = validate()
    harness.send(examined(0, predicted=[0, 1, 1]))
    assert turns(harness) == []
    harness.left(1)
    (result,) = harness.emitted("results")
    assert (result.tested, result.accuracy, result.loss) == (3, 1.0, pytest.approx(1 / 3))


def test_validate_waits_again_for_a_node_that_has_come_back():
    harness = validate()
    harness.left(1)
    harness.joined(1)
    harness.send(examined(0, turn=2))
    assert turns(harness) == []
    harness.send(examined(1, turn=2))
    assert turns(harness) == [(2, False)]


def test_validate_waits_for_no_node_that_has_gone_past():
    """One that has done two steps at once, or has joined, may have no share of a validation."""
    harness = validate()
    harness.send(examined(0, turn=1))
    harness.send(examined(1, turn=2))
    assert turns(harness) == [(1, False)]


def test_validate_leaves_out_a_node_that_half_of_the_others_are_well_ahead_of():
    harness, nodes = validate((0, 1, 2)), (0, 1, 2)
    for turn in (1, 2, 3):
        harness.send(examined(0, turn=turn, nodes=nodes))
    for turn in (1, 2):
        harness.send(examined(1, turn=turn, nodes=nodes))
    assert turns(harness) == []
    harness.send(examined(1, turn=3, nodes=nodes))
    assert turns(harness) == [(1, False)]
    for turn in (1, 2):
        harness.send(examined(2, turn=turn, nodes=nodes))  # the first is too late
    assert turns(harness) == [(1, False), (2, False)]


def test_validate_end_reports_what_half_of_the_nodes_have_come_to_and_gives_the_rest_up():
    """Nodes stop at different steps: only one of three has come to the third validation."""
    harness, nodes = validate((0, 1, 2)), (0, 1, 2)
    for origin, last in ((1, 1), (2, 2), (0, 3)):
        for turn in range(1, last + 1):
            harness.send(examined(origin, turn=turn, nodes=nodes))
    harness.send(examined(0, turn=3, nodes=(0,), final=True))
    assert turns(harness) == [(1, False)]
    harness.end()
    assert turns(harness) == [(1, False), (2, False), (3, True)]
    assert [result.tested for result in harness.emitted("results")] == [5, 3, 5]


def test_validate_a_share_that_comes_behind_the_final_one_counts_no_more():
    harness = validate()
    harness.send(examined(0, turn=1, nodes=(0,), final=True))
    for origin in (0, 1):
        harness.send(examined(origin, turn=1))
    harness.end()
    assert turns(harness) == [(1, True)]


def test_validate_tells_nothing_of_shares_without_images():
    """Of eight nodes five have a test image, and the four that are left have none."""
    harness, nodes = validate(range(8)), range(8)
    for origin in (4, 5, 6, 7):
        harness.send(examined(origin, nodes=nodes, predicted=[1] if origin == 4 else []))
    for origin in (5, 6, 7):
        harness.send(examined(origin, turn=2, nodes=nodes, predicted=[]))
    for origin in range(5):
        harness.left(origin)
    assert turns(harness) == [(1, False)]
    assert harness.emitted("results")[0].tested == 1


def test_validate_tells_nothing_of_held_out_images_where_no_share_had_any():
    harness = validate(holdout=0.25)
    harness.send(examined(0, held_out=0))
    harness.left(1)
    assert turns(harness) == []
    harness.send(examined(0, turn=2, nodes=(0,), held_out=1, held_out_loss=0.5))
    assert [result.validation_loss for result in harness.emitted("results")] == [0.5]


def test_examinations_of_a_checkpoint_are_none_and_turns_may_come_again():
    harness = validate()
    for origin in (0, 1):
        harness.send(examined(origin, turn=3))
    harness.send(examined(0, turn=4))
    waiting = harness.states["waiting"]
    assert waiting.tensors() == {}
    waiting.restore({})
    for origin in (0, 1):
        harness.send(examined(origin, turn=2))
    assert turns(harness) == [(3, False), (2, False)]


@given(st.data(), st.integers(1, 4), st.integers(1, 6))
def test_validate_in_any_order_of_arrival_reports_every_turn_once_and_in_order(given_data, n_nodes, n_turns):
    """Shares of one node arrive in order; those of different nodes as they like. No node lags by a whole turn."""
    harness, nodes = validate(range(n_nodes)), tuple(range(n_nodes))
    made = dict.fromkeys(nodes, 0)
    while any(count < n_turns for count in made.values()):
        least = min(made.values())
        origin = given_data.draw(st.sampled_from([node for node in nodes if made[node] == least]))
        made[origin] += 1
        harness.send(examined(origin, turn=made[origin], nodes=nodes))
    assert turns(harness) == [(turn, False) for turn in range(1, n_turns + 1)]
    assert all(math.isclose(result.accuracy, 0.6) for result in harness.emitted("results"))
