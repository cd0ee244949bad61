"""Methods, section 1, in virtual time: drawn task times, links of any rate, cuts, pauses and stragglers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.known_answers.integers import assert_exact, integer_job
from tests.known_answers.simulated import simulate

ROUNDS, WEIGHTS = 7, 997

MODELS = {
    "gigabit": {},
    "tiny bandwidth": {"rate": 10_000.0},
    "one slow link": {"rates": {1: 5_000.0}},
    "far apart": {"latency_s": 0.3},
    "machines differ": {"compute": "gamma-heterogeneous", "speeds": {3: 0.05}},
    "two tasks": {"tasks": 2},
}
FAULTS = {
    "no fault": (),
    "cuts": ("cut:0-1@0.01+0.5", "cut:2-3@0.005+0.02", "cut:0-1@0.3+0.4", "cut:1-2@0+0.03"),
    "pauses": ("pause:1@0.01+0.5", "pause:0@0.03+0.01"),
    "all at once": ("cut:0-1@0.01+2", "pause:1@0.02+0.3", "slow:2@0+1x20", "cut:1-2@0.02+0.04", "pause:3@0+0.05"),
}


CIRCUMSTANCES = [("gigabit", faults) for faults in FAULTS] + [(model, "all at once") for model in list(MODELS)[1:]]


@pytest.mark.parametrize(("model", "faults"), CIRCUMSTANCES)
@pytest.mark.parametrize("p", [1, 6])
def test_exchange_of_integers_in_the_simulator_is_exact(model: str, faults: str, p: int) -> None:
    run = simulate(integer_job(p, slack=4), 4, seed=p, faults=FAULTS[faults], **MODELS[model])
    assert_exact(run.nodes, ROUNDS, WEIGHTS)
    sent = {(each.node, to): nbytes for each in run.statistics for to, nbytes in each.sent_nbytes.items()}
    received = {(by, each.node): nbytes for each in run.statistics for by, nbytes in each.received_nbytes.items()}
    assert sent == received


MOMENT = st.floats(0, 0.2).map(lambda moment: f"{moment:.4f}")
LENGTH = st.floats(0.0002, 0.3).map(lambda length: f"{length:.4f}")
PAIR = st.sampled_from(["0-1", "0-2", "1-2", "2-1"])
FAULT = st.one_of(
    st.builds("cut:{}@{}+{}".format, PAIR, MOMENT, LENGTH),
    st.builds("pause:{}@{}+{}".format, st.integers(0, 2), MOMENT, LENGTH),
    st.builds("slow:{}@{}+{}x{}".format, st.integers(0, 2), MOMENT, LENGTH, st.sampled_from([0.2, 3, 50])),
)


@settings(max_examples=30, deadline=None)
@given(
    p=st.integers(1, 6),
    seed=st.integers(0, 1000),
    restless=st.booleans(),
    slack=st.sampled_from([0, 1, 5]),
    faults=st.lists(FAULT, max_size=6),
    rate=st.sampled_from([3e3, 1e5, 125e6]),
    latency_s=st.sampled_from([0.0, 1e-4, 0.05]),
)
def test_exchange_under_any_faults_on_any_network_is_exact(
    p: int, seed: int, restless: bool, slack: int, faults: list[str], rate: float, latency_s: float
) -> None:
    graph = integer_job(p, restless=restless, slack=slack)
    run = simulate(graph, 3, seed=seed, faults=tuple(faults), rate=rate, latency_s=latency_s)
    assert_exact(run.nodes, ROUNDS, WEIGHTS)
