"""The virtual clock: what happens in which order, however it is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dataflow.sim.clock import VirtualClock


@dataclass(frozen=True)
class Happening:
    """Something that happens after a delay, and what it has happen then."""

    delay_s: float
    priority: int
    then: tuple[Happening, ...] = ()


DELAYS = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0])
LEAVES = st.builds(Happening, DELAYS, st.sampled_from([0, 0, 1]))
TREES = st.recursive(
    LEAVES,
    lambda trees: st.builds(Happening, DELAYS, st.sampled_from([0, 0, 1]), st.lists(trees, max_size=3).map(tuple)),
    max_leaves=20,
)


def played(first: list[Happening]) -> list[tuple[float, int]]:
    """When each happens under the clock, by the number under which it was told of."""
    clock, order = VirtualClock(), list[tuple[float, int]]()

    def declare(each: Happening) -> None:
        clock.at(clock.now() + each.delay_s, happen, (clock.events, each), priority=each.priority)

    def happen(told: tuple[int, Happening]) -> None:
        number, each = told
        order.append((clock.now(), number))
        for after in each.then:
            declare(after)

    for each in first:
        declare(each)
    clock.run()
    return order


def sorted_out(first: list[Happening]) -> list[tuple[float, int]]:
    """The same by the rule itself: of all that is to come, the least (time, priority, number) is next."""
    to_come, order, count = list[tuple[float, int, int, Happening]](), list[tuple[float, int]](), 0
    now, more = 0.0, first
    while to_come or more:
        for each in more:
            to_come.append((now + each.delay_s, each.priority, count, each))
            count += 1
        following = min(to_come, key=lambda told: told[:3])
        to_come.remove(following)
        now, _, number, happened = following
        order.append((now, number))
        more = list(happened.then)
    return order


@given(st.lists(TREES, max_size=8))
def test_what_is_next_is_least_by_time_then_priority_then_order_of_being_told(first: list[Happening]) -> None:
    assert played(first) == sorted_out(first)


def test_next_s_is_now_while_anything_is_left_to_happen_now() -> None:
    clock, seen = VirtualClock(), list[float]()
    assert clock.next_s == math.inf
    clock.at(1.0, lambda _: clock.at(1.0, lambda _: None))
    clock.at(1.0, lambda _: seen.append(clock.next_s))
    clock.at(2.0, lambda _: seen.append(clock.next_s))
    clock.run()
    assert seen == [1.0, math.inf]


def test_what_was_to_happen_now_happens_in_the_next_run_if_the_clock_was_stopped() -> None:
    clock, seen = VirtualClock(), list[str]()

    def first(_: None) -> None:
        clock.at(clock.now(), lambda _: seen.append("soon"))
        clock.at(clock.now() + 1, lambda _: seen.append("later"))
        clock.stop()

    clock.at(3.0, first)
    clock.run()
    assert seen == []
    clock.run()
    assert seen == ["soon", "later"]
