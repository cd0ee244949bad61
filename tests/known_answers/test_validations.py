"""Validations of workers that train together, of which the first dies, comes back, or leaves by request."""

from __future__ import annotations

from typing import Any

import pytest

from ako_jobs import ako, all_to_all, parameter_server, sparse, tree
from dataflow.engine.memory_driver import MemoryRun
from dataflow.plan.job import JobSpec
from tests.known_answers.coded import SETTINGS
from tests.known_answers.rejoining import Dying, clocks_of

JOBS: list[tuple[Any, dict[str, Any]]] = [
    (ako, {"p": 2}),
    (ako, {"p": 2, "average": 0.1}),
    (all_to_all, {"consistency": "bsp"}),
    (all_to_all, {"consistency": "ssp"}),
    (sparse, {}),
    (tree, {}),
    (parameter_server, {"servers": 1, "consistency": "async"}),
    (parameter_server, {"servers": 1, "consistency": "bsp"}),
]
WORKERS, TESTED = 3, 355


def trained(job: Any, settings: dict[str, Any], *turns: tuple[int, int], leaves: int = 0) -> MemoryRun:
    """A run in which nodes die and come back, or node 0 is asked to leave, once so much has been delivered."""
    config = job.Config.parse({**SETTINGS, "lr": 0.01, "epochs": 4, "validate_every": 200, **settings})
    nodes = WORKERS + (job is parameter_server)
    plan = JobSpec(name="validated", graph=job.build(config), nodes=nodes).plan()
    return Dying(plan, turns, [(leaves, 0)] if leaves else []).execute()


def results(run: MemoryRun) -> list[tuple[int, dict[str, Any]]]:
    """Who told of validations, and what, in the order in which they were told."""
    return [(node, dict(report.fields)) for node, report in run.reports if report.port == "validate.results"]


@pytest.mark.parametrize(("job", "settings"), JOBS)
def test_all_workers_share_every_validation_and_the_first_does_the_final_alone(
    job: Any, settings: dict[str, Any]
) -> None:
    *found, (last, final) = results(trained(job, settings))
    assert len(found) > 20
    assert {node for node, _ in found} == {last} == {0}
    assert {fields["tested"] for _, fields in found} == {final["tested"]} == {TESTED}
    assert final["final"]
    assert not any(fields["final"] for _, fields in found)
    images = [fields["images"] for _, fields in found]
    assert images == sorted(images)


@pytest.mark.parametrize(("job", "settings"), JOBS)
def test_when_the_first_worker_has_died_the_others_validate_in_turn_and_the_next_does_the_final(
    job: Any, settings: dict[str, Any]
) -> None:
    run = trained(job, settings, (400, 0))
    assert run.buried == {0}
    *found, (last, final) = results(run)
    by = [node for node, _ in found]
    assert 0 in by
    assert by == sorted(by, key=bool)  # the first one's come before those of the others
    later = [(node, fields["tested"]) for node, fields in found if node]
    assert len(later) > 5
    assert set(later) == {(1, TESTED), (2, TESTED)}
    assert (last, final["final"], final["tested"]) == (1, True, TESTED)
    assert final["step"] == clocks_of(run.nodes[1]).made


@pytest.mark.parametrize(("job", "settings"), [each for each in JOBS if each[0] in (ako, sparse, all_to_all)])
def test_when_the_first_worker_has_come_back_all_share_again(job: Any, settings: dict[str, Any]) -> None:
    run = trained(job, settings, (400, 0), (900, 0))
    assert not run.buried
    found = results(run)
    *by, last = [node for node, _ in found]
    assert {0, 1, 2} == set(by)
    away = [place for place, node in enumerate(by) if node]
    assert 0 in by[max(away) + 1 :]
    assert last == 1  # which has been there all the time
    assert [fields["final"] for _, fields in found] == [False] * (len(found) - 1) + [True]
    images = {fields["images"] // 200 for _, fields in found}
    assert len(images) > 0.8 * (max(images) - min(images))  # one or two are lost with it each time


@pytest.mark.parametrize(("job", "settings"), [each for each in JOBS if each[0] is not tree])
def test_when_the_first_worker_has_left_by_request_the_last_report_is_of_the_model_that_is_kept(
    job: Any, settings: dict[str, Any]
) -> None:
    run = trained(job, settings, leaves=400)
    assert run.buried == {0}
    found = results(run)
    assert {node for node, _ in found} == {0, 1, 2}
    node, final = found[-1]
    assert (node, final["final"], final["tested"]) == (1, True, TESTED)
    assert final["step"] == clocks_of(run.nodes[1]).made
