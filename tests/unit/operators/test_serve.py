import numpy as np
import pytest

from dataflow.node_context import NodeContext
from dataflow.operators_api import Checkpoint
from dataflow.testing.operator_harness import Harness
from operators.barrier import Barrier
from operators.checkpointing import Checkpoints
from operators.compression import Residual, TopK
from operators.images import Images
from operators.layout import Layout, Sharding
from operators.messages import Fragment
from operators.passes import Passes
from operators.schedule import Schedule
from operators.serve import Pulls, Serve, ServeMean
from operators.served import ServedCells
from operators.vector_state import VectorState

LAYOUT = Layout(bounds=(0, 1, 2))
SHARDING = Sharding(layout=LAYOUT)
SERVER = NodeContext(index=5, role="server", members={"worker": (0, 1), "server": (5,)})
HALF = Schedule(lr=0.5)
WARMING = Schedule(lr=0.5, warmup=1.0, passes=Passes(images=4, batch=1))
"""Of two workers' gradients: 0.25, 0.375, then 0.5."""


def push(worker, high, value=2.0, *, low=None, start=0, stop=2, images=1):
    values = np.full(stop - start, value, np.float32)
    values.flags.writeable = False
    low = high - 1 if low is None else low
    return Fragment(worker, start, stop, low, high, span=0, skips=False, values=values, images=images)


def shard():
    return VectorState(np.array([10, 20], np.float32))


def serve(schedule=HALF, **fields):
    states = {
        "shard": shard(),
        "pulls": Pulls(workers="worker"),
        "served": ServedCells(),
        "images": Images(sharding=SHARDING),
    }
    return Harness(Serve(sharding=SHARDING, schedule=schedule, **fields), node=SERVER, states=states)


def serve_mean():
    states = {"shard": shard(), "barrier": Barrier(contributors="worker")}
    return Harness(ServeMean(sharding=SHARDING, schedule=HALF), node=SERVER, states=states)


def brief(effects):
    return [(e.message.to, e.message.clock, e.message.start, e.message.values.tolist()) for e in effects]


def values(harness):
    return harness.states["shard"].values


def test_serve_asynchronous_applies_and_answers_at_once():
    server = serve()
    assert brief(server.send(push(0, 1))) == [(0, 1, 0, [9, 19])]
    assert brief(server.send(push(0, 2))) == [(0, 2, 0, [8, 18])]
    assert brief(server.send(push(1, 1, 4.0))) == [(1, 1, 0, [6, 16])]
    assert values(server).dtype == np.float32
    assert {message.origin for message in server.emitted("weights")} == {5}


def test_serve_answer_is_not_changed_by_later_gradients():
    server = serve()
    (effect,) = server.send(push(0, 1))
    server.send(push(1, 1))
    assert effect.message.values.tolist() == [9, 19]


def test_serve_rate_is_that_of_the_gradients_number():
    server = serve(WARMING)  # two each: 0.25, 0.375
    server.send(push(0, 1))
    assert values(server).tolist() == [9.5, 19.5]
    server.send(push(0, 2))
    assert values(server).tolist() == [8.75, 18.75]


def test_serve_shared_answers_how_many_gradients_have_come_of_how_many_images_and_the_rate_goes_by_these():
    server = serve(WARMING, shared=True)  # behind 0, 1, 3 and 4 of 4 images: 0.25, 0.3125, 0.4375, 0.5
    sizes = enumerate((1, 2, 1, 3), start=1)
    found = [server.send(push(0, number, 16.0, images=images))[0].message for number, images in sizes]
    assert [(message.of_all, message.images) for message in found] == [(1, 1), (2, 3), (3, 4), (4, 7)]
    assert [message.values.tolist()[0] for message in found] == [6, 1, -6, -14]
    answer = server.send(push(1, 2, low=0, images=2))[0].message
    assert (answer.of_all, answer.images) == (6, 9)
    assert [(effect.message.of_all, effect.message.images) for effect in server.end()] == [(6, 9)] * 2
    answer = serve().send(push(0, 1))[0].message
    assert (answer.of_all, answer.images) == (0, 0)


def test_serve_counts_the_images_of_gradients_that_came_and_no_others_of_a_worker_that_came_back():
    server = serve(WARMING, shared=True)
    server.send(push(0, 7, images=3))
    assert server.send(push(1, 0, low=0, images=0))[0].message.images == 3
    assert server.send(push(1, 8, images=2))[0].message.images == 5
    assert server.send(push(1, 10, images=2))[0].message.images == 7  # its ninth was lost


def test_serve_counts_the_images_of_a_gradient_that_is_not_finite():
    server = serve(shared=True)
    server.send(push(0, 1, np.nan, images=3))
    assert server.emitted("weights")[0].images == 3


def test_images_that_servers_keep_are_those_of_their_cells_however_many_servers_go_on():
    sharding = SHARDING
    one, other = (
        Images(sharding=sharding).create(NodeContext(index=index, role="server", members={"server": (4, 5)}))
        for index in (4, 5)
    )
    one.add((0, 1), 7)
    other.add((1, 2), 5)
    kept = {"images": one.kept()["images"] + other.kept()["images"]}
    assert kept["images"].tolist() == [7, 5]
    other.restore(kept)
    assert other.kept()["images"].tolist() == [0, 5]
    alone = Images(sharding=sharding).create(SERVER)
    alone.restore(kept)
    assert (alone.of((0, 1)), alone.of((1, 2)), alone.of((0, 2))) == (7, 5, 5)
    with pytest.raises(ValueError, match=r"images are of \(3,\) cells, not \(2,\)"):
        alone.restore({"images": np.zeros(3, np.int64)})


def test_serve_ssp_answers_when_the_slowest_catches_up():
    server = serve(tau=1)
    assert brief(server.send(push(0, 1))) == [(0, 1, 0, [9, 19])]
    assert server.send(push(0, 2)) == []
    assert brief(server.send(push(1, 1))) == [(0, 2, 0, [7, 17]), (1, 1, 0, [7, 17])]


def test_serve_ssp_of_zero_answers_everybody_at_once_like_bsp():
    server = serve(tau=0)
    for number in (1, 2, 3):
        assert server.send(push(0, number)) == []
        answers = server.send(push(1, number))
        assert [(e.message.to, e.message.clock) for e in answers] == [(0, number), (1, number)]
        assert answers[0].message.values is answers[1].message.values


def test_serve_ssp_runs_of_cells_are_answered_for_themselves():
    server = serve(tau=0)
    assert server.send(push(0, 1, stop=1)) == []
    assert server.send(push(0, 1, start=1)) == []
    assert brief(server.send(push(1, 1, start=1))) == [(0, 1, 1, [18]), (1, 1, 1, [18])]


def test_serve_worker_leaving_releases_those_who_waited_for_it():
    server = serve(tau=0)
    server.send(push(0, 1))
    assert brief(server.left(1)) == [(0, 1, 0, [9, 19])]
    assert brief(server.send(push(0, 2))) == [(0, 2, 0, [8, 18])]


def test_serve_everybody_left_releases_all():
    server = serve(tau=0)
    server.send(push(0, 1))
    assert brief(server.left(0)) == []
    assert brief(server.left(1)) == [(0, 1, 0, [9, 19])]


def test_serve_fetch_every_four_answers_pushes_that_pass_a_multiple():
    server = serve(fetch_every=4)
    assert server.send(push(0, 2, low=0)) == []
    assert [e.message.clock for e in server.send(push(0, 5, low=2))] == [5]
    assert server.send(push(0, 6, low=5)) == []
    assert [e.message.clock for e in server.send(push(0, 8, low=6))] == [8]
    assert server.send(push(0, 9, low=8)) == []


def test_serve_end_sends_every_worker_the_final_weights():
    server = serve()
    assert brief(server.end()) == [(0, 0, 0, [10, 20]), (1, 0, 0, [10, 20])]
    server.send(push(0, 3))
    assert brief(server.end()) == [(0, 3, 0, [9, 19]), (1, 0, 0, [9, 19])]


def test_serve_mean_applies_the_mean_once_and_answers_all():
    server = serve_mean()
    assert server.send(push(1, 1, 2.0)) == []
    assert values(server).tolist() == [10, 20]
    assert brief(server.send(push(0, 1, 6.0))) == [(0, 1, 0, [8, 18]), (1, 1, 0, [8, 18])]
    assert values(server).dtype == np.float32


def test_serve_mean_worker_that_left_makes_the_divisor_smaller():
    server = serve_mean()
    server.send(push(0, 1, 6.0))
    assert brief(server.left(1)) == [(0, 1, 0, [7, 17])]
    assert brief(server.send(push(0, 2, 2.0))) == [(0, 2, 0, [6, 16])]


def test_serve_mean_contribution_of_a_worker_that_has_left_still_counts():
    server = serve_mean()
    server.send(push(1, 1, 2.0))
    server.left(1)
    assert brief(server.send(push(0, 1, 6.0))) == [(0, 1, 0, [8, 18]), (1, 1, 0, [8, 18])]


def test_serve_mean_end_sends_final_weights_to_workers_that_stopped_earlier():
    server = serve_mean()
    server.send(push(0, 1))
    server.send(push(1, 1))
    server.left(1)
    server.send(push(0, 2))
    assert brief(server.end()) == [(1, 2, 0, [8, 18])]


def test_serve_mean_end_sends_nothing_to_workers_that_have_it():
    server = serve_mean()
    assert brief(server.end()) == [(0, 0, 0, [10, 20]), (1, 0, 0, [10, 20])]
    server.send(push(0, 1))
    server.send(push(1, 1))
    assert server.end() == []


@pytest.mark.parametrize("kind", [Serve, ServeMean])
def test_serve_compiles_the_codec_before_fragments_come(kind, monkeypatch):
    compiled = []
    monkeypatch.setattr(Residual, "compile", compiled.append)
    kind(sharding=SHARDING, schedule=HALF).open(SERVER)
    assert compiled == []
    kind(sharding=SHARDING, schedule=HALF, codec=TopK()).open(SERVER)
    assert compiled == [TopK()]


@pytest.mark.parametrize("fields", [{"fetch_every": 0}, {"tau": "soon"}])
def test_serve_impossible_parameters_are_refused(fields):
    with pytest.raises(ValueError, match="validation error"):
        Serve(sharding=SHARDING, schedule=HALF, **fields)


def test_serve_checkpoints_are_due_by_the_slowest_worker_or_where_nobody_waits_by_all_on_average():
    """Every gradient of two workers is a checkpoint; one pushes four, the other one at the end."""
    for at_pace, due in ((False, [1]), (True, [1, 2])):
        checkpoints = Checkpoints(images=2, batch=1, at_pace=at_pace)
        server, found = serve(checkpoints=checkpoints), []
        for worker, number in ((0, 1), (0, 2), (0, 3), (0, 4), (1, 1)):
            found += [each.number for each in server.send(push(worker, number)) if isinstance(each, Checkpoint)]
        assert found == due
