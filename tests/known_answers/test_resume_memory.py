"""A job that goes on from a checkpoint, in the memory driver."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from dataflow.engine.checkpoints import Manifest, describe, encode
from dataflow.engine.events import Snapshot
from dataflow.engine.loading import LoadedNode, load_nodes
from dataflow.engine.memory_driver import MemoryDriver, MemoryRun
from dataflow.engine.resumption import check_fits, resume, resumption, tensor_types_of
from dataflow.errors import AkoError, CheckpointError, OperatorError
from dataflow.plan.compile import compile_graph
from dataflow.plan.job import JobSpec
from dataflow.plan.physical import PhysicalPlan
from dataflow.state import StateKind
from operators.coded_window import CodedWindowState
from operators.window import WindowState
from tests.known_answers.rejoining import clocks_of
from tests.known_answers.training import BASE, job, replica

EVERY = {"checkpoint_every": 64}


def plan(name: str, nodes: int, tasks: int = 1, /, **settings: Any) -> PhysicalPlan:
    return compile_graph(job(name, **EVERY, **settings), nodes, seed=BASE["seed"], compute_tasks=tasks)


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
    ("ako", {"momentum": 0.9, "look_ahead": 3}, 1, 1),
    ("ako", {"codec": "topk"}, 1, 1),
    ("ako", {"average": 0.1}, 1, 1),
    ("ako", {"average": 0.1, "codec": "topk"}, 1, 1),
    ("all_to_all", {"consistency": "ssp"}, 1, 1),
    ("all_to_all", {"consistency": "ssp", "codec": "topk", "average": 0.1}, 1, 1),
    ("sparse", {"codec": "threshold:tau=0.03"}, 1, 1),
    ("sparse", {}, 1, 2),
    ("parameter_server", {}, 2, 1),
    ("parameter_server", {"servers": "all"}, 1, 1),
    *(("parameter_server", {"rule": rule, "momentum": 0.9}, 2, 1) for rule in ("dana-zero", "dana-slim", "dana-dc")),
    *(("parameter_server", {"rule": rule}, 2, 1) for rule in ("dc-asgd", "yellowfin", "gap-aware", "easgd")),
    ("all_to_all", {"consistency": "bsp"}, 4, 1),
    ("all_to_all", {"consistency": "bsp", "momentum": 0.9}, 4, 2),
    ("all_to_all", {"consistency": "bsp", "codec": "topk"}, 4, 1),
    ("all_to_all", {"consistency": "bsp", "average": 0.1}, 4, 1),
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
                if name in ("replica", "shard", "velocity", "average", "statistics", "residual", "served"):
                    for key in expected.keys() - {"sent"}:  # which counts from the checkpoint on
                        np.testing.assert_array_equal(got[key], expected[key], err_msg=f"{name}/{key}")


def test_resume_with_other_settings_goes_on_with_the_average_but_not_without_one() -> None:
    of = plan("ako", 1, average=0.1)
    (snapshot, *_) = MemoryDriver(of).execute().snapshots
    kept, _ = manifest([snapshot], of)
    assert snapshot.tensors["average/count"][0] > 0
    changes: tuple[dict[str, Any], ...] = ({"average": 0.2}, {"average": 0.1, "lr": 0.001})
    for other in changes:
        onto = plan("ako", 1, **other)
        check_fits(kept, onto, tensor_types_of(onto.graph, 1, BASE["seed"]))
    for before, after in (({"average": 0.1}, {"average": 0}), ({"average": 0}, {"average": 0.1})):
        of, onto = plan("ako", 1, **before), plan("ako", 1, **after)
        kept, _ = manifest(MemoryDriver(of).execute().snapshots[:1], of)
        with pytest.raises(CheckpointError, match=r"state element 'average'.*averaged weights"):
            check_fits(kept, onto, tensor_types_of(onto.graph, 1, BASE["seed"]))


@pytest.mark.parametrize(
    ("topology", "settings", "nodes"),
    [
        ("ako", {"p": 3, "tau": 0, "every": 2}, 4),
        ("ako", {"p": 5, "tau": 0, "codec": "topk"}, 4),
        ("all_to_all", {"consistency": "ssp", "tau": 1}, 3),
        ("all_to_all", {"consistency": "async", "codec": "threshold"}, 3),
        ("parameter_server", {"consistency": "ssp", "tau": 1, "servers": 2}, 5),
        ("parameter_server", {"n_push": 2, "n_fetch": 4}, 4),
        ("parameter_server", {"rule": "dana-dc", "momentum": 0.9, "servers": 2, "lr": 0.002}, 4),
        ("parameter_server", {"rule": "easgd", "servers": "all"}, 3),
        ("parameter_server", {"codec": "topk", "servers": "all"}, 3),
        ("parameter_server", {"codec": "threshold:per_layer=true", "servers": "all"}, 3),
        ("sparse", {"consistency": "ssp", "tau": 1}, 3),
        ("tree", {}, 3),
        ("tree", {"consistency": "bsp"}, 4),
        ("tree", {"consistency": "ssp", "topology": "star"}, 4),
        ("tree", {"consistency": "assp", "n_sync": 2}, 4),
        ("tree", {"flow": "period"}, 3),
        ("tree", {"waves": "root", "codec": "topk"}, 4),
        ("tree", {"codec": "threshold:per_layer=true"}, 3),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_resume_with_messages_under_way_ends_after_the_same_gradients(
    topology: str, settings: dict[str, Any], nodes: int, seed: int
) -> None:
    """Nobody waits for what was dropped, no fragment is refused, and every worker makes as many gradients as else.

    Asynchronous workers of servers make as many together, but for those that they are at when these have come.
    """
    of = plan(topology, nodes, **settings)
    whole = MemoryDriver(of, order=np.random.default_rng(seed)).execute()
    kept = {number: snapshots for number, snapshots in by_number(whole).items() if len(snapshots) == nodes}
    assert len(kept) >= (1 if settings.get("flow") == "period" else 2)  # what is told now and then skips some
    snapshots = kept[sorted(kept)[len(kept) // 2]]
    again = MemoryDriver(of, nodes=resumed(snapshots, of, of), order=np.random.default_rng(seed + 7)).execute()
    totals = np.zeros(2, np.int64)
    for before, after in zip(whole.nodes, again.nodes, strict=True):
        if "clocks" in before.states:
            made, want = (each.states["clocks"].tensors()["made"].tolist() for each in (after, before))
            totals += (made[0], want[0])
            assert made == want or topology == "parameter_server"
            assert np.isfinite(replica(after)).all()
            assert after.states["clocks"].rejected == 0
    assert abs(totals[0] - totals[1]) <= settings.get("n_fetch", 1) * nodes


@pytest.mark.parametrize(
    ("topology", "settings", "before", "after"),
    [
        ("ako", {"p": 2}, 1, 3),
        ("ako", {"p": 3}, 4, 2),
        ("ako", {"p": 3, "codec": "topk"}, 4, 1),
        ("all_to_all", {"consistency": "bsp"}, 2, 4),
        ("parameter_server", {"consistency": "bsp", "servers": 2}, 4, 6),
        ("parameter_server", {"servers": "all"}, 4, 3),
        ("sparse", {}, 2, 3),
    ],
)
def test_resume_on_other_nodes_has_the_model_and_goes_through_the_rest_of_the_data(
    topology: str, settings: dict[str, Any], before: int, after: int
) -> None:
    of, onto = (plan(topology, nodes, **settings) for nodes in (before, after))
    kept = by_number(MemoryDriver(of).execute())
    number = sorted(kept)[len(kept) // 2]
    nodes = resumed(kept[number], of, onto)
    weights = next(each.tensors["replica/values"] for each in kept[number] if each.node == 0)
    coded = any("ledger/start" in each.tensors for each in kept[number])
    workers = [node for node in nodes if "replica" in node.states]
    for node in workers:
        if coded:
            np.testing.assert_allclose(replica(node), settled(kept[number], node), atol=1e-6)
        else:
            np.testing.assert_array_equal(replica(node), weights)
    shards = [node.states["shard"].tensors()["values"] for node in nodes if "shard" in node.states]
    if shards:
        parts = [each.tensors["shard/values"] for each in kept[number] if "shard/values" in each.tensors]
        np.testing.assert_array_equal(np.sum(shards, axis=0), np.sum(parts, axis=0))
        assert (np.count_nonzero(shards, axis=0) <= 1).all()
    run = MemoryDriver(onto, nodes=nodes).execute()
    alone = MemoryDriver(onto).execute()
    for resumed_node, node in zip(run.nodes, alone.nodes, strict=True):
        if "clocks" in node.states:
            made, want = (each.states["clocks"].tensors()["made"].tolist()[0] for each in (resumed_node, node))
            remade = "images" in nodes[-1].states and made == want + 1  # servers count what was dropped no more
            assert made == want or remade


@pytest.mark.parametrize(
    ("topology", "settings"),
    [
        ("ako", {"p": 3, "tau": 0, "every": 2}),
        ("all_to_all", {"consistency": "bsp"}),
        ("all_to_all", {"consistency": "ssp", "tau": 0}),
        ("parameter_server", {"consistency": "bsp", "servers": "all"}),
        ("sparse", {"consistency": "ssp", "tau": 0}),
        ("tree", {"consistency": "bsp"}),
        ("tree", {"consistency": "ssp"}),
    ],
)
def test_checkpoint_that_falls_on_the_last_gradient_is_whole(topology: str, settings: dict[str, Any]) -> None:
    """Nodes that wait for others' gradients as it falls due have none of their own to make."""
    steps = MemoryDriver(plan(topology, 4, **settings)).execute().nodes[0].states["clocks"].made
    every = {"checkpoint_every": 4 * BASE["batch"] * steps}
    of = compile_graph(job(topology, **every, **settings), 4, seed=BASE["seed"])
    for seed in range(4):
        kept = by_number(MemoryDriver(of, order=np.random.default_rng(seed)).execute())
        assert {number: len(snapshots) for number, snapshots in kept.items()} == {steps: 4}


@pytest.mark.parametrize(("before", "after"), [(9, 3), (3, 9), (5, 5)])
def test_servers_on_other_nodes_count_on_the_images_that_are_in_their_weights(before: int, after: int) -> None:
    """Of 8 workers each has 162 images, and makes gradients of 150 and 12 in an epoch; of 2 five, of 150 and of 49."""
    settings = {"batch": 150, "epochs": 6, "checkpoint_every": 1298, "validate_every": 10**9}
    of, onto = (compile_graph(job("parameter_server", **settings), nodes, seed=3) for nodes in (before, after))
    kept = [each for each in by_number(MemoryDriver(of).execute()).values() if len(each) == before]
    snapshots = kept[len(kept) // 2]
    (had,) = (each.tensors["images/images"] for each in snapshots if "images/images" in each.tensors)
    assert 2 * 1298 < had[0] < 5 * 1298
    nodes = resumed(snapshots, of, onto)
    np.testing.assert_array_equal(nodes[-1].states["images"].tensors()["images"], had)
    run = MemoryDriver(onto, nodes=nodes).execute()
    come = run.nodes[-1].states["images"].tensors()["images"]
    assert 6 * 1298 <= come.min() == come.max() < 6 * 1298 + 150 * (after - 1)


def test_workers_on_other_nodes_count_what_all_had_made_together_however_fast_each_was() -> None:
    of, onto = plan("parameter_server", 5), plan("parameter_server", 3)
    snapshots = by_number(MemoryDriver(of).execute())
    last = sorted(snapshots[max(n for n in snapshots if len(snapshots[n]) == 5)], key=lambda each: each.node)
    workers = of.members()["worker"]
    uneven = [
        dataclasses.replace(each, steps=made, positions=dict.fromkeys(each.positions, made))
        for each, made in zip((last[worker] for worker in workers), (10, 2, 4, 8), strict=True)
    ] + [each for each in last if each.node not in workers]
    kept, _ = manifest(uneven, of)
    for worker in (0, 1):
        how = resumption(kept, onto, worker)
        assert how.steps == {0: 12, 1: 12}
        assert how.positions["source"] == 12


def test_places_that_nobody_has_count_for_no_steps() -> None:
    of = plan("parameter_server", 5)
    onto = JobSpec(name="job", graph=job("parameter_server", **EVERY), nodes=3, max_nodes=6).plan()
    snapshots = by_number(MemoryDriver(of).execute())
    kept, _ = manifest(snapshots[max(snapshots)], of)
    workers = set(onto.members()["worker"]) - set(onto.vacant)
    assert len(workers) == 2
    assert resumption(kept, onto, 0).steps.keys() == workers


def settled(snapshots: list[Snapshot], node: LoadedNode) -> np.ndarray:
    """The model that lacks only what is owed, and in `ako` has what the node itself owes."""
    start: np.ndarray = snapshots[0].tensors["ledger/start"]
    for name in ("residual/sent", "window/residual.sent"):
        start = start - sum(each.tensors[name] for each in snapshots if name in each.tensors)
    window = node.states["window"]
    return start - (window.residual.values if isinstance(window, CodedWindowState) else 0)


@pytest.mark.parametrize("consistency", ["eventual", "bsp"])
def test_resumed_tree_believes_all_that_was_pushed_before(consistency: str) -> None:
    of = plan("tree", 4, consistency=consistency)
    whole = MemoryDriver(of).execute()
    kept = by_number(whole)
    snapshots = kept[sorted(kept)[len(kept) // 2]]
    again = MemoryDriver(of, nodes=resumed(snapshots, of, of)).execute()
    for before, after in zip(whole.nodes, again.nodes, strict=True):
        sharing = after.states["replica"].sharing
        np.testing.assert_array_equal(sharing.counts, before.states["replica"].sharing.counts)
        np.testing.assert_allclose(replica(after), replica(again.nodes[0]), atol=1e-6)
        if consistency == "bsp":
            np.testing.assert_allclose(replica(after), replica(before), atol=1e-6)


def test_tree_is_not_resumed_on_other_nodes() -> None:
    of, onto = plan("tree", 4), plan("tree", 2)
    kept = by_number(MemoryDriver(of).execute())
    with pytest.raises(CheckpointError, match="'replica' is the sum of what 4 nodes hold"):
        resumed(kept[sorted(kept)[0]], of, onto)


def test_resume_where_a_node_had_died_takes_what_is_anybodys_for_it() -> None:
    of = plan("ako", 3, p=2)
    kept = by_number(MemoryDriver(of).execute())
    snapshots = [each for each in kept[sorted(kept)[2]] if each.node != 1]
    nodes = resumed(snapshots, of, of)
    tensors = {each.node: each.tensors for each in snapshots}
    for node, source in ((0, 0), (1, 0), (2, 2)):
        np.testing.assert_array_equal(replica(nodes[node]), tensors[source]["replica/values"])
        assert nodes[node].states["clocks"].tensors()["made"][0] == snapshots[0].number
        assert nodes[node].positions["source"] == snapshots[0].number
    MemoryDriver(of, nodes=nodes).execute()


def test_server_that_is_started_again_alone_has_its_range_back_with_its_images_and_nothing_else() -> None:
    of = plan("parameter_server", 4, servers=2)
    kept, files = manifest(by_number(MemoryDriver(of).execute())[8], of)
    fresh, back = load_nodes(of), ("shard", "images")
    for node in range(4):
        how = resumption(kept, of, node, kinds=frozenset({StateKind.PARTITIONED}))
        loaded = resume(load_nodes(of)[node], of, node, how, [files[file.file] for file in how.files])
        for name, state in loaded.states.items():
            begun = fresh[node].states[name].tensors()
            for key, tensor in state.tensors().items():
                want = kept_tensor(files[f"node-{node}"], f"{name}/{key}") if name in back else begun[key]
                np.testing.assert_array_equal(tensor, want)
        assert ("shard" in loaded.states) == (node >= 2)


def test_checkpoint_of_servers_that_counted_no_images_is_refused() -> None:
    of = plan("parameter_server", 3)
    kept, _ = manifest(by_number(MemoryDriver(of).execute())[8], of)
    older = kept.model_copy(update={"elements": tuple(each for each in kept.elements if each.name != "images")})
    with pytest.raises(CheckpointError, match=r"'images' is partitioned operators\.images:Images.*not there"):
        check_fits(older, of, {})


def kept_tensor(data: bytes, name: str) -> np.ndarray:
    return safetensors.numpy.load(data)[name]


@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (KeyError("gone"), CheckpointError, "does not fit the checkpoint: KeyError: 'gone'"),
        (ValueError(), CheckpointError, "does not fit the checkpoint: ValueError"),
        (ValueError("too long"), CheckpointError, "does not fit the checkpoint: too long"),
        (TypeError("no int"), OperatorError, "raised TypeError: no int"),
    ],
)
def test_element_that_raises_when_it_goes_on_is_named_with_what_it_raised_and_where(
    error: Exception, kind: type[AkoError], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restore(_state: WindowState, _tensors: object) -> None:
        raise error

    of = plan("ako", 1)
    monkeypatch.setattr(WindowState, "restore", restore)
    with pytest.raises(kind) as raised:
        resumed(MemoryDriver(of).execute().snapshots[:1], of, of)
    assert raised.value.what == f"state element 'window' {what}"
    assert raised.value.where.startswith(f"node node-0, {__file__}:")


def test_checkpoint_of_another_graph_or_seed_is_refused() -> None:
    of = plan("ako", 2, p=2)
    kept, _ = manifest(next(iter(by_number(MemoryDriver(of).execute()).values())), of)
    with pytest.raises(CheckpointError, match=r"'barrier' is local operators\.barrier:Barrier.*not there"):
        check_fits(kept, plan("all_to_all", 2, consistency="bsp"), {})
    with pytest.raises(CheckpointError, match="the seed is 4, and in the checkpoint 3"):
        check_fits(kept, of.model_copy(update={"seed": 4}), {})
    with pytest.raises(CheckpointError, match=r"velocity/values is F32 \[\d+\], and in the checkpoint F32 \[0\]"):
        check_fits(kept, of, tensor_types_of(job("ako", p=2, momentum=0.9), 2, BASE["seed"]))
    check_fits(kept, of, tensor_types_of(job("ako", p=2, lr=0.5), 2, BASE["seed"]))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"rule": "easgd"}, "'served' is .*, rule easgd, and in the checkpoint .*, rule asgd;"),
        ({}, {"rule": "yellowfin"}, "rule yellowfin, and in the checkpoint .* rule asgd;"),
        ({"rule": "dana-zero", "momentum": 0.9}, {"rule": "dana-dc", "momentum": 0.9}, "rule dana-dc, momentum 0.9"),
        (
            {"rule": "multi-asgd", "momentum": 0.9},
            {"rule": "dana-zero", "momentum": 0.5},
            "rule dana-zero, momentum 0.5, and in the checkpoint .*, rule multi-asgd, momentum 0.9; resume with the",
        ),
        (
            {"rule": "dana-zero", "momentum": 0.9},
            {"rule": "dana-zero", "momentum": 0.5},
            "rule dana-zero, momentum 0.5, and in the checkpoint .*, rule dana-zero, momentum 0.9;",
        ),
        (
            {"momentum": 0.9},
            {"rule": "dana-slim", "momentum": 0.9},
            "'velocity' is .*, momentum 0.9, 1 ahead, with the rate in it, and in the checkpoint .*, momentum 0.9, w",
        ),
    ],
)
def test_checkpoint_of_another_rule_is_refused(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    of = plan("parameter_server", 2, **before)
    kept, _ = manifest(next(iter(by_number(MemoryDriver(of).execute()).values())), of)
    assert Manifest.decode(kept.encode()) == kept
    with pytest.raises(CheckpointError, match=said):
        check_fits(kept, plan("parameter_server", 2, **after), {})


def test_checkpoint_fits_a_rule_with_another_rate_compensation_and_decay() -> None:
    rule = {"rule": "dana-dc", "momentum": 0.9}
    of = plan("parameter_server", 2, **rule)
    kept, _ = manifest(next(iter(by_number(MemoryDriver(of).execute()).values())), of)
    check_fits(kept, plan("parameter_server", 2, **rule, lr=0.001, dc_lambda=0.25, weight_decay=0.01), {})


def test_job_of_servers_that_goes_on_with_far_fewer_epochs_than_were_made_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operators.source.FEW", 1)
    of, onto = (plan("parameter_server", 2, consistency="async", epochs=epochs) for epochs in (4, 0.02))
    kept = by_number(MemoryDriver(of).execute())
    nodes = resumed(kept[max(kept)], of, onto)
    made = [clocks_of(node).made for node in nodes if "course" in node.states]
    ended = MemoryDriver(onto, nodes=nodes).execute().nodes
    assert [clocks_of(node).made for node in ended if "course" in node.states] <= [made[0] + 1]
