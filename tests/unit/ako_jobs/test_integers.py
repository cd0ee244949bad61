"""Replicas of integers show which gradients of whom they hold, and anything that is not exact is told."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ako_jobs.integers import CELLS, SLOTS, WEIGHTS, Config, build, holding, mark, marked, slot, violations
from dataflow import MemoryDriver, compile_graph
from dataflow.errors import ConfigError, OperatorError


def sums(first: int, last: int) -> int:
    return sum(mark(number) for number in range(first, last + 1))


def began(node: int, incarnation: int, base: int) -> dict[str, Any]:
    return {"port": "compute.began", "node": node, "incarnation": incarnation, "base": base}


def told(node: int, incarnation: int, made: int, held: dict[str, list[list[int]]], rejected: int = 0) -> dict[str, Any]:
    fields = {"incarnation": incarnation, "made": made, "rejected": rejected, "held": json.dumps(held)}
    return {"port": "tell.holding", "node": node, **fields}


def test_holding_tells_gradients_and_marks_of_each_incarnation_by_cell() -> None:
    replica = -(marked(slot(1, 0, 2), 1) + marked(slot(1, 0, 2), 2) + marked(slot(0, 1, 2), 7))
    assert holding(replica, 2) == {"0.1": [[1, mark(7)]], "1.0": [[2, mark(1) + mark(2)]]}
    replica[: WEIGHTS // CELLS] = 0
    assert holding(replica, 2) == {"0.1": [[0, 0], [1, mark(7)]], "1.0": [[0, 0], [2, mark(1) + mark(2)]]}


def test_mark_sums_of_thousands_are_exact_in_float32() -> None:
    assert np.float32(sums(1, 20_000)) == sums(1, 20_000)


def test_more_incarnations_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(OperatorError, match="room for 64"):
        slot(0, SLOTS // 4, 4)


def test_live_nodes_that_hold_all_of_each_other_and_a_prefix_of_the_dead_are_exact() -> None:
    # Node 1 died after 4 gradients, of which node 0 has 3 in some cells and 4 in others; it came back behind 5.
    begins = [began(0, 0, 0), began(1, 0, 0), began(1, 1, 5)]
    held = {"0.0": [[9, sums(1, 9)]], "1.0": [[3, sums(1, 3)], [4, sums(1, 4)]], "1.1": [[2, sums(6, 7)]]}
    assert violations([*begins, told(0, 0, 9, held), told(1, 1, 7, held)]) == []


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"0.0": [[8, sums(1, 8)]], "1.0": [[2, sums(1, 2)]]}, "holds 8 gradients of 0.0, which has made 9"),
        ({"0.0": [[9, sums(1, 8) + mark(8)]], "1.0": [[2, sums(1, 2)]]}, "the first 9 gradients of 0.0, each once"),
        ({"0.0": [[9, sums(1, 9)]], "1.0": [[2, mark(1) + mark(3)]]}, "the first 2 gradients of 1.0, each once"),
        ({"1.0": [[2, sums(1, 2)]]}, "holds 0 gradients of 0.0, which has made 9"),
    ],
)
def test_gradient_that_is_missing_or_there_twice_is_a_violation(held: dict[str, list[list[int]]], words: str) -> None:
    (found,) = violations([began(0, 0, 0), began(1, 0, 0), told(0, 0, 9, held)])
    assert words in found


def test_refused_fragments_and_silence_are_violations() -> None:
    assert violations([]) == ["no node has told what it holds"]
    (found,) = violations([began(0, 0, 0), told(0, 0, 1, {"0.0": [[1, mark(1)]]}, rejected=3)])
    assert found == "node 0 has refused 3 fragments"


def test_job_in_memory_ends_with_every_gradient_everywhere() -> None:
    run = MemoryDriver(compile_graph(build(Config(gradients=12, pace_ms=0.0)), 3)).execute()
    wanted = {f"{node}.0": [[12, sums(1, 12)]] for node in range(3)}
    for node in run.nodes:
        assert holding(node.states["replica"].current, 3) == wanted  # type: ignore[attr-defined]


def test_setting_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match="the setting paces of integers"):
        Config.parse({"paces": 3})
