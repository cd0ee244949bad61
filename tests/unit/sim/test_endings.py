from __future__ import annotations

from dataflow.plan.physical import StreamId
from dataflow.sim.clock import VirtualClock
from dataflow.sim.endings import Endings

FIRST, SECOND = StreamId(0, 0, 1), StreamId(0, 0, 2)


def ending(clock: VirtualClock, told: list[tuple[float, int]]) -> Endings:
    """Of a node whose streams' ends are under way to two others."""
    endings = Endings(clock, 0.5, lambda node: told.append((clock.now(), node)))
    for stream in (FIRST, SECOND):
        endings.sent(stream)
    endings.end(0)
    return endings


def test_end_of_a_node_is_told_once_all_its_streams_have_ended_where_they_lead() -> None:
    clock, told = VirtualClock(), []
    endings = ending(clock, told)
    for at_s, stream in ((0.25, FIRST), (2.0, SECOND)):
        clock.at(at_s, endings.arrived, stream)
    clock.run()
    assert (told, endings.ended) == ([(2.0, 0)], {0})


def test_end_of_a_node_whose_streams_have_ended_is_told_after_the_latency() -> None:
    clock, told = VirtualClock(), []
    endings = ending(clock, told)
    for stream in (FIRST, SECOND):
        endings.arrived(stream)
    clock.run()
    assert told == [(0.5, 0)]


def test_end_of_a_node_does_not_wait_for_streams_to_one_that_has_left_nor_is_told_of_its_former_life() -> None:
    clock, told = VirtualClock(), []
    endings = ending(clock, told)
    endings.arrived(FIRST)
    clock.at(3.0, lambda there: endings.meet(0, there), {1})
    clock.run()
    assert told == [(3.0, 0)]
    again = ending(clock, told)
    again.forget(0)
    again.arrived(FIRST)
    again.arrived(SECOND)
    clock.run()
    assert (told, again.ended) == ([(3.0, 0)], set())


def test_end_of_a_node_does_not_wait_for_what_it_sends_to_one_that_has_left_before() -> None:
    clock, told = VirtualClock(), []
    endings = Endings(clock, 0.5, lambda node: told.append((clock.now(), node)))
    endings.meet(0, {1})
    endings.sent(SECOND)
    endings.end(0)
    clock.run()
    assert told == [(0.5, 0)]
