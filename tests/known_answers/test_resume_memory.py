"""A job that goes on from a checkpoint, in the memory driver."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from dataflow.engine.checkpoints import Manifest, check_fits, describe, encode, resume, resumption
from dataflow.engine.events import Snapshot
from dataflow.engine.loading import LoadedNode, load_nodes
from dataflow.engine.memory_driver import MemoryDriver, MemoryRun
from dataflow.plan.compile import compile_graph
from dataflow.plan.physical import PhysicalPlan
from tests.known_answers.training import BASE, job, plain_sgd, plain_steps, replica

EVERY = {"checkpoint_every": 64}


def plan(topology: str, nodes: int, tasks: int = 1, **settings: Any) -> PhysicalPlan:
    return compile_graph(job(topology, **EVERY, **settings), nodes, seed=BASE["seed"], compute_tasks=tasks)


def by_number(run: MemoryRun) -> dict[int, list[Snapshot]]:
    found: dict[int, list[Snapshot]] = {}
    for snapshot in run.snapshots:
        found.setdefault(snapshot.number, []).append(snapshot)
    return found


def manifest(snapshots: list[Snapshot], of: PhysicalPlan) -> tuple[Manifest, dict[str, bytes]]:
    files = {f"node-{each.node}": encode(each) for each in snapshots}
    kept = Manifest(
        version="1",
        job="a",
        number=snapshots[0].number,
        plan=of.digest(),
        seed=of.seed,
        wall_s=0,
        roles={role: len(members) for role, members in of.members().items()},
        elements=of.graph.elements,
        files=tuple(
            describe(data, name, len(data), hashlib.sha256(data).hexdigest()) for name, data in sorted(files.items())
        ),
    )
    return kept, files


def resumed(snapshots: list[Snapshot], of: PhysicalPlan, onto: PhysicalPlan) -> list[LoadedNode]:
    kept, files = manifest(snapshots, of)
    check_fits(kept, onto, {})
    nodes = []
    for node, loaded in enumerate(load_nodes(onto)):
        how = resumption(kept, onto, node)
        nodes.append(resume(loaded, onto, node, how, [files[file.file] for file in how.files]))
    return nodes


EXACT: list[tuple[str, dict[str, Any], int, int]] = [
    ("ako", {}, 1, 1),
    ("ako", {"momentum": 0.9}, 1, 2),
    ("ako", {"codec": "topk"}, 1, 1),
    ("all_to_all", {"consistency": "ssp"}, 1, 1),
    ("sparse", {"codec": "threshold:tau=0.03"}, 1, 1),
    ("sparse", {}, 1, 2),
    ("parameter_server", {}, 2, 1),
    ("parameter_server", {"servers": "all"}, 1, 1),
    ("all_to_all", {"consistency": "bsp"}, 4, 1),
    ("all_to_all", {"consistency": "bsp", "momentum": 0.9}, 4, 2),
    ("all_to_all", {"consistency": "bsp", "codec": "topk"}, 4, 1),
    ("sparse", {"consistency": "ssp", "tau": 0}, 1, 1),
    ("parameter_server", {"consistency": "bsp"}, 4, 1),
    ("parameter_server", {"consistency": "bsp", "servers": 2, "momentum": 0.9}, 4, 1),
    ("parameter_server", {"consistency": "bsp", "servers": "all"}, 4, 1),
]


@pytest.mark.parametrize(("topology", "settings", "nodes", "tasks"), EXACT)
def test_resume_from_any_checkpoint_gives_the_uninterrupted_weights_bit_for_bit(
    topology: str, settings: dict[str, Any], nodes: int, tasks: int
) -> None:
    of = plan(topology, nodes, tasks, **settings)
    whole = MemoryDriver(of).execute()
    kept = by_number(whole)
    complete = [number for number, snapshots in kept.items() if len(snapshots) == nodes]
    assert len(complete) >= 3
    for number in (complete[0], complete[len(complete) // 2]):
        again = MemoryDriver(of, nodes=resumed(kept[number], of, of)).execute()
        for before, after in zip(whole.nodes, again.nodes, strict=True):
            for name, state in before.states.items():
                expected, got = state.tensors(), after.states[name].tensors()
                if name in ("replica", "shard", "velocity", "statistics", "residual"):
                    for key in expected:
                        np.testing.assert_array_equal(got[key], expected[key], err_msg=f"{name}/{key}")


@pytest.mark.parametrize("seed", range(5))
def test_checkpoint_of_one_node_in_any_order_holds_the_weights_of_its_step(seed: int) -> None:
    of = plan("ako", 1, p=1)
    run = MemoryDriver(of, order=np.random.default_rng(seed)).execute()
    assert len(run.snapshots) > 3
    for each in run.snapshots:
        assert each.steps in (each.number, each.number + 1)
        assert each.tensors["clocks/made"][0] == each.steps
        assert each.positions["source"] == each.steps
        steps = plain_at(each.steps or 0)
        np.testing.assert_array_equal(each.tensors["replica/values"], steps)
    np.testing.assert_array_equal(replica(run.nodes[0]), plain_sgd())


_STEPS: list[np.ndarray] = []


def plain_at(step: int) -> np.ndarray:
    if not _STEPS:
        _STEPS.extend(plain_steps())
    return _STEPS[step - 1]
