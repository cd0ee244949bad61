"""What nodes have of the cores of a machine, with quotas and faults, against plain integration in small steps."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dataflow.sim.faults import Fault, NodePauses, NodeSlows
from dataflow.sim.machine import Machine, Part
from dataflow.sim.pace import Pace

EVEN = Pace((), 0)

COMPUTE, BESIDE = "compute", "beside"


@dataclass(frozen=True)
class Job:
    """Work that comes up on a node at a time."""

    node: int
    at_s: float
    kind: str
    work_s: float


def ended(parts: list[Part], jobs: list[Job]) -> list[float]:
    """When each job is done: whoever waits asks again, as the simulator does."""
    number, events, ends = count(), [(job.at_s, -1, which) for which, job in enumerate(jobs)], [0.0] * len(jobs)
    marks = dict[int, float]()
    heapq.heapify(events)
    while events:
        now, _, which = heapq.heappop(events)
        job, part = jobs[which], parts[jobs[which].node]
        if which not in marks:
            marks[which] = (part.compute if job.kind == COMPUTE else part.beside)(now, job.work_s)
        done_s = (part.computed_s if job.kind == COMPUTE else part.beside_s)(now, marks[which])
        assert math.isfinite(done_s)
        if done_s > now:
            heapq.heappush(events, (done_s, next(number), which))
            continue
        ends[which] = now
        if job.kind == COMPUTE:
            part.end(now, marks[which])
    return ends


def one(work_s: float, at_s: float = 0.0, **quota: float) -> float:
    """When a single compute task is done, on a machine with cores enough."""
    return ended([Part(Machine(2), EVEN, **quota)], [Job(0, at_s, COMPUTE, work_s)])[0]


# A quota


def test_node_works_until_its_slice_is_used_up_and_goes_on_with_the_next() -> None:
    part = Part(Machine(2), EVEN, 0.4, 1.0)
    mark = part.compute(0.0, 0.6)
    assert part.computed_s(0.0, mark) == 1.0
    assert part.awake_s(0.3) == 0.3
    assert part.awake_s(0.5) == 1.0
    assert part.computed_s(1.0, mark) == pytest.approx(1.2)
    assert part.awake_s(1.1) == 1.1


@pytest.mark.parametrize(
    ("work_s", "at_s", "phase_s", "done_s"),
    [
        (0.7, 0.8, 0.0, 1.5),  # a slice's end and the next one's begin
        (0.5, 0.5, 0.5, 0.5 + 0.5),
        (0.75, 0.25, 0.5, 0.25 + 0.75),  # what is before the first slice begins is one as well
        (50_000.0, 0.0, 0.0, 99_999.5),
    ],
)
def test_work_takes_its_share_of_every_slice(work_s: float, at_s: float, phase_s: float, done_s: float) -> None:
    assert one(work_s, at_s, quota_s=0.5, slice_s=1.0, phase_s=phase_s) == pytest.approx(done_s)


def test_what_is_done_besides_uses_up_the_same_slice_and_both_stand_still() -> None:
    """From 0 on both work, until 0.25; then from 1 on."""
    jobs = [Job(0, 0.0, COMPUTE, 0.375), Job(0, 0.0, BESIDE, 0.375)]
    assert ended([Part(Machine(2), EVEN, 0.5, 1.0)], jobs) == pytest.approx([1.125, 1.125])


def test_what_is_done_besides_comes_first_on_a_single_core() -> None:
    jobs = [Job(0, 0.0, COMPUTE, 0.375), Job(0, 0.0, BESIDE, 0.375)]
    assert ended([Part(Machine(1), EVEN, 0.5, 1.0)], jobs) == pytest.approx([1.25, 0.375])


def test_compute_task_that_begins_on_a_node_that_has_used_up_its_slice_besides_goes_on_with_the_next() -> None:
    jobs = [Job(0, 0.0, BESIDE, 0.5), Job(0, 0.75, COMPUTE, 0.25)]
    assert ended([Part(Machine(2), EVEN, 0.5, 1.0)], jobs) == pytest.approx([0.5, 1.25])


# A machine


def test_two_nodes_on_one_core_share_it_alike() -> None:
    machine = Machine(1)
    parts = [Part(machine, EVEN), Part(machine, EVEN)]
    assert ended(parts, [Job(0, 0.0, COMPUTE, 1.0), Job(1, 1.0, COMPUTE, 1.0)]) == [1.0, 2.0]
    machine = Machine(1)
    parts = [Part(machine, EVEN), Part(machine, EVEN)]
    assert ended(parts, [Job(0, 0.0, COMPUTE, 1.0), Job(1, 0.5, COMPUTE, 1.0)]) == [1.5, 2.0]


def test_node_that_wants_less_than_its_part_leaves_the_rest_to_the_others() -> None:
    """Of three cores, one node has one thing to do and the other three: the second has two cores for these."""
    machine = Machine(3)
    parts = [Part(machine, EVEN), Part(machine, EVEN)]
    jobs = [Job(0, 0.0, COMPUTE, 3.0), *(Job(1, 0.0, COMPUTE, 2.0) for _ in range(3))]
    assert ended(parts, jobs) == pytest.approx([3.0, 3.0, 3.0, 3.0])


def test_node_that_pauses_from_the_start_is_not_awake() -> None:
    assert Part(Machine(1), Pace([NodePauses(node=0, at_s=0, for_s=1)], 0)).awake_s(0.0) == 1.0


def test_pause_of_very_many_slices_is_over_soon() -> None:
    """As many as would take hours, one after the other."""
    part = Part(Machine(2), Pace([NodePauses(node=0, at_s=0.25, for_s=1e9)], 0), 0.5, 1.0)
    mark = part.compute(0.0, 0.4)
    assert part.computed_s(0.25, mark) == 1e9 + 0.25
    assert part.computed_s(1e9 + 0.25, mark) == pytest.approx(1e9 + 0.4)


def test_node_is_asked_again_in_time_where_another_uses_up_its_quota_sooner_than_it_seemed() -> None:
    """The first has 0.05 in each slice; two tasks more use them up at 0.03, and leave the cores to the last."""
    machine = Machine(5)
    parts = [Part(machine, EVEN, 0.05, 0.1, most=4), Part(machine, EVEN), Part(machine, EVEN)]
    jobs = [
        Job(0, 0.0, COMPUTE, 0.2),
        *(Job(1, 0.0, COMPUTE, 0.5) for _ in range(2)),
        *(Job(2, 0.0, COMPUTE, 0.0333) for _ in range(3)),
        *(Job(0, 0.01, COMPUTE, 0.2) for _ in range(2)),
    ]
    plain = [Plain(EVEN, quota_s) for quota_s in (0.05, math.inf, math.inf)]
    assert ended(parts, jobs)[3:6] == pytest.approx(in_steps(plain, jobs, 5, 0.1, 1e-5)[3:6], abs=2e-4)


# All of it

QUARTERS = st.integers(0, 12).map(lambda quarters: quarters / 4)
WORKS = st.integers(1, 12).map(lambda quarters: quarters / 4)
JOBS = st.builds(Job, node=st.integers(0, 2), at_s=QUARTERS, kind=st.sampled_from([COMPUTE, BESIDE]), work_s=WORKS)
FAULTS = st.lists(
    st.one_of(
        st.builds(NodePauses, node=st.integers(0, 2), at_s=QUARTERS, for_s=WORKS),
        st.builds(NodeSlows, node=st.integers(0, 2), at_s=QUARTERS, for_s=WORKS, factor=st.sampled_from([0.5, 2.0])),
    ),
    max_size=2,
)
STEP_S = 1 / 1024


@dataclass
class Plain:
    """A node, worked out in small steps."""

    pace: Pace
    quota_s: float
    used_s: float = 0.0
    computing: dict[int, float] = field(default_factory=dict)
    besides: list[tuple[int, float]] = field(default_factory=list)

    def wants(self, at_s: float) -> float:
        stands = math.isinf(self.pace.at(at_s)[0]) or self.used_s >= self.quota_s - 1e-9
        return 0.0 if stands else len(self.computing) + bool(self.besides)


def in_steps(plain: list[Plain], jobs: list[Job], cores: float, slice_s: float, step_s: float = STEP_S) -> list[float]:
    """When each job is done."""
    ends = [0.0] * len(jobs)
    waiting = sorted(range(len(jobs)), key=lambda which: jobs[which].at_s)
    for step in count():
        now = step * step_s
        if step % round(slice_s / step_s) == 0:
            for node in plain:
                node.used_s = 0.0
        while waiting and jobs[waiting[0]].at_s <= now:
            which = waiting.pop(0)
            job = jobs[which]
            if job.kind == COMPUTE:
                plain[job.node].computing[which] = job.work_s
            else:
                plain[job.node].besides.append((which, job.work_s))
        if not waiting and not any(node.computing or node.besides for node in plain):
            return ends
        for node, gets in divided(plain, now, cores):
            node.used_s += gets * step_s
            first = min(1.0, gets) if node.besides else 0.0
            each = min(1.0, (gets - first) / len(node.computing)) if node.computing else 0.0
            slow = node.pace.at(now)[0]
            if node.besides:
                which, left_s = node.besides[0]
                node.besides[0] = which, left_s - first * step_s / slow
            for which in node.computing:
                node.computing[which] -= each * step_s / slow
            done = [which for which, left_s in [*node.computing.items(), *node.besides[:1]] if left_s <= 1e-9]
            for which in done:
                ends[which] = now + step_s
                node.computing.pop(which, None)
            node.besides = [each for each in node.besides if each[0] not in done]
    raise AssertionError


def divided(plain: list[Plain], now: float, cores: float) -> Iterator[tuple[Plain, float]]:
    """What each node that wants some has of the cores, by raising what all have at most."""
    wants = {index: wanted for index, node in enumerate(plain) if (wanted := node.wants(now))}
    if sum(wants.values()) > cores:
        level, left, others = 0.0, cores, sorted(wants, key=lambda index: wants[index])
        for place, index in enumerate(others):
            level = min(wants[index], left / (len(others) - place))
            wants[index], left = level, left - level
    for index, gets in wants.items():
        yield plain[index], gets


@settings(max_examples=40, deadline=None)
@given(
    jobs=st.lists(JOBS, min_size=1, max_size=8),
    faults=FAULTS,
    cores=st.sampled_from([1, 2, 4]),
    quotas=st.lists(st.sampled_from([0.25, 0.5, 1.0, math.inf]), min_size=3, max_size=3),
)
def test_work_is_done_when_plain_integration_says(
    jobs: list[Job], faults: list[Fault], cores: int, quotas: list[float]
) -> None:
    machine, slice_s = Machine(cores), 0.5
    paces = [Pace(faults, node) for node in range(3)]
    parts = [
        Part(machine, pace) if math.isinf(quota_s) else Part(machine, pace, quota_s, slice_s)
        for pace, quota_s in zip(paces, quotas, strict=True)
    ]
    one, other = (
        in_steps(
            [Plain(pace, quota_s + more_s) for pace, quota_s in zip(paces, quotas, strict=True)], jobs, cores, slice_s
        )
        for more_s in (0.0, 16 * STEP_S)
    )
    # What ends as a slice is used up may in steps have to wait for the next one, for a step's work.
    assume(one == pytest.approx(other, abs=0.15))
    assert ended(parts, jobs) == pytest.approx(one, abs=0.02)
