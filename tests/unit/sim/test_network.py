"""The modelled network against closed forms, for messages of one quantum and more."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net_rig import LATENCY_S, QUANTUM_S, RATE, Arrival, Rig, last_s

from dataflow.sim.network import QUANTUM

EXACT = 1e-9
"""Relative tolerance of what the model gets exactly: sums of floating-point times."""

SIZES = [1, QUANTUM - 1, QUANTUM, 16 * QUANTUM, 1_000_000, 238_360]


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize(("up", "down"), [(1.0, 1.0), (1.0, 0.1), (0.1, 1.0), (0.3, 1.0), (1.0, 0.01)])
@pytest.mark.parametrize("latency_s", [0.0, LATENCY_S, 0.02])
def test_one_message_takes_the_latency_and_its_size_over_the_slower_rate(
    nbytes: int, up: float, down: float, latency_s: float
) -> None:
    want = latency_s + nbytes / (RATE * min(up, down))
    assert last_s([RATE * up, RATE * down], [(0, 1, nbytes)], latency_s) == pytest.approx(want, rel=EXACT)


@pytest.mark.parametrize("latency_s", [LATENCY_S, 0.001, 0.05])
@pytest.mark.parametrize("nbytes", [100, 10_000, QUANTUM, 100_000])
@pytest.mark.parametrize(("up", "down"), [(1.0, 1.0), (1.0, 0.1), (0.1, 1.0)])
def test_messages_of_a_flow_each_arrive_after_all_bytes_up_to_their_last(
    nbytes: int, latency_s: float, up: float, down: float
) -> None:
    rig = Rig([RATE * up, RATE * down], latency_s)
    for number in range(200):
        rig.network.send(0, 1, number, nbytes)
    times = [arrival.at_s for arrival in rig.run()]
    # A faster receiver takes a piece in faster than it leaves: it has the whole of it when the last byte comes.
    rate = RATE * min(up, down)
    want = [latency_s + (number + 1) * nbytes / rate for number in range(200)]
    assert times == pytest.approx(want, rel=EXACT, abs=QUANTUM / (RATE * up))
    assert times[-1] == pytest.approx(want[-1], rel=EXACT)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("n", [2, 3, 8, 31])
def test_flows_into_one_receiver_take_their_sum_over_its_rate(n: int, nbytes: int) -> None:
    into = [(1 + source, 0, nbytes) for source in range(n)]
    assert last_s([RATE] * (n + 1), into) == pytest.approx(LATENCY_S + n * nbytes / RATE, rel=EXACT)


@pytest.mark.parametrize("n", [2, 3, 8, 31])
def test_flows_from_one_sender_take_their_sum_over_its_rate(n: int) -> None:
    out = [(0, 1 + target, 238_360) for target in range(n)]
    assert last_s([RATE] * (n + 1), out) == pytest.approx(LATENCY_S + n * 238_360 / RATE, rel=EXACT)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("n", [2, 3, 8, 32])
def test_all_to_all_at_full_bisection_takes_one_links_share(n: int, nbytes: int) -> None:
    everybody = [(source, target, nbytes) for source, target in itertools.permutations(range(n), 2)]
    from_the_next_on = [(source, (source + more) % n, nbytes) for more in range(1, n) for source in range(n)]
    for sends in (everybody, everybody[::-1], from_the_next_on):
        assert last_s([RATE] * n, sends) == pytest.approx(LATENCY_S + (n - 1) * nbytes / RATE, rel=EXACT)


@pytest.mark.parametrize("late", [0.01, 0.1])
@pytest.mark.parametrize("n", [4, 8, 32])
def test_all_to_all_of_nodes_that_begin_unevenly_takes_two_quanta_more_at_most(n: int, late: float) -> None:
    """Nothing has all arrived before the last to begin has sent it; where flows meet, one waits for a quantum."""
    share_s = (n - 1) * 16 * QUANTUM_S
    begin = np.random.default_rng(n).uniform(0, late * share_s, n)
    rig = Rig([RATE] * n)
    for source, target in itertools.permutations(range(n), 2):
        rig.send(float(begin[source]), source, target, None, 16 * QUANTUM)
    end = max(arrival.at_s for arrival in rig.run())
    assert begin.max() + share_s + LATENCY_S - 1e-9 <= end <= begin.max() + share_s + LATENCY_S + 2 * QUANTUM_S


@pytest.mark.parametrize(("workers", "servers"), [(6, 2), (7, 1), (32, 4)])
def test_pushes_to_servers_take_the_workers_bytes_over_the_servers_rates(workers: int, servers: int) -> None:
    m = 238_360
    push = [(worker, workers + server, m // servers) for worker in range(workers) for server in range(servers)]
    want = LATENCY_S + max(workers * (m // servers), m // servers * servers) / RATE
    assert last_s([RATE] * (workers + servers), push) == pytest.approx(want, rel=EXACT)


@pytest.mark.parametrize("m", [238_360 * 4, 64 * QUANTUM])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_ring_all_reduce_takes_two_n_minus_one_chunks(n: int, m: int) -> None:
    """Each node sends on the chunk that it has just received: reduce-scatter, then all-gather."""
    steps, chunk = 2 * (n - 1), m // n

    def send_on(arrival: Arrival) -> None:
        if arrival.item < steps:
            rig.network.send(arrival.target, (arrival.target + 1) % n, arrival.item + 1, chunk)

    rig = Rig([RATE] * n, react=send_on)
    for node in range(n):
        rig.network.send(node, (node + 1) % n, 1, chunk)
    arrivals = rig.run()
    assert len(arrivals) == n * steps
    assert arrivals[-1].at_s == pytest.approx(steps * (chunk / RATE + LATENCY_S), rel=EXACT)
    assert arrivals[-1].at_s == pytest.approx(2 * m * (n - 1) / (n * RATE) + steps * LATENCY_S, rel=1e-5)


@pytest.mark.parametrize("latency_s", [LATENCY_S, 0.01])
def test_flow_to_a_slow_receiver_leaves_the_rest_of_the_link_to_others(latency_s: float) -> None:
    """Max-min fair: receiver 2 takes a tenth of the sender's link, receiver 1 gets all the rest."""
    rig = Rig([RATE, RATE, RATE / 10], latency_s)
    rig.network.send(0, 2, "slow", 40 * QUANTUM)
    rig.network.send(0, 1, "fast", 360 * QUANTUM)
    times = {arrival.item: arrival.at_s for arrival in rig.run()}
    assert times["fast"] == pytest.approx(latency_s + 400 * QUANTUM_S, abs=12 * QUANTUM_S)
    assert times["slow"] == pytest.approx(latency_s + 400 * QUANTUM_S, abs=12 * QUANTUM_S)


def test_flows_that_share_a_receiver_leave_their_senders_links_to_others() -> None:
    """Nodes 0 to 3 send to node 4, a quarter of its link each; node 0 also to node 5, three quarters of its own."""
    rig = Rig([RATE] * 6)
    for source in range(4):
        rig.network.send(source, 4, f"shared {source}", 50 * QUANTUM)
    rig.network.send(0, 5, "alone", 150 * QUANTUM)
    for arrival in rig.run():
        assert arrival.at_s == pytest.approx(LATENCY_S + 200 * QUANTUM_S, abs=8 * QUANTUM_S)


@pytest.mark.parametrize("apart_s", [0.002, 0.005])
def test_answers_that_a_server_sends_soon_after_each_other_end_apart_where_shares_are_uneven(apart_s: float) -> None:
    """In a lab, at 100 Mbit/s, TCP takes 44, 50 and 59 ms with 2 ms in between, and 33, 50 and 59 with 5."""

    def ends_s(uneven: int | None) -> list[float]:
        rig = Rig([11.95e6] * 4, uneven=uneven)
        for number in range(3):
            rig.send(number * apart_s, 0, number + 1, number, 238_000)
        return [arrival.at_s for arrival in rig.run()]

    means = np.mean([ends_s(seed) for seed in range(60)], axis=0)
    assert means == pytest.approx([0.042, 0.053, 0.060], abs=0.0015)
    assert ends_s(None)[0] > 0.047


@pytest.mark.parametrize("seed", range(5))
def test_uneven_shares_leave_nothing_of_a_link_that_one_sender_or_one_receiver_has(seed: int) -> None:
    """As with even ones: one flow, n into one, one to n."""
    for ends in ([(0, 1)], [(1, 0), (2, 0), (3, 0)], [(0, 1), (0, 2), (0, 3)]):
        rig = Rig([RATE] * 4, uneven=seed)
        for number, (source, target) in enumerate(ends):
            rig.network.send(source, target, number, 238_000)
        last = max(arrival.at_s for arrival in rig.run())
        assert last == pytest.approx(LATENCY_S + len(ends) * 238_000 / RATE, rel=EXACT)


def shared(seed: int) -> list[int]:
    """Quanta that three receivers have got of one sender after 240, which has sent 600 at once."""
    rig = Rig([RATE] * 4, uneven=seed)
    for receiver in (1, 2, 3):
        for _ in range(200):
            rig.network.send(0, receiver, receiver, QUANTUM)
    arrivals = rig.run()
    assert arrivals[-1].at_s == pytest.approx(LATENCY_S + 600 * QUANTUM_S, rel=EXACT)
    got = [arrival.target for arrival in arrivals[:240]]
    return [got.count(receiver) for receiver in (1, 2, 3)]


def test_flows_that_share_links_unevenly_keep_their_shares_and_leave_nothing_of_the_link() -> None:
    found = [shared(seed) for seed in range(40)]
    assert found == [shared(seed) for seed in range(40)]
    possible = {tuple(240 * turn // sum(turns) for turn in turns) for turns in itertools.product((1, 2, 3), repeat=3)}
    near = [min(max(abs(a - b) for a, b in zip(got, each, strict=True)) for each in possible) for got in found]
    assert max(near) <= 6
    assert len({tuple(got) for got in found}) > 10


def test_flow_that_begins_again_draws_its_share_anew() -> None:
    """After each rest the two flows have other shares, so that over many neither has more than the other."""
    rig, ends = Rig([RATE] * 3, uneven=1), [0, 0]
    for number in range(200):
        for receiver in (1, 2):
            rig.send(float(number), 0, receiver, number, 12 * QUANTUM)
    for first in rig.run()[::2]:
        ends[first.target - 1] += 1
    assert sum(ends) == 200
    assert min(ends) > 45


@pytest.mark.parametrize("small", [1000, 40_000, QUANTUM])
def test_flow_of_small_messages_gets_the_same_share_as_one_of_large_ones(small: int) -> None:
    """Both of as many bytes, from one sender and again into one receiver: they end within a turn of each other."""
    for ends in [((0, 1), (0, 2)), ((1, 0), (2, 0))]:
        rig = Rig([RATE] * 3)
        total = 60 * QUANTUM // small * small
        for _ in range(total // small):
            rig.network.send(*ends[0], "small", small)
        rig.network.send(*ends[1], "large", total)
        ended = {arrival.item: arrival.at_s for arrival in rig.run()}
        assert max(ended.values()) == pytest.approx(LATENCY_S + 2 * total / RATE, rel=EXACT)
        assert abs(ended["small"] - ended["large"]) <= 6 * QUANTUM_S


def test_message_to_the_node_itself_takes_no_time_and_no_link() -> None:
    rig = Rig([RATE] * 2)
    rig.network.send(0, 1, "away", 100 * QUANTUM)
    rig.network.send(0, 0, "home", 100 * QUANTUM)
    rig.network.signal(0, 0, "credit")
    assert [(arrival.item, arrival.at_s) for arrival in rig.run()] == [
        ("home", 0.0),
        ("credit", 0.0),
        ("away", pytest.approx(LATENCY_S + 100 * QUANTUM_S)),
    ]


def test_signal_takes_the_latency_and_passes_what_waits_for_the_link() -> None:
    rig = Rig([RATE] * 2)
    rig.network.send(0, 1, "data", 100 * QUANTUM)
    rig.network.signal(0, 1, "signal")
    first, _ = rig.run()
    assert (first.item, first.at_s) == ("signal", LATENCY_S)


def test_cut_holds_back_all_but_what_is_between_the_links_until_mended() -> None:
    """At 2.5 quanta, three have begun to leave; the other seven take seven quanta once the link is mended."""
    rig = Rig([RATE] * 2)
    rig.network.send(0, 1, "data", 10 * QUANTUM)
    rig.call(2.5 * QUANTUM_S, rig.network.cut, 0, 1)
    rig.call(1.0, rig.network.mend, 0, 1)
    rig.signal(0.5, 0, 1, "signal")
    rig.signal(0.6, 1, 0, "answer")
    times = {arrival.item: arrival.at_s for arrival in rig.run()}
    assert times == {
        "data": pytest.approx(1.0 + 7 * QUANTUM_S + LATENCY_S),
        "signal": pytest.approx(1.0 + LATENCY_S),
        "answer": pytest.approx(1.0 + LATENCY_S),
    }


def test_cut_leaves_other_links_of_both_nodes_alone() -> None:
    rig = Rig([RATE] * 3)
    rig.network.cut(0, 1)
    for source, target in itertools.permutations(range(3), 2):
        rig.network.send(source, target, (source, target), QUANTUM)
    assert {arrival.item for arrival in rig.run()} == {(0, 2), (2, 0), (1, 2), (2, 1)}
    assert rig.queued_nbytes(0, 1) == rig.queued_nbytes(1, 0) == QUANTUM


def test_cut_twice_is_mended_by_the_second_mend() -> None:
    rig = Rig([RATE] * 2)
    rig.send(0.0, 0, 1, "data", 1000)
    rig.call(0.0, rig.network.cut, 0, 1)
    rig.call(0.0, rig.network.cut, 1, 0)
    rig.call(1.0, rig.network.mend, 0, 1)
    rig.call(2.0, rig.network.mend, 0, 1)
    (arrival,) = rig.run()
    assert arrival.at_s == pytest.approx(2.0 + LATENCY_S + 1000 / RATE)


def test_drop_delivers_nothing_more_from_or_to_the_node_and_all_to_others() -> None:
    rig = Rig([RATE] * 3)
    for source, target in itertools.permutations(range(3), 2):
        rig.network.send(source, target, "early", 1000)
        rig.send(0.5, source, target, "on its way", 1000)
        rig.send(1.5, source, target, "late", 1000)
    rig.call(0.5 + LATENCY_S, rig.network.drop, 1)
    rig.signal(1.5, 0, 1, "signal")
    rig.run()
    for source, target in itertools.permutations(range(3), 2):
        whole = ["early", "on its way", "late"]
        assert rig.items(source, target) == (whole[:1] if 1 in (source, target) else whole)
    assert rig.queued_nbytes(0, 1) == 0


def test_messages_to_a_node_that_is_gone_leave_the_link_of_their_sender_to_others() -> None:
    """What had begun to leave when node 1 went, one quantum, delays what is sent to node 2; the rest does not."""
    rig = Rig([RATE] * 3)
    rig.network.send(0, 1, "early", 10 * QUANTUM)
    rig.call(0.5 * QUANTUM_S, rig.network.drop, 1)
    rig.send(0.6 * QUANTUM_S, 0, 1, "late", 10 * QUANTUM)
    rig.send(0.6 * QUANTUM_S, 0, 2, "alive", 4 * QUANTUM)
    rig.send(0.6 * QUANTUM_S, 1, 2, "from the dead", 10 * QUANTUM)
    rig.signal(0.6 * QUANTUM_S, 1, 1, "signal")
    (arrival,) = rig.run()
    assert arrival.item == "alive"
    assert arrival.at_s == pytest.approx(5 * QUANTUM_S + LATENCY_S, rel=EXACT)
    assert not rig.flows


def test_flows_with_nothing_to_carry_are_forgotten_and_begin_again_where_they_were() -> None:
    """Of a message that is small enough to owe nothing of a turn, of an empty one, and of a cut that is mended."""
    rig = Rig([RATE] * 20)
    pairs = list(itertools.permutations(range(20), 2))
    for round_s in (0.0, 1.0):
        for source, target in pairs:
            rig.send(round_s, source, target, "full", 1000)
            rig.send(round_s, source, target, "empty", 0)
            rig.signal(round_s, target, source, "credit")
    rig.call(0.3, rig.network.cut, 0, 1)
    rig.signal(0.4, 0, 1, "waits")
    rig.call(0.5, rig.network.mend, 0, 1)
    rig.clock.at(0.9, lambda _: kept.append(rig.flows))
    kept: list[int] = []
    rig.run()
    assert kept == [0]
    assert not rig.flows
    assert all(rig.items(*pair).count("full") == rig.items(*pair).count("empty") == 2 for pair in pairs)
    first, last = LATENCY_S, LATENCY_S + 19 * 1000 / RATE
    messages = [arrival.at_s % 1.0 for arrival in rig.arrivals if arrival.item == "full"]
    assert first < min(messages) <= max(messages) <= last * (1 + EXACT)


def test_flow_of_an_empty_message_is_kept_while_it_is_between_the_links() -> None:
    rig = Rig([RATE] * 2, 0.01)
    rig.network.send(0, 1, "empty", 0)
    rig.send(0.005, 0, 1, "next", 1000)
    assert [arrival.item for arrival in rig.run()] == ["empty", "next"]
    assert not rig.flows


def test_receiver_that_puts_off_two_messages_to_one_moment_gets_them_in_order() -> None:
    """The second arrives at the very moment to which the first was put off."""
    seen: list[tuple[Any, float]] = []

    def see(item: Any) -> None:
        seen.append((item, rig.clock.now()))

    def put_off(arrival: Arrival) -> None:
        if rig.clock.now() < 2.0:
            rig.clock.at(2.0, see, arrival.item)
        else:
            see(arrival.item)

    rig = Rig([1e6, 1000.0], 0.0, put_off)
    rig.network.send(0, 1, "first", 1000)
    rig.network.send(0, 1, "second", 1000)
    rig.run()
    assert seen == [("first", 2.0), ("second", 2.0)]


sends = st.lists(
    st.tuples(
        st.floats(0, 0.05),
        st.integers(0, 4),
        st.integers(0, 4),
        st.one_of(st.integers(0, 3000), st.integers(0, 5 * QUANTUM)),
    ).filter(lambda each: each[1] != each[2]),
    max_size=40,
)
cuts = st.lists(
    st.tuples(st.floats(0, 0.05), st.floats(0, 0.05), st.integers(0, 4), st.integers(0, 4)).filter(
        lambda each: each[2] != each[3]
    ),
    max_size=6,
)
rates_of_five = st.lists(st.sampled_from([RATE, RATE / 3, RATE / 50]), min_size=5, max_size=5)


@settings(max_examples=100, deadline=None)
@given(sends=sends, cuts=cuts, rates=rates_of_five, latency_s=st.sampled_from([0.0, LATENCY_S, 0.02]))
def test_everything_sent_arrives_once_in_the_order_of_its_flow_whatever_is_cut(
    sends: list[tuple[float, int, int, int]],
    cuts: list[tuple[float, float, int, int]],
    rates: list[float],
    latency_s: float,
) -> None:
    rig = Rig(rates, latency_s)
    for number, (at_s, source, target, nbytes) in enumerate(sorted(sends)):
        rig.send(at_s, source, target, number, nbytes)
        rig.signal(at_s, source, target, f"signal {number}")
    for at_s, for_s, one, other in cuts:
        rig.call(at_s, rig.network.cut, one, other)
        rig.call(at_s + for_s, rig.network.mend, one, other)
    rig.run()
    for source, target in itertools.permutations(range(5), 2):
        flow = [number for number, each in enumerate(sorted(sends)) if each[1:3] == (source, target)]
        items = rig.items(source, target)
        assert [item for item in items if isinstance(item, int)] == flow
        assert sorted(item for item in items if isinstance(item, str)) == sorted(f"signal {number}" for number in flow)
        assert rig.queued_nbytes(source, target) == 0


def assert_within(rate: float, pieces: list[tuple[float, int]]) -> None:
    """Pieces of at most a quantum pass a link one after the other: (time of the last byte, bytes), in order.

    Empty ones pass at the same instant as the one before, and may be seen first at another receiver. One byte is
    excused: even the fastest receiver is busy with other senders for a moment.
    """
    pieces = [piece for piece in pieces if piece[1]]
    for first, last in itertools.combinations(range(len(pieces)), 2):
        nbytes = sum(size for _, size in pieces[first + 1 : last + 1])
        assert nbytes <= rate * (pieces[last][0] - pieces[first][0]) * (1 + EXACT) + 1


@settings(max_examples=150, deadline=None)
@given(sends=sends, rates=rates_of_five)
def test_no_link_down_takes_in_more_than_its_rate_over_any_time_and_all_end_in_time(
    sends: list[tuple[float, int, int, int]], rates: list[float]
) -> None:
    rig = Rig(rates)
    for at_s, source, target, nbytes in sends:
        rig.send(at_s, source, target, min(nbytes, QUANTUM), min(nbytes, QUANTUM))
    arrivals = rig.run()
    for node, rate in enumerate(rates):
        assert_within(rate, [(each.at_s, each.item) for each in arrivals if each.target == node])
    if arrivals:
        # Even if every piece had to pass the slowest link.
        all_s = sum(each.item for each in arrivals) / min(rates)
        assert arrivals[-1].at_s <= max(at_s for at_s, *_ in sends) + all_s + LATENCY_S + EXACT


@settings(max_examples=100, deadline=None)
@given(sends=sends, rate=st.sampled_from([RATE, RATE / 50]))
def test_no_link_up_lets_out_more_than_its_rate_over_any_time(
    sends: list[tuple[float, int, int, int]], rate: float
) -> None:
    """Nodes 0 to 2 send to nodes 3 and 4, who take in at once what has left."""
    rig = Rig([rate] * 3 + [1e15] * 2)
    for at_s, source, target, nbytes in sends:
        rig.send(at_s, source % 3, 3 + target % 2, min(nbytes, QUANTUM), min(nbytes, QUANTUM))
    arrivals = rig.run()
    for node in range(3):
        assert_within(rate, [(each.at_s, each.item) for each in arrivals if each.source == node])


def test_change_of_a_rate_holds_for_all_that_has_not_begun_to_leave() -> None:
    """16 quanta: 4 at 1 Gbit/s, the fourth of them under way when the change comes, and 12 at a tenth of that."""
    rig = Rig([RATE, RATE])
    rig.send(0.0, 0, 1, "item", 16 * QUANTUM)
    rig.clock.at(3.5 * QUANTUM_S, lambda _: rig.network.change(0, RATE / 10))
    rig.clock.run()
    assert [arrival.at_s for arrival in rig.arrivals] == [pytest.approx((4 + 120) * QUANTUM_S + LATENCY_S)]


def test_change_of_a_receivers_rate_slows_what_comes_in_and_back() -> None:
    rig = Rig([RATE, RATE])
    rig.network.change(1, RATE / 4)
    rig.send(0.0, 0, 1, "there", 8 * QUANTUM)
    rig.send(0.0, 1, 0, "back", 8 * QUANTUM)
    rig.clock.run()
    assert [arrival.at_s for arrival in rig.arrivals] == [pytest.approx(32 * QUANTUM_S + LATENCY_S)] * 2


def test_change_to_a_higher_rate_lets_a_far_flow_fill_the_round_trip() -> None:
    rig = Rig([RATE / 1000, RATE], latency_s=0.05)
    rig.send(0.0, 0, 1, "first", 1)
    rig.send(0.0, 0, 1, "item", 400 * QUANTUM)
    rig.clock.at(QUANTUM_S, lambda _: rig.network.change(0, RATE))
    rig.clock.run()
    assert rig.arrivals[-1].at_s == pytest.approx(1000 * QUANTUM_S + 399 * QUANTUM_S + 0.05, rel=0.01)
