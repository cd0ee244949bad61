from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.node_context import NodeContext
from operators.clocks import FAR
from operators.layout import Layout, Sharding
from operators.window import Window, WindowState

FOUR = Layout(bounds=(0, 1, 2, 3, 4))


def vector(*values):
    return np.array(values, np.float32)


def constant(value, size=4):
    return np.full(size, value, np.float32)


def make(layout=FOUR, receivers=(1, 2), cap=1 << 20, newest_only=False):
    wanted = {receiver: np.ones(layout.cells, np.bool_) for receiver in receivers}
    return WindowState(layout, wanted, cap_nbytes=cap * 4 * layout.n_weights, newest_only=newest_only)


def brief(intervals):
    return [(i.start, i.stop, i.low, i.high, i.values.tolist()) for i in intervals]


def test_take_three_gradients_unsent_sums_them_over_the_cells():
    window = make()
    for number in (1, 2, 3):
        window.append(number, vector(number, 10 * number, 100 * number, 1000 * number))
    assert brief(window.take(1, 1, 3)) == [(1, 3, 0, 3, [60, 600])]


def test_take_second_time_gives_only_what_came_since():
    window = make()
    window.append(1, constant(1))
    window.take(1, 0, 4)
    window.append(2, constant(2))
    window.append(3, constant(4))
    assert brief(window.take(1, 0, 4)) == [(0, 4, 1, 3, [6] * 4)]


def test_take_tells_of_how_many_images_the_gradients_are_whatever_receivers_lack():
    window = make()
    for number, images in ((1, 4), (2, 4), (3, 1)):
        window.append(number, constant(1), images=images)
        if number == 2:
            window.take(1, 1, 3)
    assert [(i.low, i.high, i.images) for i in window.take(1, 0, 4)] == [(0, 3, 9), (2, 3, 1), (0, 3, 9)]
    window.append(4, constant(1), images=2)
    assert [i.images for i in window.take(1, 0, 4)] == [2]
    assert [i.images for i in window.take(2, 0, 4)] == [11]
    window.leave(1)
    window.leave(2)
    for number in range(5, 100):
        window.append(number, constant(1), images=3)
    assert len(window._images) <= 2
    window.restore(window.tensors())
    window.join(1, 7)
    window.begin(1, 7, np.full(4, 99))
    window.append(100, constant(1), images=5)
    assert [(i.low, i.high, i.images) for i in window.take(1, 0, 4)] == [(99, 100, 5)]


def test_take_nothing_new_gives_no_interval():
    window = make()
    window.append(1, constant(1))
    window.take(1, 0, 4)
    assert window.take(1, 0, 4) == []


def test_take_cells_sent_at_different_times_gives_separate_intervals():
    window = make()
    window.append(1, constant(1))
    window.take(1, 1, 3)
    window.append(2, constant(2))
    assert brief(window.take(1, 0, 4)) == [(0, 1, 0, 2, [3]), (1, 3, 1, 2, [2, 2]), (3, 4, 0, 2, [3])]


def test_take_unknown_receiver_gives_no_interval():
    window = make()
    window.append(1, constant(1))
    assert window.take(7, 0, 4) == []


def test_take_two_receivers_same_interval_share_one_array():
    window = make()
    window.append(1, constant(1))
    window.append(2, constant(2))
    first, second = window.take(1, 0, 2)[0], window.take(2, 0, 2)[0]
    assert first.values is second.values


def test_take_one_gradient_is_a_view_of_it():
    window, gradient = make(), constant(1)
    window.append(1, gradient)
    assert np.shares_memory(window.take(1, 0, 2)[0].values, gradient)


def test_append_read_only_gradients_are_never_written():
    window = make(cap=2)
    for number in range(1, 9):
        gradient = constant(number)
        gradient.flags.writeable = False
        window.append(number, gradient)
        window.take(1, number % 4, number % 4 + 1)
        assert gradient.tolist() == [number] * 4


def test_append_number_that_is_not_next_raises():
    window = make()
    with pytest.raises(ValueError, match="gradient 1 is next, got 2"):
        window.append(2, constant(1))


def test_nbytes_gradient_sent_to_everybody_is_freed():
    window = make()
    window.append(1, constant(1))
    window.take(1, 0, 4)
    assert window.nbytes == 16
    window.take(2, 0, 4)
    assert window.nbytes == 0


def test_nbytes_one_cell_missing_is_kept():
    window = make()
    window.append(1, constant(1))
    window.take(1, 0, 4)
    window.take(2, 0, 3)
    assert window.nbytes == 16


def test_nbytes_no_receivers_keeps_nothing():
    window = make(receivers=())
    window.append(1, constant(1))
    assert window.nbytes == 0


def test_leave_receiver_behind_frees_what_only_it_lacked():
    window = make()
    window.append(1, constant(1))
    window.take(1, 0, 4)
    window.leave(2)
    assert window.nbytes == 0
    assert window.take(2, 0, 4) == []


def test_append_beyond_cap_adds_up_all_but_the_newest_where_no_place_lies_between():
    window = make(receivers=(1,), cap=3)
    for number in (1, 2, 3, 4):
        window.append(number, constant(number))
    assert window.nbytes == 2 * 16
    assert brief(window.take(1, 0, 4)) == [(0, 4, 0, 4, [10] * 4)]
    assert window.nbytes == 0


def test_append_beyond_cap_keeps_receivers_places_apart():
    window = make(cap=3)
    window.append(1, constant(1))
    window.append(2, constant(2))
    window.take(1, 0, 4)
    window.append(3, constant(4))
    window.append(4, constant(8))
    assert window.nbytes == 3 * 16
    assert brief(window.take(1, 0, 4)) == [(0, 4, 2, 4, [12] * 4)]
    assert brief(window.take(2, 0, 4)) == [(0, 4, 0, 4, [15] * 4)]
    assert window.nbytes == 0


def test_append_beyond_cap_with_another_place_in_each_cell_needs_one_sum_for_each_of_them():
    window = make(receivers=(1,), cap=2)
    for number in (1, 2, 3):
        window.append(number, constant(number))
        if number < 3:
            window.take(1, number - 1, number)
    assert window.nbytes == 2 * 16
    assert brief(window.take(1, 0, 4)) == [(0, 1, 1, 3, [5]), (1, 2, 2, 3, [3]), (2, 4, 0, 3, [6, 6])]
    assert (window.dropped, window.skips) == (0, False)


def test_append_for_hours_to_a_receiver_that_stands_still_takes_no_more_memory_and_loses_nothing():
    window = make(receivers=(1, 2, 3), cap=2)
    held = []
    for number in range(1, 1001):
        window.append(number, constant(number))
        for receiver in (1, 2):
            window.take(receiver, (number + receiver) % 4, (number + receiver) % 4 + 1)
        held.append(window.nbytes)
    assert max(held) == max(held[:20]) == 4 * 16
    assert brief(window.take(3, 0, 4)) == [(0, 4, 0, 1000, [500500] * 4)]
    assert (window.dropped, window.skips) == (0, False)


def test_append_takes_no_less_of_a_layer_that_another_cell_has_left():
    """Cell 0 is sent to everybody, cell 1 to nobody: what comes then goes to the same layer, above it and onto it."""
    window = make(receivers=(1, 2), cap=2)
    for number in (1, 2):
        window.append(number, constant(number))
    for receiver in (1, 2):
        window.take(receiver, 0, 1)
    for number in (3, 4):
        window.append(number, constant(number))
    assert window.nbytes == 2 * 16
    assert brief(window.take(1, 0, 4)) == [(0, 1, 2, 4, [7]), (1, 4, 0, 4, [10] * 3)]


def test_append_newest_only_skips_what_was_not_sent():
    window = make(receivers=(1,), newest_only=True)
    window.append(1, constant(1))
    window.take(1, 0, 2)
    window.append(2, constant(2))
    assert window.skips
    assert window.dropped == 1
    assert window.nbytes == 16
    assert brief(window.take(1, 0, 4)) == [(0, 4, 1, 2, [2] * 4)]


def test_take_cells_of_another_owner_are_not_sent():
    mask = np.array([True, True, False, False])
    window = WindowState(FOUR, {1: mask, 2: ~mask}, cap_nbytes=1 << 20, newest_only=False)
    window.append(1, constant(1))
    assert brief(window.take(1, 0, 4)) == [(0, 2, 0, 1, [1, 1])]
    assert window.nbytes == 16
    assert brief(window.take(2, 0, 4)) == [(2, 4, 0, 1, [1, 1])]
    assert window.nbytes == 0


def test_append_cells_of_nobody_do_not_count_as_dropped():
    window = WindowState(FOUR, {1: np.array([True, False, False, False])}, cap_nbytes=0, newest_only=True)
    for number in (1, 2, 3):
        window.append(number, constant(number))
        window.take(1, 0, 4)
    assert window.dropped == 0


def test_restore_counts_everything_as_sent_and_says_that_gradients_are_missing():
    window = make(receivers=(1,))
    window.append(1, constant(1))
    window.append(2, constant(2))
    window.take(1, 0, 1)
    restored = make(receivers=(1,))
    restored.restore(window.snapshot())
    assert (restored.newest, restored.skips, restored.nbytes) == (2, True, 0)
    assert restored.take(1, 0, 4) == []
    restored.append(3, constant(4))
    assert brief(restored.take(1, 0, 4)) == [(0, 4, 2, 3, [4] * 4)]


def test_restore_counts_poisoned_gradients_on():
    window, other = make(receivers=(1,)), make(receivers=(1,))
    window.poisoned = 2
    other.restore(window.kept())
    assert other.poisoned == 2
    other.restore(make(receivers=(1,)).kept())
    assert other.poisoned == 0


def test_restore_after_sums_were_made_forgets_them():
    window = make(receivers=(1, 2))
    window.append(1, constant(1))
    window.take(1, 0, 4)
    window.restore(make(receivers=(1, 2)).snapshot())
    window.append(1, constant(5))
    assert window.take(1, 0, 4)[0].values.tolist() == [5] * 4


def test_restore_other_shape_raises():
    with pytest.raises(ValueError, match=r"window has shape \(1, 4\), not \(2, 4\)"):
        make(receivers=(1, 2)).restore(make(receivers=(1,)).tensors())


def test_create_without_sharding_sends_to_every_other_node():
    node = NodeContext(index=1, members={"worker": (0, 1, 2)})
    tensors = Window(layout=FOUR, receivers="worker").create(node).tensors()
    assert tensors["sent_to"].tolist() == [[0] * 4] * 2


def test_create_with_sharding_sends_every_cell_to_its_owner():
    node = NodeContext(index=0, members={"worker": (0,), "server": (1, 2)})
    sharding = Sharding(layout=FOUR)
    tensors = Window(layout=FOUR, receivers="server", sharding=sharding).create(node).tensors()
    assert tensors["sent_to"].tolist() == [[0, 0, FAR, FAR], [FAR, FAR, 0, 0]]


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (4, 5), (2, 2), (3, 1), (-1, 2)])
def test_take_of_cells_that_there_are_not_is_refused(start, stop):
    window = make(receivers=(1,))
    window.append(1, constant(1))
    with pytest.raises(ValueError, match="of 4: offer a run of cells that the layout has"):
        window.take(1, start, stop)


def test_join_keeps_every_number_apart_for_a_receiver_until_it_begins_where_its_cells_are():
    window = make(receivers=(1, 2), cap=2)
    window.span = 9  # so that nobody is late
    window.append(1, constant(1))
    window.leave(2)
    window.take(1, 0, 4)
    assert window.join(2, 7) == 1
    for number in (2, 3, 4):
        window.append(number, constant(2.0**number))
    assert window.nbytes == 3 * 16
    assert window.take(2, 0, 4) == []
    window.begin(2, 6, np.array([4, 4, 4, 4]))  # another's, who had the number before
    assert window.take(2, 0, 4) == []
    window.begin(2, 7, np.array([1, 2, 3, 4]))
    assert brief(window.take(2, 0, 4)) == [(0, 1, 1, 4, [28]), (1, 2, 2, 4, [24]), (2, 3, 3, 4, [16])]


def test_begin_behind_gradients_that_were_not_made_yet_gives_what_comes_after_them():
    window = make(receivers=(1,))
    window.leave(1)
    assert window.join(1, 1) == 0
    window.begin(1, 1, np.full(4, 2))
    for number in (1, 2, 3):
        window.append(number, constant(number))
    assert brief(window.take(1, 0, 4)) == [(0, 4, 2, 3, [3] * 4)]


def test_leave_of_a_receiver_that_is_kept_for_frees_what_was_kept():
    window = make(receivers=(1,))
    window.leave(1)
    window.join(1, 1)
    window.append(1, constant(1))
    window.leave(1)
    assert window.nbytes == 0


def test_start_behind_a_number_takes_the_next_one_and_sends_only_what_comes():
    window = make(receivers=(1,))
    window.start(5)
    window.append(6, constant(3))
    assert brief(window.take(1, 0, 4)) == [(0, 4, 5, 6, [3] * 4)]


CELLS, RECEIVERS = 6, 3
RUN = st.tuples(st.integers(0, CELLS - 1), st.integers(1, CELLS)).map(lambda r: (r[0], min(CELLS, r[0] + r[1])))
STEP = st.one_of(st.none(), st.tuples(st.integers(1, RECEIVERS), RUN))


@settings(deadline=None, max_examples=100)
@given(steps=st.lists(STEP, max_size=40))
def test_take_any_schedule_delivers_every_gradient_exactly_once_per_receiver_and_cell(steps):
    layout = Layout(bounds=(0, 2, 3, 5, 6, 8, 9))
    window = make(layout, receivers=range(1, RECEIVERS + 1))
    rng = np.random.default_rng(len(steps))
    total = np.zeros(layout.n_weights, np.float32)
    received = {receiver: np.zeros(layout.n_weights, np.float32) for receiver in range(1, RECEIVERS + 1)}
    applied = defaultdict(int)
    number = 0
    everything = [(receiver, (0, CELLS)) for receiver in received]
    for step in [*steps, *everything]:
        if step is None:
            number += 1
            gradient = rng.integers(-1000, 1000, layout.n_weights).astype(np.float32)
            total += gradient
            window.append(number, gradient)
            continue
        receiver, (start, stop) = step
        for interval in window.take(receiver, start, stop):
            for cell in range(interval.start, interval.stop):
                assert applied[receiver, cell] == interval.low
                applied[receiver, cell] = interval.high
            received[receiver][layout.weights(interval.start, interval.stop)] += interval.values
    for vector_ in received.values():
        assert np.array_equal(vector_, total)
    assert window.nbytes == 0


@settings(deadline=None, max_examples=200)
@given(steps=st.lists(STEP, max_size=60))
def test_append_any_schedule_at_the_cap_holds_a_sum_for_each_receiver_at_most_and_loses_nothing(steps):
    window = make(Layout(bounds=tuple(range(CELLS + 1))), receivers=range(1, RECEIVERS + 1), cap=2)
    gradients = [np.zeros(CELLS, np.float32)]
    applied = defaultdict(int)
    everything = [(receiver, (0, CELLS)) for receiver in range(1, RECEIVERS + 1)]
    for step in [*steps, *everything]:
        if step is None:
            gradients.append(np.full(CELLS, 2.0 ** (len(gradients) % 20), np.float32))
            window.append(len(gradients) - 1, gradients[-1])
            assert window.nbytes <= (RECEIVERS + 1) * 4 * CELLS
            continue
        receiver, (start, stop) = step
        for interval in window.take(receiver, start, stop):
            want = np.sum(gradients[interval.low + 1 : interval.high + 1], axis=0)[interval.start : interval.stop]
            assert np.array_equal(interval.values, want)
            for cell in range(interval.start, interval.stop):
                assert applied[receiver, cell] == interval.low
                applied[receiver, cell] = interval.high
    assert all(number == len(gradients) - 1 for number in applied.values())
    assert (window.nbytes, window.dropped, window.skips) == (0, 0, False)


NEWCOMER = st.one_of(
    STEP,
    st.tuples(st.just("join"), st.integers(1, RECEIVERS)),
    st.tuples(st.just("begin"), st.integers(1, RECEIVERS), st.lists(st.integers(0, 5), min_size=CELLS, max_size=CELLS)),
)


@settings(deadline=None, max_examples=300)
@given(steps=st.lists(NEWCOMER, max_size=80), cap=st.sampled_from([2, 5, 1 << 20]), span=st.sampled_from([0, 2, 9]))
def test_append_while_receivers_leave_and_others_join_gives_each_what_it_lacks_or_counts_it(steps, cap, span):
    """Whoever has joined begins, cell by cell, with a few more numbers than had been made when it joined."""
    layout = Layout(bounds=(0, 2, 3, 5, 6, 8, 9))
    window = make(layout, receivers=range(1, RECEIVERS + 1), cap=cap)
    window.span = span
    gradients = [np.zeros(layout.n_weights)]
    applied = {receiver: [0] * CELLS for receiver in range(1, RECEIVERS + 1)}
    joined, dropped, rng = {}, set(), np.random.default_rng(len(steps))
    everything = [("begin", receiver, [0] * CELLS) for receiver in applied]
    everything += [(receiver, (0, CELLS)) for receiver in applied]
    for step in [*steps, *everything]:
        match step:
            case None:
                gradients.append(rng.integers(-1000, 1000, layout.n_weights).astype(np.float32))
                window.append(len(gradients) - 1, gradients[-1])
            case ("join", receiver):
                window.leave(receiver)
                joined[receiver] = window.join(receiver, len(gradients))
                applied[receiver] = [joined[receiver]] * CELLS
            case ("begin", receiver, more):
                if receiver in joined:
                    base = joined.pop(receiver)
                    applied[receiver] = [min(base + each, len(gradients) - 1) for each in more]
                    window.begin(receiver, window._held[receiver], np.array(applied[receiver]))
            case (receiver, (start, stop)):
                for interval in window.take(receiver, start, stop):
                    want = np.sum(gradients[interval.low + 1 : interval.high + 1], axis=0)
                    assert np.array_equal(interval.values, want[layout.weights(interval.start, interval.stop)])
                    for cell in range(interval.start, interval.stop):
                        assert applied[receiver][cell] <= interval.low
                        dropped |= set(range(applied[receiver][cell], interval.low))
                        applied[receiver][cell] = interval.high
    assert all(number == len(gradients) - 1 for cells in applied.values() for number in cells)
    assert len(dropped) <= window.dropped
    assert not dropped or window.skips
    assert window.nbytes == 0
