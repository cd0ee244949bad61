"""A window with a codec: rounds are coded once, and nothing is lost."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.node_context import NodeContext
from operators.coded_window import _MOST_ROUNDS, CodedWindow, CodedWindowState
from operators.compression import Codec, Half, Residual, Threshold, TopK, add
from operators.layout import Layout

EIGHT = Layout(bounds=(0, 2, 4, 6, 8))


def make(
    codec: Codec,
    *,
    receivers: tuple[int, ...] = (1, 2),
    updates: bool = False,
    cap_nbytes: int = 1 << 20,
    layout: Layout = EIGHT,
) -> CodedWindowState:
    wanted = {receiver: np.ones(layout.cells, np.bool_) for receiver in receivers}
    residual = Residual(codec, layout.n_weights)
    return CodedWindowState(layout, wanted, residual=residual, updates=updates, cap_nbytes=cap_nbytes)


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def receive(target: np.ndarray, intervals) -> list[tuple[int, int, int, int]]:
    """Add intervals to a vector; where they are."""
    for each in intervals:
        add(target[EIGHT.weights(each.start, each.stop)], each.values)
    return [(each.start, each.stop, each.low, each.high) for each in intervals]


def test_gradients_can_be_taken_once_their_round_is_closed():
    window = make(Threshold(tau=1))
    window.append(1, vector(2, 0, 0, 0, 0, 0, 0, -3))
    assert window.take(1, 0, 4) == []
    window.close()
    target = np.zeros(8, np.float32)
    assert receive(target, window.take(1, 0, 4)) == [(0, 4, 0, 1)]
    assert target.tolist() == [1, 0, 0, 0, 0, 0, 0, -1]
    assert window.residual.values.tolist() == [1, 0, 0, 0, 0, 0, 0, -2]


def test_round_of_several_gradients_is_coded_as_their_sum():
    window = make(Threshold(tau=1))
    for number in (1, 2, 3):
        window.append(number, vector(0.5, 0, 0, 0, 0, 0, 0, 0))
    window.close()
    target = np.zeros(8, np.float32)
    assert receive(target, window.take(2, 0, 4)) == [(0, 4, 0, 3)]
    assert (target[0], window.residual.values[0]) == (1, 0.5)


def test_interval_tells_the_images_of_rounds_that_are_closed_and_of_no_later_gradients():
    window = make(Threshold(tau=1))
    for number, images in ((1, 5), (2, 3), (3, 4)):
        window.append(number, vector(1, 0, 0, 0, 0, 0, 0, 0), images=images)
        if number == 2:
            window.close()
    assert [(each.low, each.high, each.images) for each in window.take(1, 0, 4)] == [(0, 2, 8)]
    window.close()
    assert [each.images for each in window.take(1, 0, 4)] == [4]
    assert [each.images for each in window.take(2, 0, 4)] == [12]


def test_late_receiver_gets_all_rounds_in_one_interval_and_others_what_is_new():
    window = make(Threshold(tau=1))
    early, late = np.zeros(8, np.float32), np.zeros(8, np.float32)
    for number in (1, 2):
        window.append(number, vector(4, 0, 0, 0, 0, 0, 0, 0))
        window.close()
        assert receive(early, window.take(1, 0, 4)) == [(0, 4, number - 1, number)]
    assert receive(late, window.take(2, 0, 4)) == [(0, 4, 0, 2)]
    assert early.tolist() == late.tolist() == [2, 0, 0, 0, 0, 0, 0, 0]
    assert window.nbytes == 0


def test_closing_again_without_a_gradient_changes_nothing():
    window = make(Threshold(tau=1))
    window.append(1, vector(4, 0, 0, 0, 0, 0, 0, 0))
    window.close()
    window.close()
    assert window.residual.values[0] == 3
    assert window.closed == 1


def test_tau_of_updates_is_multiplied_by_the_rate_of_the_rounds_last_gradient_or_the_last_that_was_not_zero():
    window = make(Threshold(tau=2), updates=True)
    target = np.zeros(8, np.float32)
    for number, rate, tau, owed in ((1, 0.5, 1.0, 2.0), (2, 0.25, 0.5, 4.5), (3, 0.0, 0.5, 7.0)):
        window.append(number, vector(0, 0, 0, 3, 0, 0, 0, 0), rate)
        window.close()
        before = target[3]
        receive(target, window.take(1, 0, 4))
        assert (target[3] - before, window.residual.values[3]) == (tau, owed)


def test_rounds_between_which_nobody_stands_become_one_sum_that_takes_less_memory():
    window = make(Half())
    late = np.zeros(8, np.float32)
    for number in range(1, 30):
        window.append(number, vector(*range(8)))
        window.close()
        window.take(1, 0, 4)
        assert window.nbytes <= 2 * (8 * 8 + 4) + 2 * 8
    assert receive(late, window.take(2, 0, 4)) == [(0, 4, 0, 29)]
    assert late.tolist() == [29 * value for value in range(8)]


def test_late_receiver_gets_more_rounds_than_a_code_may_have_passes_as_one_sum():
    layout = Layout(bounds=(0, 2048, 4096))
    window = make(Threshold(tau=1), layout=layout)
    rounds = _MOST_ROUNDS + 3
    for number in range(1, rounds + 1):
        gradient = np.zeros(layout.n_weights, np.float32)
        gradient[[0, number]] = 2
        window.append(number, gradient)
        window.close()
        window.take(1, 0, 2)
    (late,) = window.take(2, 0, 2)
    assert (late.low, late.high) == (0, rounds)
    target = np.zeros(layout.n_weights, np.float32)
    add(target, late.values)
    want = np.zeros(layout.n_weights, np.float32)
    want[0], want[1 : rounds + 1] = 2 * rounds, 2
    np.testing.assert_array_equal(target + window.residual.values, want)


def test_oldest_rounds_are_dropped_and_counted_beyond_the_cap_once_a_receiver_has_missed_its_turn():
    window = make(Half(), receivers=(1, 2, 3), cap_nbytes=40)
    for number in range(1, 6):
        window.append(number, vector(*[1] * 8))
        window.close()
        window.take(1 if number % 2 else 2, 0, 4)
    assert window.skips
    assert window.dropped > 0


def test_no_round_is_dropped_while_nobody_has_missed_a_turn_however_large_the_model():
    window = make(Half(), receivers=(1, 2, 3), cap_nbytes=1)
    window.span = 3
    for number in range(1, 30):
        window.append(number, vector(*[1] * 8))
        window.close()
        window.take(1 + number % 3, 0, 4)
    assert (window.dropped, window.skips) == (0, False)


def test_rounds_that_take_more_than_float32_are_sent_as_their_sum():
    window, target = make(Half()), np.zeros(8, np.float32)
    for number in range(1, 5):
        window.append(number, vector(*range(8)))
        window.close()
        window.take(1, 0, 4)
    (interval,) = window.take(2, 0, 4)
    assert interval.values.nbytes <= 4 * 8 + 16
    receive(target, [interval])
    assert target.tolist() == [4 * value for value in range(8)]


@pytest.mark.parametrize("codec", [Threshold(tau=0.5), Threshold(tau=0.5, most="fit"), TopK(density=0.25), Half()])
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_what_was_sent_and_what_is_owed_are_the_sum_of_all_gradients(codec, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    window, total = make(codec), np.zeros(8, np.float32)
    targets: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(8, np.float32))
    number = 0
    for action in data.draw(st.lists(st.sampled_from(["append", "append", "close", "take", "restore"]), max_size=40)):
        if action == "append":
            number += 1
            gradient = (rng.integers(-32, 33, 8) / 8).astype(np.float32)
            total += gradient
            window.append(number, gradient)
        elif action == "close":
            window.close()
        elif action == "take":
            start, stop = sorted(rng.choice(5, 2, replace=False).tolist())
            receiver = int(rng.integers(1, 3))
            receive(targets[receiver], window.take(receiver, start, stop))
        else:  # as from a checkpoint that was made once all was sent
            window.close()
            for receiver in (1, 2):
                receive(targets[receiver], window.take(receiver, 0, 4))
            kept = window.snapshot()
            window = make(codec)
            window.restore(kept)
    window.close()
    for receiver in (1, 2):
        receive(targets[receiver], window.take(receiver, 0, 4))
        assert (targets[receiver] + window.residual.values).tolist() == total.tolist()


def test_snapshot_keeps_what_it_is_while_the_window_goes_on():
    window = make(Threshold(tau=1))
    window.append(1, vector(4, 0, 0, 0, 0, 0, 0, 0))
    window.close()
    kept = window.snapshot()
    window.append(2, vector(4, 0, 0, 0, 0, 0, 0, 0))
    assert kept["residual.values"][0] == 3


def test_element_makes_a_window_for_every_other_member():
    node = NodeContext(index=1, members={"worker": (0, 1, 2)})
    window = CodedWindow(layout=EIGHT, codec=Threshold(tau=1), receivers="worker").create(node)
    window.append(1, vector(4, 0, 0, 0, 0, 0, 0, 0))
    window.close()
    assert [len(window.take(receiver, 0, 4)) for receiver in (0, 1, 2)] == [1, 0, 1]
