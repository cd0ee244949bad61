"""What a server knows of its workers' replicas: what was sent, and what is owed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.errors import OperatorError
from dataflow.node_context import NodeContext
from operators.compression import Codec, Half, Int8, OneBit, Threshold, TopK, add
from operators.layout import Layout
from operators.messages import Weights
from operators.shadows import Shadows, ShadowsState

EIGHT = Layout(bounds=(0, 2, 4, 6, 8))
UNIT = Threshold(tau=1)


def make(codec: Codec = UNIT, layers: tuple[int, ...] = (0,)) -> ShadowsState:
    return ShadowsState(EIGHT, codec, layers)


def vector(*values: float) -> np.ndarray:
    given = np.array(values, np.float32)
    given.flags.writeable = False
    return given


def weights(to: int, clock: int, values: np.ndarray, start: int = 0, stop: int = 4) -> Weights:
    return Weights(to=to, origin=9, start=start, stop=stop, clock=clock, values=values)


def load(replica: np.ndarray, answer: Weights) -> np.ndarray:
    """The replica after an answer."""
    if answer.values.dtype == np.uint8:
        add(replica, answer.values)
    else:
        replica[:] = answer.values
    return replica


def test_first_answer_to_each_worker_is_whole_and_not_copied():
    shadows = make()
    for worker in (0, 1):
        answer = weights(worker, 1, vector(*range(8)))
        assert shadows.answer(answer) is answer


def test_second_answer_is_the_code_of_the_change_and_the_rest_comes_with_later_ones():
    shadows, replica = make(), np.zeros(8, np.float32)
    load(replica, shadows.answer(weights(0, 1, vector(10, 20, 0, 0, 0, 0, 0, 5))))
    second = shadows.answer(weights(0, 2, vector(13, 18, 0, 0, 0, 0, 0, 5)))
    assert (second.to, second.origin, second.start, second.stop, second.clock) == (0, 9, 0, 4, 2)
    assert load(replica, second).tolist() == [11, 19, 0, 0, 0, 0, 0, 5]
    assert shadows.shadow(0, 0, 4).tolist() == replica.tolist()
    third = shadows.answer(weights(0, 3, vector(13, 18, 0, 0, 0, 0, 0, 5)))
    assert load(replica, third).tolist() == [12, 19, 0, 0, 0, 0, 0, 5]  # 1 was owed to the second, not more than tau


def test_what_one_worker_was_sent_is_not_taken_from_another():
    shadows, replica = make(), np.zeros(8, np.float32)
    load(replica, shadows.answer(weights(0, 1, vector(*[0] * 8))))
    shadows.answer(weights(1, 1, vector(*[0] * 8)))
    changed = vector(2, *[0] * 7)
    shadows.answer(weights(1, 2, changed))
    assert load(replica, shadows.answer(weights(0, 2, changed))).tolist() == [1, *[0] * 7]


def test_workers_answered_alike_share_one_code_and_one_shadow():
    shadows = make()
    for clock in (1, 2, 3):
        values = vector(*[4 * clock] * 8)
        answers = [shadows.answer(weights(worker, clock, values)).values for worker in (0, 1, 2)]
        assert answers[0] is answers[1] is answers[2]
        assert shadows.shadow(0, 0, 4) is shadows.shadow(2, 0, 4)
    assert answers[0].dtype == np.uint8


def test_worker_that_missed_an_answer_gets_a_code_of_its_own():
    shadows, early, late = make(), np.zeros(8, np.float32), np.zeros(8, np.float32)
    for clock, workers in ((1, (0, 1)), (2, (0,)), (3, (0, 1))):
        values = vector(*[8 * clock] * 8)
        for worker in workers:
            load(late if worker else early, shadows.answer(weights(worker, clock, values)))
    assert (early[0], late[0]) == (10, 9)


def test_rest_is_the_newest_weights_for_those_whose_replicas_differ():
    shadows = make()
    newest = vector(3, *[0] * 7)
    shadows.answer(weights(0, 1, vector(*[0] * 8)))
    shadows.answer(weights(0, 2, newest))  # 1 of 3 is sent
    shadows.answer(weights(1, 7, newest))
    (rest,) = shadows.rest()
    assert (rest.to, rest.clock, rest.start, rest.stop) == (0, 2, 0, 4)
    assert rest.values is newest


def test_runs_of_cells_are_kept_apart_with_the_layers_that_are_in_them():
    shadows = make(Threshold(per_layer=True, density=0.5), layers=(0, 4, 6))
    for clock in (1, 2):
        values = vector(*[clock * clock] * 4)
        codes = [shadows.answer(weights(0, clock, values, *run)).values for run in ((0, 2), (2, 4))]
    first, second = (shadows.shadow(0, *run) for run in ((0, 2), (2, 4)))
    for shadow, code in zip((first, second), codes, strict=True):
        replica = np.ones(4, np.float32)
        add(replica, code)
        assert replica.tolist() == shadow.tolist()


def test_weights_that_are_not_finite_are_refused():
    shadows = make()
    shadows.answer(weights(0, 1, vector(*[0] * 8)))
    with pytest.raises(OperatorError, match="weight 3 is not finite"):
        shadows.answer(weights(0, 2, vector(0, 0, 0, np.inf, 0, 0, 0, 0)))


def test_restored_state_knows_nobody_and_answers_whole():
    shadows = make()
    shadows.answer(weights(0, 1, vector(*[0] * 8)))
    shadows.restore(shadows.snapshot())
    answer = weights(0, 2, vector(*[1] * 8))
    assert shadows.answer(answer) is answer
    assert list(shadows.rest()) == []


def test_element_with_the_workers_codec_makes_room_for_all_that_they_push():
    node = NodeContext(index=9, members={"worker": (0, 1), "server": (9,)})
    element = Shadows(layout=EIGHT, codec=TopK(density=0.125), pushes=2)
    for shadows, sent in ((element, 4), (element.model_copy(update={"pushes": None}), 1)):
        state = shadows.create(node)
        state.answer(weights(0, 1, vector(*[0] * 8)))
        replica = load(np.zeros(8, np.float32), state.answer(weights(0, 2, vector(*range(1, 9)))))
        assert np.count_nonzero(replica) == sent


def test_element_makes_shadows_of_its_codec():
    shadows = Shadows(layout=EIGHT, codec=UNIT).create(NodeContext())
    shadows.answer(weights(0, 1, vector(*[0] * 8)))
    replica = load(np.zeros(8, np.float32), shadows.answer(weights(0, 2, vector(*[2] * 8))))
    assert replica.tolist() == [1] * 8


@pytest.mark.parametrize(
    "codec",
    [UNIT, Threshold(tau=1, most="fit"), Threshold(tau=1, clip=1), Threshold(), TopK(density=0.25)],
)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_replica_and_what_is_owed_are_the_shard_exactly_at_every_answer(codec, data):
    """Integers, so that no sum rounds, but with taus that are adapted; replicas equal shadows there, too."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    shadows, shard = make(codec), np.zeros(8, np.float32)
    replicas = np.full((3, 8), np.nan, np.float32)
    for clock, worker in enumerate(data.draw(st.lists(st.integers(0, 2), max_size=30))):
        shard = shard + rng.integers(-8, 9, 8).astype(np.float32)
        load(replicas[worker], shadows.answer(weights(worker, clock, shard)))
        shadow = shadows.shadow(worker, 0, 4)
        assert replicas[worker].tolist() == shadow.tolist()
        owed = shard.astype(np.float64) - shadow
        assert (replicas[worker] + owed).tolist() == shard.tolist()
        if codec.kind == "topk" or codec.tau == 1:
            assert np.array_equal(owed, np.round(owed))
    for rest in shadows.rest():
        load(replicas[rest.to], rest)
    known = {worker for worker in range(3) if np.isfinite(replicas[worker]).all()}
    assert all(replicas[worker].tolist() == shard.tolist() for worker in known)


@pytest.mark.parametrize("codec", [Half(), Int8(), OneBit(), Threshold(density=0.25), TopK(density=0.25)])
def test_replica_equals_its_shadow_bit_for_bit_and_follows_a_shard_that_stands_still(codec):
    rng = np.random.default_rng(1)
    shadows, replica = make(codec, layers=(0, 4)), np.empty(8, np.float32)
    load(replica, shadows.answer(weights(0, 0, rng.normal(size=8).astype(np.float32))))
    still = rng.normal(size=8).astype(np.float32)
    before = np.abs(still - replica).max()
    for clock in range(1, 60):
        load(replica, shadows.answer(weights(0, clock, still)))
        assert replica.tobytes() == shadows.shadow(0, 0, 4).tobytes()
    assert np.abs(still - replica).max() < before / 10


def test_taus_of_answers_go_on_after_a_checkpoint_and_shadows_do_not():
    codec = Threshold(density=0.25)
    shadows = make(codec)
    shadows.answer(weights(0, 1, vector(*[0] * 8)))
    shadows.answer(weights(0, 2, vector(8, 4, 2, 1, 0.5, 0.25, 0.125, 0)))
    kept = shadows.kept()
    (name,) = kept
    assert name == "0:4/taus"
    other = make(codec)
    other.restore(kept)
    assert other.kept() == kept  # though no worker has asked yet
    first = weights(0, 3, vector(*[1] * 8))
    assert other.answer(first) is first
    assert other.kept() == kept
    # Nothing has changed, so nothing is sent, and tau falls from where it was by a tenth of what was wanted.
    other.answer(weights(0, 4, first.values))
    assert other.kept()[name] == pytest.approx(kept[name] * np.exp(-0.1))


@pytest.mark.parametrize("per_layer", [True, False])
def test_taus_of_another_codec_or_sharding_are_not_gone_on_with(per_layer):
    layers, codecs = (0, 2, 6), [Threshold(density=0.25, per_layer=each) for each in (per_layer, not per_layer)]
    kept = make(codecs[0], layers)
    for start, stop in ((0, 2), (2, 4)):
        for clock in (1, 2):
            kept.answer(weights(0, clock, vector(*range(0, 4 * clock, clock)), start, stop))
    assert sorted(kept.kept()) == ["0:2/taus", "2:4/taus"]
    shadows, anew = make(codecs[1], layers), make(codecs[1], layers)
    shadows.restore(kept.kept())
    for state in (shadows, anew):
        state.answer(weights(0, 3, vector(1, 2, 3, 4), 0, 2))
        state.answer(weights(0, 4, vector(2, 4, 6, 8), 0, 2))
    assert shadows.kept().keys() == anew.kept().keys() == {"0:2/taus"}
    assert shadows.kept()["0:2/taus"].tolist() == anew.kept()["0:2/taus"].tolist()


def test_taus_that_are_given_are_not_kept():
    shadows = make(UNIT)
    shadows.answer(weights(0, 1, vector(*range(8))))
    shadows.answer(weights(0, 2, vector(*range(8))))
    assert shadows.kept() == {}


def test_samples_of_answers_say_what_codes_have_cost():
    shadows = make(UNIT)
    first = weights(0, 1, vector(*[0] * 8))
    shadows.answer(first)
    assert not list(shadows.samples(first))
    second = weights(0, 2, vector(0, 3, 0, 0, -4, 0, 0, 0))
    code = shadows.answer(second).values
    found = {sample.name: sample.value for sample in shadows.samples(second)}
    assert found == {
        "compression_ratio": 32 / code.nbytes,
        "updates_per_message": 2,
        "bits_per_update": 4 * code.nbytes,
        "tau": 1,
        "residual_norm": pytest.approx(np.sqrt(2**2 + 3**2)),
    }
