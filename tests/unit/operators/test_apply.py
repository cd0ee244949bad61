from dataclasses import replace

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.operators_api import Checkpoint, Sample
from dataflow.testing.operator_harness import Harness
from operators.apply import Apply, ApplyFromPeers, ApplyMean, Load
from operators.barrier import Barrier
from operators.checkpointing import Checkpoints
from operators.clocks import Clocks
from operators.compression import Residual, Threshold
from operators.course import CourseState
from operators.layout import Layout
from operators.messages import Enough, Fragment, Weights
from operators.passes import Passes
from operators.pulling import AttendUntilEnough
from operators.roll import Roll, RollState
from operators.schedule import Schedule
from operators.vector_state import VectorState

LAYOUT = Layout(bounds=(0, 1, 3, 4))
NODE = NodeContext(index=0, members={"worker": (0, 1, 2)})


def read_only(*values):
    array = np.array(values, np.float32)
    array.flags.writeable = False
    return array


def fragment(origin, low, high, *values, start=0, stop=3, span=0, skips=False):
    return Fragment(origin, start, stop, low, high, span, skips, read_only(*values))


def states(*, own=False, **more):
    return {"replica": VectorState(np.array([10, 20, 30, 40], np.float32)), **more} | {
        "clocks": Clocks(cells=3, origins="worker", own=own)
    }


def replica(harness):
    return harness.states["replica"].values.tolist()


def test_apply_fragment_subtracts_it_from_its_cells_and_ticks():
    apply = Harness(Apply(layout=LAYOUT), node=NODE, states=states())
    apply.send(fragment(1, 0, 2, 1, 2, 3, start=1, stop=3, span=4))
    assert replica(apply) == [10, 19, 28, 37]
    assert apply.states["clocks"].applied(1).tolist() == [0, 2, 2]
    assert apply.states["replica"].values.dtype == np.float32


def test_apply_duplicate_changes_nothing_and_is_reported():
    apply = Harness(Apply(layout=LAYOUT), node=NODE, states=states())
    assert apply.send(fragment(1, 0, 1, 1, 1, 1, 1)) == []
    assert apply.send(fragment(1, 0, 1, 1, 1, 1, 1)) == [Sample("rejected_fragments", 1.0)]
    assert apply.send(fragment(1, 2, 3, 1, 1, 1, 1)) == [Sample("rejected_fragments", 2.0)]
    assert replica(apply) == [9, 19, 29, 39]


def test_apply_own_fragment_spans_nothing_whatever_it_says_to_others():
    apply = Harness(Apply(layout=LAYOUT), node=NODE, states=states(own=True))
    for origin in (0, 1, 2):
        apply.send(fragment(origin, 0, 1, 1, 1, 1, 1, span=5))
    assert replica(apply) == [7, 17, 27, 37]
    assert apply.states["clocks"].slowest() == 1  # its own; those of 1 and 2 are 1 + 5


def test_apply_skipping_fragment_is_taken_after_a_gap():
    apply = Harness(Apply(layout=LAYOUT), node=NODE, states=states())
    assert apply.send(fragment(1, 5, 6, 1, 1, 1, 1, skips=True)) == []
    assert replica(apply) == [9, 19, 29, 39]


def test_apply_node_that_left_is_waited_for_no_more():
    apply = Harness(Apply(layout=LAYOUT), node=NODE, states=states())
    apply.send(fragment(2, 0, 3, 0, 0, 0, 0))
    assert apply.states["clocks"].slowest() == 0
    apply.left(1)
    assert apply.states["clocks"].slowest() == 3


def apply_mean():
    operator = ApplyMean(layout=LAYOUT, schedule=Schedule(lr=0.5))
    return Harness(operator, node=NODE, states=states(own=True, barrier=Barrier(contributors="worker"), roll=Roll()))


def test_apply_mean_last_contribution_steps_along_the_mean():
    apply = apply_mean()
    apply.send(fragment(1, 0, 1, 2, 2, 2, 2))
    apply.send(fragment(0, 0, 1, 4, 4, 4, 4))
    assert replica(apply) == [10, 20, 30, 40]
    apply.send(fragment(2, 0, 1, 6, 0, 0, 0))
    assert replica(apply) == [8, 19, 29, 39]
    assert apply.states["clocks"].slowest() == 1
    assert apply.states["replica"].values.dtype == np.float32


def test_apply_mean_node_that_left_makes_the_divisor_smaller():
    apply = apply_mean()
    apply.send(fragment(0, 0, 1, 4, 4, 4, 4))
    apply.send(fragment(1, 0, 1, 8, 8, 8, 8))
    apply.left(2)
    assert replica(apply) == [7, 17, 27, 37]
    assert apply.states["clocks"].slowest() == 1


def test_apply_mean_contribution_of_a_node_that_has_left_still_counts():
    apply = apply_mean()
    apply.send(fragment(2, 0, 1, 6, 6, 6, 6))
    apply.left(2)
    apply.send(fragment(0, 0, 1, 2, 2, 2, 2))
    apply.send(fragment(1, 0, 1, 4, 4, 4, 4))
    assert replica(apply) == [8, 18, 28, 38]
    assert apply.states["clocks"].slowest() == 1


def test_load_weights_replaces_the_cells_and_ticks_their_server():
    node = NodeContext(index=0, members={"worker": (0,), "server": (1, 2)})
    clocks = Clocks(cells=3, origins="server")
    own = states()
    load = Harness(Load(layout=LAYOUT), node=node, states=own | {"clocks": clocks, "pulled": own["replica"]})
    load.send(Weights(to=0, origin=2, start=1, stop=2, clock=5, values=read_only(7, 8)))
    assert replica(load) == [10, 7, 8, 40]
    assert load.states["clocks"].applied(2).tolist() == [0, 5, 0]
    assert load.states["clocks"].applied(1).tolist() == [0, 0, 0]


def test_load_tells_what_the_server_says_of_staleness():
    node = NodeContext(index=0, members={"worker": (0,), "server": (1, 2)})
    own = states()
    stated = own | {"clocks": Clocks(cells=3, origins="server"), "pulled": own["replica"]}
    load = Harness(Load(layout=LAYOUT), node=node, states=stated)
    answer = Weights(to=0, origin=2, start=1, stop=2, clock=5, values=read_only(7, 8))
    assert load.send(answer) == []
    assert load.send(replace(answer, lag=0)) == [Sample("lag", 0.0)]
    told = load.send(replace(answer, lag=3, gap=0.5, normalised_gap=0.25))
    assert told == [Sample("lag", 3.0), Sample("gap", 0.5), Sample("normalised_gap", 0.25)]


def test_load_says_that_there_are_enough_gradients_once_a_server_has_counted_their_images():
    node = NodeContext(index=0, members={"worker": (0,), "server": (1, 2)})
    own = states()
    stated = own | {"clocks": Clocks(cells=3, origins="server"), "pulled": own["replica"]}
    load = Harness(Load(layout=LAYOUT, epochs=2, passes=Passes(images=10, batch=3)), node=node, states=stated)
    answer = Weights(to=0, origin=2, start=1, stop=2, clock=5, values=read_only(7, 8))
    assert load.send(replace(answer, of_all=8, images=19)) == []
    load.send(replace(answer, of_all=7, images=20))
    load.send(replace(answer, of_all=5, images=15))  # of the other server
    assert load.emitted("enough") == [Enough()]
    clocks = load.states["clocks"]
    assert (clocks.of_all, clocks.come, clocks.enough) == (8, 20, True)


def test_attend_until_enough_lets_a_node_make_no_more_gradients():
    roll = RollState(0, range(2), 0)
    node, own = NodeContext(index=0, members={"worker": (0, 1)}), {"roll": roll, "course": CourseState()}
    attend = Harness(AttendUntilEnough(), node=node, states=own)
    attend.joined(1)
    assert not roll.snapshot().idle
    assert roll.snapshot().of((0, 1)) == (0, 1)
    attend.send(Enough())
    assert roll.snapshot().idle
    attend.joined(1)
    assert roll.snapshot().of((0, 1)) == (0,), "it may be too late for a model"


def coded():
    """The answer with the code of a change of cell 1, by one tau of 4 for each of its two weights."""
    residual = Residual(Threshold(tau=4), 2)
    residual.add(np.array([5, -6], np.float32))
    code = residual.quantise().encode(0, 2)
    return Weights(to=0, origin=2, start=1, stop=2, clock=6, values=code)


def test_load_code_is_added_to_the_replica_that_nothing_else_changes():
    node = NodeContext(index=0, members={"worker": (0,), "server": (2,)})
    own = states()
    own |= {"clocks": Clocks(cells=3, origins="server"), "pulled": own["replica"]}
    load = Harness(Load(layout=LAYOUT, codec=Threshold(tau=4)), node=node, states=own)
    load.send(coded())
    assert replica(load) == [10, 24, 26, 40]
    assert load.states["clocks"].applied(2).tolist() == [0, 6, 0]


def test_load_code_is_added_to_what_was_pulled_and_overwrites_the_workers_own_updates():
    node = NodeContext(index=0, members={"worker": (0,), "server": (2,)})
    pulled = VectorState(np.array([1, 2, 3, 4], np.float32))
    own = states() | {"clocks": Clocks(cells=3, origins="server"), "pulled": pulled}
    load = Harness(Load(layout=LAYOUT, codec=Threshold(tau=4)), node=node, states=own)
    load.send(coded())
    assert pulled.values.tolist() == [1, 6, -1, 4]
    assert replica(load) == [10, 6, -1, 40]
    load.states["replica"].values -= np.float32(1)  # the worker's own
    load.send(coded())
    assert replica(load) == [9, 10, -5, 39]
    load.send(Weights(to=0, origin=2, start=0, stop=2, clock=7, values=read_only(7, 8, 9)))
    assert pulled.values.tolist() == [7, 8, 9, 4]
    assert replica(load) == [7, 8, 9, 39]


def test_apply_from_peers_says_of_one_that_joins_that_its_fragments_are_expected():
    apply = Harness(ApplyFromPeers(layout=LAYOUT), node=NODE, states=states(roll=Roll()))
    clocks, roll = apply.states["clocks"], apply.states["roll"]
    roll.leave(2)
    roll.join(2)
    apply.left(2)
    assert (clocks.origins, roll.due()) == ((1,), "")
    apply.joined(2)
    assert (clocks.fresh, roll.due()) == ({2}, "welcome")


def test_apply_from_peers_keeps_a_node_that_makes_no_more_gradients_as_others_do():
    every = Checkpoints(images=6, batch=1, at_pace=True)  # every second gradient of each of three
    apply = Harness(ApplyFromPeers(layout=LAYOUT, checkpoints=every), node=NODE, states=states(roll=Roll()))
    clocks = apply.states["clocks"]
    clocks.made = clocks.pace = 4
    assert not [each for each in apply.send(fragment(1, 0, 8, 1, 1, 1, 1)) if isinstance(each, Checkpoint)]
    clocks.over = True
    assert Checkpoint(6, steps=4) in apply.send(fragment(2, 0, 6, 1, 1, 1, 1))
    assert not [each for each in apply.send(fragment(2, 6, 7, 1, 1, 1, 1)) if isinstance(each, Checkpoint)]
