from dataclasses import replace

import numpy as np

from dataflow.message import nbytes
from dataflow.node_context import NodeContext
from dataflow.operators_api import Sample
from dataflow.testing.operator_harness import Harness
from operators.accumulate import Accumulate
from operators.coded_window import CodedWindow
from operators.compression import Half, Threshold, TopK, add
from operators.kept import Kept, KeptState
from operators.layout import MAX_CELL, Layout, Sharding
from operators.messages import Accumulated, Fragment, Gradient, Offer, Weights, Word
from operators.owed import Owed
from operators.passes import Passes
from operators.receive import ReceiveFragments, ReceiveWeights
from operators.roll import Roll, RollState
from operators.schedule import Cosine, Schedule, Step
from operators.send import SendChanges, SendCoded, SendGradients, SendIntervals, SendWeights
from operators.shadows import Shadows
from operators.window import Window

LAYOUT = Layout(bounds=(0, 1, 3, 4))
NODE = NodeContext(index=1, members={"worker": (0, 1, 2)})
EACH = Passes(images=3, batch=1)  # one gradient of each of three workers is an epoch


def gradient(number, *values):
    return Gradient(number, np.array(values, np.float32), 1)


def brief(effects):
    return [
        (e.to, e.message.start, e.message.stop, e.message.low, e.message.high, e.message.values.tolist())
        for e in effects
    ]


def test_accumulate_gradient_goes_into_the_window_and_is_announced():
    accumulate = Harness(Accumulate(), node=NODE, states={"window": Window(layout=LAYOUT, receivers="worker")})
    assert accumulate.send(gradient(1, 1, 2, 3, 4))[0] == Sample("window_nbytes", 16.0)
    assert accumulate.emitted("accumulated") == [Accumulated(1)]
    (interval,) = accumulate.states["window"].take(0, 1, 2)
    assert interval.values.tolist() == [2, 3]


def test_accumulate_dropped_gradients_are_reported():
    window = Window(layout=LAYOUT, receivers="worker", newest_only=True)
    accumulate = Harness(Accumulate(), node=NODE, states={"window": window})
    accumulate.send(gradient(1, 0, 0, 0, 0))
    assert Sample("dropped_gradients", 1.0) in accumulate.send(gradient(2, 0, 0, 0, 0))


def sender(**fields):
    states = {"window": Window(layout=LAYOUT, receivers="worker", **fields)}
    return Harness(SendIntervals(layout=LAYOUT), node=NODE, states=states)


def test_send_intervals_offer_becomes_the_sum_of_what_was_not_sent():
    send = sender()
    window = send.states["window"]
    window.span = 3
    window.append(1, np.array([1, 2, 3, 4], np.float32), images=8)
    assert brief(send.send(Offer(to=0, start=0, stop=2))) == [(0, 0, 2, 0, 1, [1, 2, 3])]
    window.append(2, np.array([10, 20, 30, 40], np.float32), images=5)
    assert brief(send.send(Offer(to=0, start=0, stop=3))) == [
        (0, 0, 2, 1, 2, [10, 20, 30]),
        (0, 2, 3, 0, 2, [44]),
    ]
    assert [(message.origin, message.span, message.skips) for message in send.emitted("fragments")] == [
        (1, 3, False)
    ] * 3
    assert [message.images for message in send.emitted("fragments")] == [8, 5, 13]


def test_send_intervals_offer_of_what_was_sent_sends_nothing():
    send = sender()
    send.states["window"].append(1, np.zeros(4, np.float32))
    send.send(Offer(0, 0, 3))
    assert send.send(Offer(0, 0, 3)) == []


def test_send_intervals_late_offer_stands_for_everything_since():
    send = sender()
    for number in (1, 2, 3):
        send.states["window"].append(number, np.full(4, number, np.float32))
    assert brief(send.send(Offer(2, 2, 3))) == [(2, 2, 3, 0, 3, [6])]


def test_send_intervals_offer_that_waited_goes_with_the_span_that_holds_when_it_is_sent():
    send = sender()
    window = send.states["window"]
    window.append(1, np.zeros(4, np.float32))
    window.span = 8
    send.send(Offer(0, 0, 2))
    window.span = 128
    send.send(Offer(0, 2, 3))  # made before the span grew; its receiver must not go by the old one until the next
    assert [message.span for message in send.emitted("fragments")] == [8, 128]


def test_send_intervals_without_accumulation_says_that_gradients_are_missing():
    send = sender(newest_only=True)
    send.states["window"].append(1, np.zeros(4, np.float32))
    send.send(Offer(0, 0, 3))
    assert send.emitted("fragments")[0].skips


def test_send_intervals_receivers_with_the_same_interval_share_one_array():
    send = sender()
    for number in (1, 2):
        send.states["window"].append(number, np.ones(4, np.float32))
    send.send(Offer(0, 0, 3))
    send.send(Offer(2, 0, 3))
    first, second = send.emitted("fragments")
    assert first.values is second.values


def test_send_intervals_large_offer_is_cut_into_frames():
    layout = Layout(bounds=(0, MAX_CELL, 2 * MAX_CELL, 2 * MAX_CELL + 5))
    states = {"window": Window(layout=layout, receivers="worker")}
    send = Harness(SendIntervals(layout=layout), node=NODE, states=states)
    states_window = send.states["window"]
    states_window.append(1, np.zeros(layout.n_weights, np.float32))
    send.send(Offer(0, 0, 3))
    fragments = send.emitted("fragments")
    assert [(f.start, f.stop) for f in fragments] == [(0, 1), (1, 2), (2, 3)]
    assert max(nbytes(f) for f in fragments) == 4 * MAX_CELL + 128 <= 1 << 20


def test_send_gradients_sends_each_gradient_whole_without_copying():
    send = Harness(
        SendGradients(layout=LAYOUT), node=NODE, states={"window": Kept(receivers="worker", own=True), "roll": Roll()}
    )
    message = gradient(3, 1, 2, 3, 4)
    effects = send.send(message)
    effect = effects[0]
    assert brief(effects) == [(to, 0, 3, 2, 3, [1, 2, 3, 4]) for to in NODE.members["worker"]]
    assert (effect.message.origin, effect.message.span, effect.message.skips) == (1, 0, False)
    assert np.shares_memory(effect.message.values, message.values)


def coded(codec, *, rated=False, span=0):
    states = {"residual": Owed(codec=codec, n_weights=4), "window": KeptState([0]), "roll": Roll()}
    return Harness(SendCoded(layout=LAYOUT, rated=rated, span=span), node=NODE, states=states)


def samples(effects):
    return {effect.name: effect.value for effect in effects if isinstance(effect, Sample)}


def test_send_coded_sends_the_code_of_what_is_owed_times_the_rate_and_keeps_the_rest():
    send = coded(Threshold(tau=1), rated=True, span=7)
    send.send(replace(gradient(1, 3, 0, 0, -1.5), rate=0.5))
    (fragment,) = send.emitted("fragments")
    assert (fragment.origin, fragment.low, fragment.high, fragment.span, fragment.skips) == (1, 0, 1, 7, False)
    target = np.zeros(4, np.float32)
    add(target, fragment.values)
    assert target.tolist() == [0.5, 0, 0, -0.5]
    assert send.states["residual"].values.tolist() == [2, 0, 0, -0.5]


def test_send_coded_tells_what_codes_have_cost_since_the_start():
    send = coded(Threshold(tau=1, packing="words"))
    told = samples(send.send(gradient(1, 3, 0, 0, -1.5)))
    # Head 2, number of updates 1, quantum 4, two words of 4: 15 bytes for 16 of float32. The norm is that of (2, -0.5).
    assert told == {
        "compression_ratio": 16 / 15,
        "updates_per_message": 2.0,
        "bits_per_update": 60.0,
        "tau": 1.0,
        "residual_norm": np.sqrt(np.float32(4.25)),
    }
    told = samples(send.send(gradient(2, 0, 0, 0, 0)))  # weight 0 only: 4 bytes less
    assert told == {
        "compression_ratio": 32 / 26,
        "updates_per_message": 1.5,
        "bits_per_update": 8 * 26 / 3,
        "tau": 1.0,
    }


def test_send_coded_tells_the_norm_of_what_is_owed_once_in_64_messages():
    send = coded(TopK(density=0.25))
    norms = [samples(send.send(gradient(number, 1, 0, 0, 0))).get("residual_norm") for number in range(1, 130)]
    assert [number for number, norm in enumerate(norms, 1) if norm is not None] == [1, 65, 129]


def test_send_intervals_of_a_coded_window_tells_what_each_receivers_codes_have_cost():
    states = {"window": CodedWindow(layout=LAYOUT, codec=Half(), receivers="worker")}
    send = Harness(SendIntervals(layout=LAYOUT), node=NODE, states=states)
    send.states["window"].append(1, np.ones(4, np.float32))
    send.states["window"].close()
    # Head 2, rate 4, and 2 for each of 3 weights: 12 bytes for 12. Then 1 weight: 8 bytes for 4.
    told = samples(send.send(Offer(to=0, start=0, stop=2)))
    assert (told["compression_ratio"], told["updates_per_message"], told["bits_per_update"]) == (1.0, 3.0, 32.0)
    told = samples(send.send(Offer(to=2, start=2, stop=3)))
    assert (told["compression_ratio"], told["updates_per_message"], told["bits_per_update"]) == (0.8, 2.0, 40.0)
    assert "tau" not in told


LARGE = Layout.of(4 * MAX_CELL, cells=16)


def large(codec, *values, alike=False):
    """What is sent of a gradient that has these values, and else zeros, for four frames of float32."""
    states = {"residual": Owed(codec=codec, n_weights=LARGE.n_weights), "window": KeptState([0]), "roll": Roll()}
    send = Harness(SendCoded(layout=LARGE, alike=alike), node=NODE, states=states)
    send.send(Gradient(1, np.resize(np.array(values, np.float32), LARGE.n_weights), 1))
    return [(f.start, f.stop) for f in send.emitted("fragments")]


def test_send_coded_a_large_model_of_few_updates_is_one_message():
    assert large(Threshold(tau=1), *[2] + 99 * [0]) == [(0, 16)]
    # 16 cells of 60,000 weights: two bytes of each, and a head too much for eight of them
    assert large(Threshold(tau=1, packing="words"), 2, 0) == [(0, 7), (7, 14), (14, 16)]
    assert large(Half(), 1) == [(0, 7), (7, 14), (14, 16)]


def test_send_coded_where_all_cut_alike_does_so_whatever_is_sent():
    for values in ([2], [0], [2, 0]):
        assert large(Threshold(tau=1), *values, alike=True) == [(0, 16)]  # a quarter of a byte at most
        assert large(Threshold(tau=1, packing="words"), *values, alike=True) == [(0, 4), (4, 8), (8, 12), (12, 16)]


def test_send_coded_where_all_cut_alike_fits_frames_where_the_largest_are_in_one():
    for density, expected in ((0.1, [(0, 16)]), (0.5, [(cell, min(16, cell + 3)) for cell in range(0, 16, 3)])):
        for values in ([1], [1, 0, 0]):
            assert large(TopK(density=density), *values, alike=True) == expected  # up to 33 bits a weight


def test_send_intervals_of_a_coded_window_sends_a_large_model_of_few_updates_as_one_message():
    for runs, expected in ((None, [(0, 16)]), ("worker", [(0, 4), (4, 8)])):
        sharding = None if runs is None else Sharding(layout=LARGE)
        window = CodedWindow(layout=LARGE, codec=Threshold(tau=1), receivers="worker", sharding=sharding)
        node = NodeContext(index=1, members={"worker": (0, 1)})
        send = Harness(SendIntervals(layout=LARGE), node=node, states={"window": window})
        state = send.states["window"]
        for number in (1, 2):
            state.append(number, np.resize(np.array([2] + 99 * [0], np.float32), LARGE.n_weights))
            state.close()
        send.send(Offer(0, 0, 16 if runs is None else 8))
        assert [(f.start, f.stop) for f in send.emitted("fragments")] == expected


def test_send_and_receive_weights_pass_them_on_to_their_worker():
    weights = Weights(to=2, origin=1, start=0, stop=1, clock=4, values=np.zeros(1, np.float32))
    (effect,) = Harness(SendWeights(), node=NODE).send(weights)
    assert effect.message is weights
    assert effect.to == 2
    assert Harness(ReceiveWeights(), node=NODE).send(weights)[0].message is weights


def test_send_changes_of_gradients_in_units_of_the_rate_and_at_last_what_is_owed():
    states = {"shadows": Shadows(layout=LAYOUT, codec=Threshold(tau=2))}
    schedule = Schedule(lr=1, decay=Step(milestones=(1,), gamma=0.25), passes=EACH)  # from number 2 on
    answer = Harness(SendChanges(schedule=schedule), node=NODE, states=states)

    def send(clock, *values):
        effect, *_ = answer.send(Weights(2, 1, 0, 3, clock, np.array(values, np.float32)))
        return effect

    assert send(1, 8, 8, 8, 8).to == 2
    replica = np.full(4, 8, np.float32)
    add(replica, send(2, 8, 8.5, 9, 6).message.values)
    assert replica.tolist() == [
        8,
        8,
        8.5,
        7.5,
    ]  # 0, 2, 4 and -8 were owed; what is sent is a quarter of plus or minus 2
    (last,) = answer.end()
    assert (last.to, last.message.clock, last.message.values.tolist()) == (2, 2, [8, 8.5, 9, 6])


def test_send_changes_of_means_counts_a_workers_share_of_the_rate():
    states = {"shadows": Shadows(layout=LAYOUT, codec=Threshold(tau=2))}
    answer = Harness(SendChanges(schedule=Schedule(lr=1.5), mean=True), node=NODE, states=states)
    replica = np.zeros(4, np.float32)
    answer.send(Weights(2, 1, 0, 3, 1, np.zeros(4, np.float32)))
    effect, *_ = answer.send(Weights(2, 1, 0, 3, 2, np.array([1, 1.25, -9, 0], np.float32)))  # in gradients: twice that
    add(replica, effect.message.values)
    assert replica.tolist() == [0, 1, -1, 0]


def test_send_changes_once_the_rate_is_zero_goes_on_with_the_last_one():
    states = {"shadows": Shadows(layout=LAYOUT, codec=Threshold(tau=2))}
    answer = Harness(SendChanges(schedule=Schedule(lr=0.5, decay=Cosine(end=2), passes=EACH)), node=NODE, states=states)
    replica = np.zeros(4, np.float32)
    answer.send(Weights(2, 1, 0, 3, 1, np.zeros(4, np.float32)))
    for clock in (2, 3, 4):  # 0.25, and 0 after two gradients of each
        effect, *_ = answer.send(Weights(2, 1, 0, 3, clock, np.full(4, 4, np.float32)))
        add(replica, effect.message.values)
    assert replica.tolist() == [1.5] * 4


def test_receive_fragments_passes_them_on():
    fragment = Fragment(0, 0, 1, 0, 1, 0, skips=False, values=np.zeros(1, np.float32))
    assert Harness(ReceiveFragments(), node=NODE).send(fragment)[0].message is fragment


def test_send_gradients_keeps_what_comes_for_a_peer_that_joins_and_sends_what_its_model_lacks():
    window = KeptState([0])
    send = Harness(SendGradients(layout=LAYOUT), node=NODE, states={"window": window, "roll": Roll()})
    send.send(gradient(1, 1, 1, 1, 1))
    assert window.join(2, 7) == 1
    for number in (2, 3):
        assert {effect.to for effect in send.send(gradient(number, number, 0, 0, 0))} == {0}
    # Of another welcome than the newest: of somebody who has died.
    assert send.send(Word("begin", 2, 1, 6, applied=np.array([2, 2, 2]))) == []
    assert brief(send.send(Word("begin", 2, 1, 7, applied=np.array([2, 2, 2])))) == [(2, 0, 3, 2, 3, [3, 0, 0, 0])]
    assert {effect.to for effect in send.send(gradient(4, 4, 0, 0, 0))} == {0, 2}
    send.left(2)
    assert {effect.to for effect in send.send(gradient(5, 4, 0, 0, 0))} == {0}


def test_send_gradients_sends_nothing_to_the_successor_of_a_peer_whose_word_to_begin_comes_after_its_death():
    window, roll = KeptState([0]), RollState(0, (0, 1, 2), 0)
    send = Harness(SendGradients(layout=LAYOUT), node=NODE, states={"window": window, "roll": roll})
    window.join(2, 7)
    send.left(2)
    assert send.send(Word("begin", 2, 1, 7, applied=np.array([0, 0, 0]))) == []
    assert {effect.to for effect in send.send(gradient(1, 1, 0, 0, 0))} == {0}


def test_send_gradients_sends_to_a_peer_that_was_welcomed_before_it_heard_that_the_one_before_has_died():
    window, roll = KeptState([0, 2]), RollState(0, (0, 1, 2), 0)
    send = Harness(SendGradients(layout=LAYOUT), node=NODE, states={"window": window, "roll": roll})
    roll.leave(2)
    roll.join(2)
    window.leave(2)
    _, turn = roll.welcome()
    window.join(2, turn)
    send.left(2)
    send.joined(2)
    send.send(Word("begin", 2, 1, turn, applied=np.array([0, 0, 0])))
    assert {effect.to for effect in send.send(gradient(1, 1, 0, 0, 0))} == {0, 2}
    send.left(2)  # now that one
    assert {effect.to for effect in send.send(gradient(2, 1, 0, 0, 0))} == {0}


def test_send_gradients_keeps_no_more_than_the_cap_for_a_peer_that_joins():
    window = KeptState([0], cap_nbytes=32)  # two gradients of four weights
    send = Harness(SendGradients(layout=LAYOUT), node=NODE, states={"window": window, "roll": Roll()})
    assert window.join(2, 7) == 0
    for number in (1, 2):
        send.send(gradient(number, 1, 0, 0, 0))
    send.send(gradient(3, 1, 0, 0, 0))
    assert not window.claim(2, 7)
    assert send.send(Word("begin", 2, 1, 7, applied=np.array([0, 0, 0]))) == []
    send.left(2)
    assert window.join(2, 8) == 3  # it comes back, and what is kept is counted anew
    for number in (4, 5):
        send.send(gradient(number, 1, 0, 0, 0))
    assert window.claim(2, 8)
    send.send(gradient(6, 1, 0, 0, 0))  # one more than the cap, but it is about to begin
    sent = brief(send.send(Word("begin", 2, 1, 8, applied=np.array([4, 4, 4]))))
    assert [(low, high) for *_, low, high, _ in sent] == [(4, 5), (5, 6)]
