"""What happens in a chaos run is a function of its seed; a death is told of with the fault that was its cause."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from dataflow.errors import ConfigError
from dataflow.lab.chaos import DURATIONS, LAST_S, MOST_DEATHS, Fault, Kind, plan_faults
from dataflow.lab.chaos_injector import Injected
from dataflow.lab.chaos_report import counts as counted
from dataflow.lab.chaos_report import outcomes, throughput_kept, unexplained
from dataflow.observe.events import JobEvent, NodeChange
from dataflow.reports import NodeStatistics


def change(node: int, life: str, wall_s: float, incarnation: int = 0, reason: str = "") -> JobEvent:
    return JobEvent(0, wall_s, wall_s, node=node, change=NodeChange(node, life, incarnation, reason, wall_s))


def told(node: int, wall_s: float, running_s: float, steps: int, incarnation: int = 0) -> JobEvent:
    statistics = NodeStatistics(node, steps=steps, running_s=running_s, incarnation=incarnation)
    return JobEvent(0, wall_s, wall_s, statistics=statistics)


KILLED = Injected(Fault(10.0, Kind.KILL, 0.0, 1), 110.0, 110.0, hit=True)


def test_faults_of_a_seed_are_always_the_same_and_those_of_another_are_not() -> None:
    assert plan_faults(1, 4, 60.0) == plan_faults(1, 4, 60.0)
    assert plan_faults(1, 4, 60.0) != plan_faults(2, 4, 60.0)


@pytest.mark.parametrize("seed", range(30))
def test_faults_of_a_plan_do_not_overlap_and_strike_no_host_too_often(seed: int) -> None:
    faults = plan_faults(seed, 4, 120.0)
    ends = [fault.at_s + fault.for_s for fault in faults]
    assert all(later.at_s > end for later, end in zip(faults[1:], ends, strict=False))
    assert ends[-1] <= 120.0 - LAST_S + 0.1
    deaths = Counter(host for fault in faults for host in fault.hosts)
    assert max(deaths.values()) <= MOST_DEATHS
    for fault in faults:
        least_s, most_s = DURATIONS.get(fault.kind, (0.0, 0.0))
        assert least_s <= fault.for_s <= most_s
        assert (fault.other is not None) == (fault.kind in {Kind.CUT, Kind.ONE_WAY})
        assert fault.other is None or fault.other != fault.host


def test_plan_of_one_kind_has_no_other_and_ends_when_no_host_may_be_struck() -> None:
    faults = plan_faults(3, 2, 1000.0, (Kind.KILL,))
    assert {fault.kind for fault in faults} == {Kind.KILL}
    assert len(faults) == 2 * MOST_DEATHS


def test_plan_without_time_for_a_fault_is_refused() -> None:
    with pytest.raises(ConfigError, match="so short a time"):
        plan_faults(0, 4, 3.0)
    with pytest.raises(ConfigError, match="so short a time"):
        plan_faults(0, 4, math.nan)


def test_plan_of_faults_between_hosts_is_refused_where_there_is_one() -> None:
    with pytest.raises(ConfigError, match=r"a fault between two hosts needs two: cut, one-way .got 1."):
        plan_faults(0, 1, 60.0, (Kind.CUT, Kind.ONE_WAY))
    assert {fault.kind for fault in plan_faults(0, 1, 60.0, (Kind.KILL, Kind.CUT))} == {Kind.KILL}


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault(1.0, Kind.KILL, 0.0, 3), "kill 3"),
        (Fault(1.0, Kind.CUT, 2.5, 0, 2), "cut 0-2 for 2.5 s"),
        (Fault(1.0, Kind.ONE_WAY, 2.5, 0, 2), "one-way 0->2 for 2.5 s"),
        (Fault(1.0, Kind.MASTER, 4.0), "master for 4.0 s"),
    ],
)
def test_fault_as_text_says_what_where_and_for_how_long(fault: Fault, text: str) -> None:
    assert str(fault) == text


def test_outcome_of_a_kill_has_times_from_the_fault_and_what_the_others_kept() -> None:
    events = [told(node, 100.0 + second, second, 100 * second) for second in range(11) for node in range(3)]
    events += [change(1, "waiting", 110.25, reason="killed\nits log"), change(1, "alive", 112.0, 1)]
    events += [told(node, 100.0 + second, second, 50 * second + 500) for second in range(11, 19) for node in (0, 2)]
    events += [told(1, 112.5, 0.5, 0, 1), told(1, 113.5, 1.5, 40, 1)]
    (outcome,) = outcomes([KILLED], events)
    assert (outcome.buried, outcome.reason) == (1, "killed")
    assert (outcome.detected_s, outcome.joined_s, outcome.contributing_s) == (0.25, 2.0, 3.5)
    assert outcome.others_kept == 0.5
    assert unexplained([KILLED], events) == []


def test_death_of_a_node_that_nothing_befell_is_unexplained() -> None:
    events = [change(2, "waiting", 110.25, reason="no heartbeat"), change(1, "waiting", 130.0, reason="late")]
    assert unexplained([KILLED], events) == [
        "node 2 died although nothing befell it: no heartbeat",
        "node 1 died although nothing befell it: late",
    ]
    assert outcomes([KILLED], events)[0].buried is None


def test_throughput_kept_is_what_was_made_of_what_all_nodes_would_have_made() -> None:
    # Two nodes at 100 per second; from second 10 on one of them is dead, and the other goes on as before.
    events = [told(node, 100.0 + second, second, 100 * second) for second in range(11) for node in range(2)]
    events += [told(0, 100.0 + second, second, 100 * second) for second in range(11, 21)]
    assert throughput_kept(counted(events), 100.0, 110.0, 120.0, 2) == pytest.approx(0.5, abs=0.11)
