"""The cost model in virtual time: p and r follow link and processor, nodes train on, and no gradient is lost."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from dataflow.operators_api import Emissions
from dataflow.plan.job import JobSpec, StopRules
from dataflow.reports import Rates
from dataflow.sim.costs import TaskKind
from dataflow.sim.faults import parse_fault
from dataflow.sim.model import ClusterModel
from dataflow.sim.replay import compare, replay
from dataflow.sim.run import SimRun
from dataflow.sim.simulator import Simulator
from operators.cost_model import Choice
from operators.partition import LivePartition, RotationState
from tests.known_answers.integers import assert_exact, live_graph

NODES, WEIGHTS, STEP_S = 4, 20_000, 0.005
NBYTES_S = 4 * WEIGHTS * (NODES - 1) / STEP_S
"""What all gradients of a node are for all its peers: 48 MB/s."""


@dataclass
class Live:
    """A run with what was chosen at each measurement: node, second, choice, rates."""

    run: SimRun
    chosen: list[tuple[int, float, Choice, Rates]] = field(default_factory=list)

    def of(self, node: int) -> list[Choice]:
        return [choice for at, _, choice, _ in self.chosen if at == node]

    def changes(self, node: int, since_s: float = 0.0) -> list[Choice]:
        """The choices of a node without repetitions."""
        late = [choice for at, now, choice, _ in self.chosen if at == node and now >= since_s]
        return [choice for choice, _ in itertools.groupby(late)]

    def pace(self, node: int, since_s: float, until_s: float) -> float:
        """Gradients per second of a node in a while."""
        rates = [rates for at, now, _, rates in self.chosen if at == node and since_s < now <= until_s]
        return sum(each.steps for each in rates) / sum(each.seconds for each in rates)


def run_live(
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
    *faults: str,
    exchange_s: float = 0.0,
    record: bool = False,
    cost: dict[str, Any] | None = None,
    **model: Any,
) -> Live:
    """A finished run, in which tasks that send or receive a message take `exchange_s`."""
    means = {TaskKind("compute", role, first): STEP_S for role in ("step", "shard") for first in (True, False)}
    means |= {TaskKind(each, "message", first): exchange_s for each in ("send", "receive") for first in (True, False)}
    graph = live_graph(WEIGHTS, rounds, **(cost or {}))
    spec = JobSpec(name="live", graph=graph, nodes=NODES, stop=StopRules(), record=record)
    cluster = ClusterModel(compute="gamma", faults=tuple(map(parse_fault, faults)), **model)
    simulator = Simulator(spec, cluster, means)
    live = Live(simulator.run_so_far)
    on_rates = LivePartition.on_rates

    def noting(self: LivePartition, rates: Rates, rotation: RotationState) -> Emissions:
        samples = list(on_rates(self, rates, rotation))
        node = next(number for number, each in enumerate(live.run.nodes) if each.states["rotation"] is rotation)
        live.chosen.append((node, simulator._clock.now(), rotation.choice, rates))
        yield from samples

    monkeypatch.setattr(LivePartition, "on_rates", noting)
    run = simulator.run()
    monkeypatch.undo()
    assert run.state == "FINISHED", run.reason
    assert_exact(run.nodes, rounds, WEIGHTS)
    return live


def formula(bandwidth: float) -> int:
    """P = ceil(gamma m (n - 1) / B), of nine tenths of B."""
    return math.ceil(NBYTES_S / (0.9 * bandwidth))


def everywhere(faults: str, at_s: float, rate: str) -> list[str]:
    return [f"{faults}:{node}@{at_s}={rate}" for node in range(NODES)]


@pytest.mark.parametrize(("rate", "p"), [(12e6, 5), (4.2e6, 13)])
def test_p_settles_at_what_the_formula_says_and_stays(monkeypatch: pytest.MonkeyPatch, rate: float, p: int) -> None:
    live = run_live(monkeypatch, 500, rate=rate, rates_s=0.25)
    assert formula(rate) == p
    for node in range(NODES):
        assert abs(live.of(node)[-1].partitions - p) <= 1
        assert live.of(node)[-1].every == 1
        assert len(live.changes(node, since_s=1.3)) <= 2  # one more partition at most, once, as gradients waver
        assert live.pace(node, 1.75, 2.5) == pytest.approx(1 / STEP_S, rel=0.05)  # nothing holds it back


def test_p_rises_within_five_seconds_of_a_cut_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that waits for its link makes few gradients, and must not conclude that few partitions are enough."""
    live = run_live(monkeypatch, 1250, *everywhere("rate", 4.0, "8mbit"), rate=4.2e6)
    for node in range(NODES):
        # Headers, of which the formula knows nothing, are a tenth of such small parts; a tenth more stays as it is.
        assert formula(1e6) - 1 <= live.of(node)[-1].partitions <= 1.2 * formula(1e6)
        assert live.pace(node, 1.5, 2.1) < 0.8 / STEP_S
        assert live.pace(node, 4.1, 4.6) < 0.5 / STEP_S
        settled = next(now for at, now, choice, _ in live.chosen if at == node and choice.partitions > 40)
        assert settled <= 6.0
        assert live.pace(node, 7.0, 8.0) > 0.85 / STEP_S


def test_p_falls_when_a_slow_link_becomes_a_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    live = run_live(monkeypatch, 650, *everywhere("rate", 1.0, "96mbit"), rate=2.4e6, rates_s=0.2)
    for node in range(NODES):
        assert max(choice.partitions for choice in live.of(node)) == pytest.approx(formula(2.4e6), rel=0.15)
        assert live.of(node)[-1].partitions <= formula(12e6) + 2


def test_p_of_all_rises_where_one_has_a_slow_link_which_carries_theirs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    live = run_live(monkeypatch, 600, rate=12e6, rates={2: 2.4e6}, rates_s=0.25)
    assert live.of(2)[-1].partitions >= formula(2.4e6) - 1
    for node in range(NODES):
        assert formula(12e6) < live.of(node)[-1].partitions <= 1.4 * formula(2.4e6)
        assert live.pace(node, 2.0, 2.75) > 0.9 / STEP_S


def test_p_of_nodes_far_from_each_other_does_not_run_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for what is on its way looks like a full link at first, and p grows; once more by twice, and no more."""
    live = run_live(monkeypatch, 400, latency_s=0.1, rate=125e6)
    for node in range(NODES):
        first = next(choice.partitions for choice in live.of(node) if choice.every == 1)
        assert live.of(node)[-1].partitions <= 2 * first + 1
        assert len(set(live.of(node)[8:])) == 1


def test_r_lets_the_exchange_take_a_tenth_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round is 3 fragments sent and 3 received of 0.3 ms: 1.8 ms. 9 times that, over gradients of 5 ms, is 3.24."""
    live = run_live(monkeypatch, 500, exchange_s=0.0003, rate=125e6, rates_s=0.25)
    for node in range(NODES):
        assert live.of(node)[-1] in {(4, 3), (4, 4)}
        late = [rates for at, now, _, rates in live.chosen if at == node and now > 1.5]
        share = sum(each.exchange_s for each in late) / sum(each.exchange_s + each.compute_s for each in late)
        assert share == pytest.approx(0.1, abs=0.025)


def test_fixed_p_and_r_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    live = run_live(monkeypatch, 100, rate=4.2e6, rates_s=0.1, cost={"partitions": 2})
    assert {choice.partitions for node in range(NODES) for choice in live.of(node)} == {2}
    live = run_live(monkeypatch, 100, rate=4.2e6, rates_s=0.1, cost={"every": 3})
    assert {choice.every for node in range(NODES) for choice in live.of(node)} == {3}


def test_replay_of_a_run_in_which_p_and_r_changed_is_identical(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = everywhere("rate", 1.0, "8mbit")
    live = run_live(monkeypatch, 300, *faults, rate=4.2e6, rates_s=0.1, exchange_s=0.0002, record=True)
    assert len(live.changes(0)) > 2
    again = replay(live.run.plan, live.run.artifacts.get)
    assert compare(again, live.run.artifacts.get, []) is None
    assert again.complete
    for before, after in zip(live.run.nodes, again.nodes, strict=True):
        assert before.states["rotation"].choice == after.states["rotation"].choice  # type: ignore[attr-defined]
        assert before.states["rotation"].known == after.states["rotation"].known  # type: ignore[attr-defined]
    assert_exact(again.nodes, 300, WEIGHTS)
