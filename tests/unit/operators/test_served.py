import numpy as np
import pytest

from dataflow.errors import OperatorError
from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.barrier import Barrier
from operators.images import Images
from operators.layout import Layout, Sharding
from operators.messages import Fragment
from operators.schedule import Schedule
from operators.serve import Pulls, Serve, ServeMean
from operators.served import ServedCells, ServedState
from operators.staleness import GAP_EVERY
from operators.update_rules import (
    Asgd,
    DanaDc,
    DanaZero,
    DcAsgd,
    Easgd,
    Lwp,
    NagAsgd,
    StalenessAware,
    YellowFin,
)
from operators.vector_state import VectorState

LAYOUT = Layout(bounds=(0, 1, 2))
SHARDING = Sharding(layout=LAYOUT)
SERVER = NodeContext(index=5, role="server", members={"worker": (0, 1), "server": (5,)})


def push(worker, high, value=2.0):
    return Fragment(worker, 0, 2, high - 1, high, span=0, skips=False, values=np.full(2, value, np.float32))


def server(rule, *, schedule=Schedule(lr=0.5), node=SERVER):  # noqa: B008
    states = {
        "shard": VectorState(np.array([10, 20], np.float32)),
        "pulls": Pulls(workers="worker"),
        "served": ServedCells(rule=rule),
        "images": Images(sharding=SHARDING),
    }
    return Harness(Serve(sharding=SHARDING, schedule=schedule), node=node, states=states)


def answer(harness, *pushed):
    (effect,) = harness.send(push(*pushed))
    return effect.message


def test_served_lag_counts_updates_since_the_workers_answer():
    harness = server(Asgd())
    assert [answer(harness, 0, 1).lag, answer(harness, 1, 1).lag, answer(harness, 1, 2).lag] == [0, 1, 0]
    assert answer(harness, 0, 2).lag == 2


def test_served_gap_is_measured_of_every_eighth_answer():
    harness = server(Asgd())
    found = [answer(harness, 0, number) for number in range(1, GAP_EVERY + 1)]
    assert {message.gap for message in found} == {None}
    answer(harness, 1, 1, 4.0)  # both weights move by 2
    message = answer(harness, 0, GAP_EVERY + 1)
    assert (message.lag, message.gap) == (1, 2.0)
    assert message.normalised_gap == pytest.approx(2 / 8**0.5)
    assert answer(harness, 0, GAP_EVERY + 2).gap is None


def fetching(every):
    """A server that answers a worker after so many pushes."""
    states = {
        "shard": VectorState(np.array([10, 20], np.float32)),
        "pulls": Pulls(workers="worker"),
        "served": ServedCells(rule=Asgd()),
        "images": Images(sharding=SHARDING),
    }
    return Harness(Serve(sharding=SHARDING, schedule=Schedule(lr=0.5), fetch_every=every), node=SERVER, states=states)


def staleness_of(harness, worker, high, value=2.0):
    """That of a gradient, whether or not it is answered."""
    harness.send(push(worker, high, value))
    state = harness.states["served"]
    return state.at((0, 2), harness.states["shard"].values, {0, 1}).staleness[worker]


def test_served_lag_leaves_out_the_workers_own_pushes_since_its_answer():
    harness = fetching(4)
    found = [staleness_of(harness, 0, number).lag for number in (1, 2)]
    assert [staleness_of(harness, 1, number).lag for number in (1, 2, 3)] == [2, 2, 2]
    found += [staleness_of(harness, 0, number).lag for number in (3, 4, 5)]
    assert found == [0, 0, 3, 3, 0]
    assert staleness_of(harness, 1, 4).lag == 5


def test_served_restored_lag_leaves_out_the_workers_own_pushes_too():
    harness, other = fetching(4), fetching(4)
    staleness_of(harness, 0, 1)
    other.states["served"].restore(harness.states["served"].snapshot())
    assert [staleness_of(other, 0, number).lag for number in (2, 3)] == [0, 0]
    assert [staleness_of(other, 1, number).lag for number in (1, 2)] == [2, 2]


def test_served_gap_leaves_out_what_the_workers_own_pushes_have_moved_since_its_answer():
    harness = fetching(4)
    first = 4 * GAP_EVERY + 1
    for number in range(1, first):
        assert staleness_of(harness, 0, number, 0.3).gap is None
    found = [staleness_of(harness, 0, first, 0.3).gap, staleness_of(harness, 0, first + 1, 0.3).gap]
    staleness_of(harness, 1, 1, 4.0)  # both weights move by 2
    found += [staleness_of(harness, 0, first + 2, 0.3).gap, staleness_of(harness, 0, first + 3, 0.3).gap]
    assert found == [0, 0, pytest.approx(2, rel=1e-5), pytest.approx(2, rel=1e-5)]
    assert staleness_of(harness, 0, first + 4, 0.3).gap is None


def test_served_weights_that_were_sent_are_not_changed_by_the_workers_pushes():
    harness = fetching(2)
    for number in range(1, 2 * GAP_EVERY):
        harness.send(push(0, number))
    (effect,) = harness.send(push(0, 2 * GAP_EVERY))
    sent = effect.message.values.copy()
    for number in (1, 2):
        assert staleness_of(harness, 0, 2 * GAP_EVERY + number).gap == 0
    assert effect.message.values.tolist() == sent.tolist()


def test_served_gap_of_dana_is_to_the_papers_theta():
    # Alone at a rate of 1/2, theta is ahead of what it was sent by the momentum that it is about to move: 0.5 v.
    harness = server(DanaZero(momentum=0.5))
    velocity = 0.0
    for number in range(1, GAP_EVERY + 1):
        answer(harness, 0, number)
        velocity = 0.5 * velocity + 1
    assert answer(harness, 0, GAP_EVERY + 1).gap == pytest.approx(0.5 * velocity)


def test_served_gap_of_dana_zero_is_measured_less_often_of_many_workers():
    node = NodeContext(index=50, role="server", members={"worker": tuple(range(20)), "server": (50,)})
    found = {}
    for rule in (DanaZero(momentum=0.5), DanaZero(momentum=0.5, weight_decay=0.5)):
        harness = server(rule, node=node)
        found[rule.weight_decay] = [answer(harness, 0, number).gap is not None for number in range(1, 43)].count(True)
    assert found == {0.0: 2, 0.5: 5}


def test_served_gap_of_a_gradient_of_zeros_has_no_normalised_one():
    harness = server(Asgd())
    for number in range(1, GAP_EVERY + 1):
        answer(harness, 0, number)
    message = answer(harness, 0, GAP_EVERY + 1, 0.0)
    assert (message.gap, message.normalised_gap) == (0.0, None)


def test_served_gap_that_is_no_number_is_not_told():
    harness = server(Asgd())
    for number in (1, 2):
        answer(harness, 1, number, -1e19)
    for number in range(1, GAP_EVERY + 1):
        answer(harness, 0, number)
    for number in range(3, 7):
        answer(harness, 1, number, 1e19)  # from 1e19 to -1e19: the squares of the way come to more than float32 holds
    message = answer(harness, 0, GAP_EVERY + 1)
    assert (message.lag, message.gap, message.normalised_gap) == (4, None, None)


def test_serve_without_schedule_subtracts_updates():
    assert answer(server(Asgd(), schedule=None), 0, 1).values.tolist() == [8, 18]


def test_serve_staleness_aware_divides_the_rate_by_the_lag():
    harness = server(StalenessAware())
    for number in (1, 2):
        answer(harness, 0, number)
    assert answer(harness, 1, 1).values.tolist() == [10 - 2.5, 20 - 2.5]


def test_serve_lwp_answers_with_where_a_step_more_leads():
    harness = server(Lwp(momentum=0.5))
    assert answer(harness, 0, 1).values.tolist() == [8, 18]  # theta 9, velocity 1
    assert harness.states["shard"].values.tolist() == [9, 19]


def test_serve_dc_asgd_compensates_by_what_the_worker_was_sent():
    # Worker 1 computed at 10: 2 + 2 * 4 * (9 - 10) = -6, so theta is 9 + 3.
    harness = server(DcAsgd(momentum=0, strength=2))
    answer(harness, 0, 1)
    assert answer(harness, 1, 1).values.tolist() == [12, 22]


def test_serve_easgd_answers_each_with_its_own_and_ends_with_the_centre():
    harness = server(Easgd(alpha=0.5))
    assert answer(harness, 0, 1).values.tolist() == [9, 19]
    assert answer(harness, 0, 2).values.tolist() == [8.5, 18.5]  # 9 - 1 + 0.5
    assert harness.states["shard"].values.tolist() == [9.5, 19.5]
    assert [effect.message.values.tolist() for effect in harness.end()] == [[9.5, 19.5]] * 2


def ask(harness, worker):
    """What a worker that has come is answered."""
    asks = Fragment(worker, 0, 2, 0, 0, span=0, skips=True, values=np.zeros(0, np.float32))
    (effect,) = harness.send(asks)
    return effect.message


def test_serve_easgd_worker_that_comes_begins_from_the_centre_and_leaves_it_where_it_is():
    node = NodeContext(index=5, role="server", members={"worker": (0, 1), "server": (5,)}, vacant=frozenset({1}))
    harness = server(Easgd(alpha=0.5), node=node)
    harness.left(1)
    for number in (1, 2):
        answer(harness, 0, number)
    assert ask(harness, 1).values.tolist() == [9.5, 19.5]
    assert answer(harness, 0, 3).values.tolist() == [8, 18]  # 8.5 - 1 + 0.5; the centre 9.5 - 0.5
    assert answer(harness, 1, 3, 0.0).values.tolist() == [9.25, 19.25]  # from 9.5, half of the way to 9
    assert harness.states["shard"].values.tolist() == [9.25, 19.25]


@pytest.mark.parametrize("death", [0, 2])
def test_serve_easgd_worker_that_comes_back_takes_the_centre_whether_or_not_it_had_pushed(death):
    harness = server(Easgd(alpha=0.5))
    for number in range(1, death + 1):
        answer(harness, 1, number, 8.0)
    harness.left(1)
    assert "0:2/vectors/weights.1" not in harness.states["served"].tensors()
    for number in (1, 2):
        answer(harness, 0, number)
    centre = harness.states["shard"].values.copy()
    back = ask(harness, 1)
    assert (back.values.tolist(), back.lag) == (centre.tolist(), None)
    assert answer(harness, 1, 3, 0.0).values.tolist() == centre.tolist()
    assert harness.states["shard"].values.tolist() == centre.tolist()


def test_serve_easgd_worker_that_is_there_from_the_start_has_its_weights_however_late_it_pushes():
    harness = server(Easgd(alpha=0.5))
    for number in (1, 2):
        answer(harness, 0, number)
    # 10 - 1 - half of the way to the centre, 9.5, which comes as far.
    assert answer(harness, 1, 1).values.tolist() == [8.75, 18.75]
    assert harness.states["shard"].values.tolist() == [9.75, 19.75]


def test_serve_easgd_worker_that_had_died_before_the_checkpoint_begins_from_the_centre():
    harness, other = server(Easgd(alpha=0.5)), server(Easgd(alpha=0.5))
    answer(harness, 1, 1, 8.0)
    harness.left(1)
    for number in (1, 2):
        answer(harness, 0, number)
    other.states["served"].restore(harness.states["served"].snapshot())
    other.states["shard"].restore(harness.states["shard"].tensors())
    assert other.states["shard"].values.tolist() == [9.5, 19.5]
    assert answer(other, 1, 3).values.tolist() == [8.5, 18.5]
    assert other.states["shard"].values.tolist() == [9.5, 19.5]


@pytest.mark.parametrize("rule", [DanaZero(momentum=0.5), DanaDc(momentum=0.5, strength=0)])
def test_serve_dana_answers_with_what_is_ahead_and_ends_with_theta(rule):
    harness = server(rule)
    assert answer(harness, 0, 1).values.tolist() == [8.5, 18.5]  # a step of 1, and half of it ahead
    assert answer(harness, 1, 1).values.tolist() == [7, 17]
    assert [effect.message.values.tolist() for effect in harness.end()] == [[8, 18]] * 2
    assert harness.states["shard"].values.tolist() == [7, 17]


def test_serve_poisoned_gradient_is_not_told_to_be_as_stale_as_the_one_before():
    harness = server(Asgd())
    assert answer(harness, 0, 1).lag == 0
    *_, effect = harness.send(push(0, 2, np.nan))
    assert effect.message.lag is None


@pytest.mark.parametrize("rule", [DanaZero(momentum=0.5), NagAsgd(momentum=0.5), YellowFin(lr=0.1), Easgd(alpha=0.3)])
def test_served_restored_goes_on_as_if_nothing_had_happened(rule):
    harness, other = server(rule), server(rule)
    for number in (1, 2, 3):
        answer(harness, 0, number, 0.5)
        answer(harness, 1, number, 0.25)
    kept = harness.states["served"].snapshot()
    other.states["served"].restore(kept)
    other.states["shard"].restore(harness.states["shard"].tensors())
    again = other.states["served"].tensors()
    assert kept.keys() == again.keys()
    for name, tensor in kept.items():
        np.testing.assert_array_equal(again[name], tensor)
    for pushed in ((0, 4, 0.5), (1, 4, 0.25), (1, 5, -0.5)):
        before = other.states["shard"].values.copy()
        assert answer(harness, *pushed).values.tolist() == answer(other, *pushed).values.tolist()
        assert (other.states["shard"].values != before).all()


def test_served_restored_lag_counts_from_the_checkpoint():
    harness, other = server(Asgd()), server(Asgd())
    for number in (1, 2, 3):
        answer(harness, 0, number)
        answer(harness, 1, number)
    other.states["served"].restore(harness.states["served"].snapshot())
    assert [answer(other, 0, 4).lag, answer(other, 1, 4).lag] == [0, 1]


@pytest.mark.parametrize("rule", [DcAsgd(momentum=0.5, strength=0.5), DanaDc(momentum=0.5, strength=0.5)])
def test_served_restored_compensates_as_if_the_weights_were_sent_only_now_and_from_the_next_on_as_ever(rule):
    """What was sent is not kept: until a worker is answered again, only what DANA-DC looks ahead is made up for."""
    harness, other = server(rule), server(rule)
    for number in (1, 2, 3):
        answer(harness, 0, number, 0.5)
        answer(harness, 1, number, 0.25)
    other.states["served"].restore(harness.states["served"].snapshot())
    other.states["shard"].restore(harness.states["shard"].tensors())
    sent = other.states["shard"].values.copy()
    for number in (4, 5):
        answer(other, 0, number, 0.5)
        sent = other.states["shard"].values.copy() if number == 4 else sent
        kept = other.states["served"].snapshot()
        weights, velocity = other.states["shard"].values.copy(), kept["0:2/vectors/velocity.1"]
        ahead = 0.5 * kept["0:2/vectors/velocities"] if isinstance(rule, DanaDc) else 0
        gradient = 0.5 + 0.5 * 0.5 * 0.5 * (weights + ahead - sent)
        moved = 0.5 * velocity + 0.5 * gradient
        step = 0.5 * moved + 0.5 * gradient if isinstance(rule, DanaDc) else moved
        sent = answer(other, 1, number, 0.5).values
        np.testing.assert_allclose(sent, weights - step, rtol=1e-6)


def test_served_restore_of_nothing_forgets_all():
    harness = server(DanaZero(momentum=0.5))
    answer(harness, 0, 1)
    harness.states["served"].restore(ServedState(Asgd()).tensors())
    assert harness.states["served"].tensors() == {}


def test_serve_lwp_predicts_over_the_workers_that_are_there():
    # Four places: theta moves by a velocity of 1, and the answer looks as many more ahead as there are other workers.
    members = NodeContext(index=5, role="server", members={"worker": (0, 1, 2, 3), "server": (5,)})
    harness = server(Lwp(momentum=0.5), node=members)
    for vacant in (2, 3):
        assert harness.left(vacant) == []
    assert answer(harness, 0, 1).values.tolist() == [8, 18]
    (effect,) = harness.send(Fragment(2, 0, 2, 0, 0, span=0, skips=True, values=np.zeros(0, np.float32)))
    assert effect.message.values.tolist() == [7, 17]
    harness.left(1)
    harness.left(2)
    assert answer(harness, 0, 2).values.tolist() == [7.5, 17.5]


def test_serve_gradient_that_is_finite_and_leaves_weights_that_are_not_ends_the_job():
    harness = server(Asgd())
    for number in (1, 2):
        assert np.isfinite(answer(harness, 0, number, 1e19).values).all()
    with pytest.raises(OperatorError, match="too large for any sum, after gradient 3 of node 0 and a weight"):
        harness.send(push(0, 3, 1e19))


def test_serve_mean_that_leaves_weights_that_are_not_finite_ends_the_job():
    states = {"shard": VectorState(np.array([10, 20], np.float32)), "barrier": Barrier(contributors="worker")}
    harness = Harness(ServeMean(sharding=SHARDING, schedule=Schedule(lr=3)), node=SERVER, states=states)
    harness.send(push(0, 1, 1e19))
    with pytest.raises(OperatorError, match=r"too large for any sum, after step 1 "):
        harness.send(push(1, 1, 1e19))
