import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_data import TWO, data

from dataflow.node_context import NodeContext
from operators.data import open_data, pixels
from operators.dnn import Model
from operators.layout import Layout, Sharding
from operators.optimizer import Sgd
from operators.preprocess import Normalise
from operators.sampling import epoch_order
from operators.source import training_rows
from operators.vector_state import Replica, Shard, VectorState, Velocity
from operators.warm_start import WarmStart, initial_weights

NONE = np.zeros(0, np.float32)
WARM = WarmStart(fraction=0.5, lr=0.25, batch=4, data=data(20))


def worker(index, seed=0):
    return NodeContext(index=index, members={"worker": (0, 1, 2)}, seed=seed)


def test_snapshot_later_writes_do_not_change_it():
    state = VectorState(np.array([1, 2], np.float32))
    copy = state.snapshot()
    state.values[:] = 5
    assert copy.tolist() == [1, 2]


@pytest.mark.parametrize("cut", [slice(None), slice(1, 2)], ids=["whole", "cut"])
def test_snapshot_of_a_state_that_was_given_a_view_is_not_changed_by_later_writes(cut):
    whole = np.array([1, 2, 3, 4], np.float32)
    state = VectorState(whole[:3])
    seen = [state.snapshot()[cut]]
    state.values[:] = 5
    state.values = whole.reshape(2, 2)[1]
    seen.append(state.snapshot()[cut])
    state.values[:] = 6
    assert [each.tolist() for each in seen] == [[1, 2, 3][cut], [3, 4][cut]]
    assert whole.tolist() == [1, 2, 3, 4]


def test_snapshots_between_two_writes_share_one_array_that_nobody_may_write():
    state = VectorState(np.array([1, 2], np.float32))
    first, second = state.snapshot(), state.snapshot()
    assert np.shares_memory(first, second)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 7
    state.values[0] = 7
    third = state.snapshot()
    assert (first.tolist(), second.tolist(), third.tolist()) == ([1, 2], [1, 2], [7, 2])
    assert not np.shares_memory(first, third)


def test_values_without_a_snapshot_are_written_in_place():
    state = VectorState(np.array([1, 2], np.float32))
    live = state.values
    state.descend(np.array([1, 1], np.float32), 1.0, scale=False)
    state.values[1] = 9
    assert live.tolist() == [0, 9]


def test_current_is_read_only_and_shows_later_writes_in_place():
    state = VectorState(np.array([1, 2], np.float32))
    current = state.current
    with pytest.raises(ValueError, match="read-only"):
        current[0] = 7
    state.values[0] = 7
    assert current.tolist() == [7, 2]


def test_current_makes_no_copy_necessary():
    state = VectorState(np.array([1, 2], np.float32))
    live = state.values
    assert np.shares_memory(state.current, live)
    state.values[1] = 9
    assert live.tolist() == [1, 9]


@given(
    st.lists(
        st.sampled_from(["snapshot", "current", "write", "descend", "replace", "restore"]), min_size=2, max_size=20
    )
)
def test_snapshots_keep_what_they_showed_whatever_happens_later(actions):
    state, model = VectorState(np.array([1, 2], np.float32)), [1.0, 2.0]
    snapshots = []
    for number, action in enumerate(actions, start=3):
        if action == "snapshot":
            snapshots.append((state.snapshot(), list(model)))
        elif action == "write":
            state.values[number % 2] = model[number % 2] = number
        elif action == "descend":
            state.descend(np.array([number, 1], np.float32), 1.0, scale=False)
            model = [model[0] - number, model[1] - 1]
        elif action == "replace":
            state.values, model = np.array([number, 0], np.float32), [number, 0]
        elif action == "restore":
            state.restore({"values": np.array([0, number], np.float32)})
            model = [0, number]
        assert state.current.tolist() == state.tensors()["values"].tolist() == model
        assert not state.current.flags.writeable
    assert [snapshot.tolist() for snapshot, _ in snapshots] == [shown for _, shown in snapshots]
    assert not any(snapshot.flags.writeable for snapshot, _ in snapshots)


@pytest.mark.parametrize("scale", [False, True])
def test_descend_after_a_snapshot_leaves_the_snapshot_and_gives_the_bits_of_numpy(scale):
    start, direction, rate = np.float32([0.1, 3e-8, -7]), np.float32([0.3, 1e-8, 1e9]), np.float32(0.3)
    state, given = VectorState(start.copy()), direction.copy()
    snapshot = state.snapshot()
    state.descend(given, 0.3, scale=scale)
    assert snapshot.tolist() == start.tolist()
    np.testing.assert_array_equal(state.values, start - rate * direction)
    np.testing.assert_array_equal(given, rate * direction if scale else direction)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=70), st.floats(0.001, 1), st.booleans())
def test_descend_of_any_vector_gives_the_bits_of_numpy(values, rate, scale):
    direction = np.array(values, np.float32)
    start = direction[::-1].copy()
    state = VectorState(start.copy())
    state.descend(direction.copy(), rate, scale=scale)
    np.testing.assert_array_equal(state.values, start - np.float32(rate) * direction)


def test_write_copies_only_while_somebody_holds_a_snapshot_or_a_part_of_one():
    state = VectorState(np.float32([1, 2, 3]))

    def written_in_place() -> bool:
        before = state.current.ctypes.data  # not the array, which would count as somebody who looks
        state.values[0] += 1
        return state.current.ctypes.data == before

    snapshot = state.snapshot()
    assert not written_in_place()
    assert written_in_place(), "the snapshot shows the array of before"
    part = state.snapshot()[1:]
    assert not written_in_place()
    state.snapshot()
    assert written_in_place()
    assert (snapshot.tolist(), part.tolist(), state.values.tolist()) == ([1, 2, 3], [2, 3], [5, 2, 3])


def test_restore_keeps_the_array_and_copies_the_values():
    state, saved = VectorState(np.zeros(2, np.float32)), np.array([3, 4], np.float32)
    live = state.values
    state.restore({"values": saved})
    saved[:] = 0
    assert live.tolist() == [3, 4]


@pytest.mark.parametrize("values", [np.zeros(3, np.float32), np.zeros(2, np.float64)])
def test_restore_other_shape_or_dtype_raises(values):
    with pytest.raises(ValueError, match=r"the vector is \(2,\) float32"):
        VectorState(np.zeros(2, np.float32)).restore({"values": values})


@pytest.mark.parametrize("warm", [None, WARM])
def test_replica_is_the_same_on_all_nodes_and_differs_by_seed(warm):
    element = Replica(model=TWO, warm_start=warm)
    first, second = element.create(worker(0)), element.create(worker(2))
    assert np.array_equal(first.values, second.values)
    assert not np.shares_memory(first.values, second.values)
    assert first.values.dtype == np.float32
    assert not np.array_equal(first.values, element.create(worker(0, seed=1)).values)


def test_replica_can_be_written_after_others_were_made():
    element = Replica(model=TWO)
    first = element.create(worker(0))
    before = first.values.copy()
    first.values += 1
    assert np.array_equal(element.create(worker(1)).values, before)


def test_shards_of_all_servers_make_up_the_replica():
    sharding = Sharding(layout=Layout(bounds=(0, 1, 2, 4, 6)))
    element = Shard(model=TWO, sharding=sharding, warm_start=WARM)
    members = {"server": (3, 4)}
    shards = [element.create(NodeContext(index=i, role="server", members=members)).values for i in (3, 4)]
    whole = Replica(model=TWO, warm_start=WARM).create(worker(0)).values
    assert shards[0].tolist() == [*whole[:4], 0, 0]
    assert shards[1].tolist() == [0, 0, 0, 0, *whole[4:]]


@pytest.mark.parametrize("normalise", [None, Normalise(mean=(0.5,), std=(0.25,))])
def test_warm_start_is_plain_sgd_on_a_fraction_of_an_epoch(normalise):
    warm = WARM.model_copy(update={"normalise": normalise, "holdout": 0.2})
    model, seed = Model(TWO), 6
    weights = initial_weights(TWO, None, seed).copy()
    rows = training_rows(20, 0.2, seed)
    order = rows[epoch_order(16, seed, 0, 1 << 20)][:8]
    tiny, out = open_data(data(20)), np.empty_like(weights)
    for batch in (order[:4], order[4:]):
        images = pixels(tiny.train_images[batch], 10.0)
        images = images if normalise is None else (images - np.float32(0.5)) / np.float32(0.25)
        model.gradient(
            weights, images, tiny.train_labels[batch], out, model.workspace(4), 0.25, statistics=NONE, seed=0
        )
        weights -= np.float32(0.25) * out
    assert np.array_equal(initial_weights(TWO, warm, seed), weights)


def test_warm_start_uses_the_optimizer():
    sgd = Sgd(momentum=0.5, look_ahead=1, weight_decay=0.125)
    model, weights = Model(TWO), initial_weights(TWO, None, 6).copy()
    order, tiny = epoch_order(20, 6, 0, 1 << 20)[:10], open_data(data(20))
    velocity, out = np.zeros_like(weights), np.empty_like(weights)
    for batch in (order[:4], order[4:8], order[8:]):
        images = pixels(tiny.train_images[batch], 10.0)
        model.gradient(
            weights, images, tiny.train_labels[batch], out, model.workspace(4), 1 / len(batch), statistics=NONE, seed=0
        )
        out += np.float32(0.125) * weights
        velocity = np.float32(0.5) * velocity + out
        weights -= np.float32(0.25) * (out + np.float32(0.5) * velocity)
    assert np.array_equal(initial_weights(TWO, WARM.model_copy(update={"optimizer": sgd}), 6), weights)


@pytest.mark.parametrize(("momentum", "size"), [(0.9, 6), (0.0, 0)])
def test_velocity_is_zero_and_takes_no_memory_without_momentum(momentum, size):
    state = Velocity(n_weights=6, optimizer=Sgd(momentum=momentum)).create(worker(0))
    assert state.values.tolist() == [0] * size
    assert state.values.dtype == np.float32


def test_initial_weights_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        initial_weights(TWO, None, 0)[:] = 0


def test_warm_start_takes_no_more_memory_than_its_images_need() -> None:
    huge = WARM.model_copy(update={"batch": 10**9})
    assert np.isfinite(initial_weights(TWO, huge, 0)).all()
