import numpy as np
import pytest
from tiny_data import data, numbered

from ako_jobs import ako, all_to_all, parameter_server
from dataflow.engine.memory_driver import MemoryDriver
from dataflow.errors import DataError, OperatorError
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Operator, Sample
from dataflow.plan.compile import compile_graph
from dataflow.ports import In, Out
from dataflow.testing.operator_harness import Harness
from operators.accumulate import Accumulate
from operators.apply import Apply, ApplyMean, Load
from operators.barrier import Barrier
from operators.clocks import Clocks
from operators.data import open_data
from operators.images import Images
from operators.layout import Layout, Sharding
from operators.messages import Batch, Fragment, Gradient, Weights
from operators.quarantine import sound
from operators.roll import Roll
from operators.schedule import Schedule
from operators.serve import Pulls, Serve, ServeMean
from operators.served import ServedCells
from operators.update_rules import Asgd
from operators.vector_state import VectorState
from operators.window import Window

LAYOUT = Layout(bounds=(0, 2))
SHARDING = Sharding(layout=LAYOUT)
NODE = NodeContext(index=0, members={"worker": (0, 1)})
BAD = [np.nan, np.inf, -np.inf]
COUNTED = Sample("poisoned_fragments", 1.0)


def vector(*values):
    return np.array(values, np.float32)


def replica(*values):
    return VectorState(vector(*values))


def fragment(origin, number, *values):
    return Fragment(origin, 0, 1, number - 1, number, 0, skips=False, values=vector(*values))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
@pytest.mark.parametrize("bad", [*BAD, 2e19, -2e19])
def test_sound_one_bad_value_anywhere_is_seen(size, bad):
    values = np.ones(size, np.float32)
    assert sound(values)
    for place in {0, size // 2, size - 1}:
        poisoned = values.copy()
        poisoned[place] = bad
        assert not sound(poisoned)


def test_sound_what_sums_can_hold_passes():
    assert sound(vector(1e19, -1e19, 0.0, 1e-45))
    assert sound(vector())


@pytest.mark.parametrize("bad", BAD)
def test_apply_fragment_that_is_not_finite_ticks_but_changes_nothing(bad):
    apply = Harness(
        Apply(layout=LAYOUT),
        node=NODE,
        states={"replica": replica(5, 6), "clocks": Clocks(cells=1, origins="worker")},
    )
    assert apply.send(fragment(1, 1, 1, bad)) == [COUNTED]
    assert apply.states["clocks"].applied(1).tolist() == [1]
    assert apply.send(fragment(1, 2, 1, 2)) == []
    assert apply.states["replica"].values.tolist() == [4, 4]


def test_apply_mean_contribution_that_is_not_finite_counts_as_zeros_in_the_mean():
    states = {"replica": replica(5, 6), "barrier": Barrier(contributors="worker"), "roll": Roll()}
    states["clocks"] = Clocks(cells=1, origins="worker", own=True)
    mean = Harness(ApplyMean(layout=LAYOUT, schedule=Schedule(lr=1.0)), node=NODE, states=states)
    assert mean.send(fragment(0, 1, np.nan, 1)) == [COUNTED]
    assert mean.send(fragment(1, 1, 2, 4)) == []
    assert mean.states["replica"].values.tolist() == [4, 4]


def test_load_weights_that_are_not_finite_are_not_taken_over_but_answer():
    held = replica(5, 6)
    states = {"replica": held, "pulled": held, "clocks": Clocks(cells=1, origins="worker")}
    load = Harness(Load(layout=LAYOUT), node=NODE, states=states)
    assert load.send(Weights(0, 1, 0, 1, 3, vector(1, np.inf))) == [COUNTED]
    assert held.values.tolist() == [5, 6]
    assert load.states["clocks"].applied(1).tolist() == [3]


def test_serve_push_that_is_not_finite_is_answered_with_the_weights_as_they_were():
    states = {
        "shard": replica(5, 6),
        "pulls": Pulls(workers="worker"),
        "served": ServedCells(rule=Asgd()),
        "images": Images(sharding=SHARDING),
    }
    serve = Harness(Serve(sharding=SHARDING, schedule=Schedule(lr=1.0)), node=NODE, states=states)
    assert COUNTED in serve.send(fragment(1, 1, np.nan, 1))
    (answer,) = serve.emitted("weights")
    assert (answer.to, answer.clock, answer.values.tolist()) == (1, 1, [5, 6])


def test_serve_mean_contribution_that_is_not_finite_counts_as_zeros_in_the_mean():
    states = {"shard": replica(5, 6), "barrier": Barrier(contributors="worker")}
    serve = Harness(ServeMean(sharding=SHARDING, schedule=Schedule(lr=1.0)), node=NODE, states=states)
    assert serve.send(fragment(0, 1, np.nan, 1)) == [COUNTED]
    serve.send(fragment(1, 1, 2, 4))
    assert [answer.values.tolist() for answer in serve.emitted("weights")] == [[4, 4], [4, 4]]


def accumulate(**fields):
    window = Window(layout=LAYOUT, receivers="worker")
    return Harness(Accumulate(**fields), node=NODE, states={"window": window})


def test_accumulate_gradient_that_is_not_finite_is_no_part_of_any_sum():
    harness = accumulate()
    harness.send(Gradient(1, vector(1, 2), 1))
    assert Sample("poisoned_gradients", 1.0) in harness.send(Gradient(2, vector(np.nan, 5), 1))
    harness.send(Gradient(3, vector(10, 20), 1))
    (interval,) = harness.states["window"].take(1, 0, 1)
    assert (interval.low, interval.high, interval.values.tolist()) == (0, 3, [11, 22])


def test_accumulate_one_too_many_fails_naming_the_gradient():
    harness = accumulate(max_poison=1)
    harness.send(Gradient(1, vector(np.nan, 5), 1))
    with pytest.raises(OperatorError, match=r"gradient 2 is not finite \(2 poisoned gradients, max_poison is 1\)"):
        harness.send(Gradient(2, vector(np.nan, 5), 1))


class Poison(Operator):
    """Makes an image of one mini-batch of node 1 infinite."""

    batches = In(Batch)
    poisoned = Out(Batch)

    def process(self, batch: Batch, node: NodeContext) -> Emissions:
        images = batch.images
        if (node.index, batch.step) == (1, 3):
            images = images.copy()
            images[0] = np.inf
        yield self.poisoned(batch.with_images(images))


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        (ako, {"p": 2, "every": 1, "tau": 0}),
        (ako, {"codec": "threshold"}),
        (all_to_all, {"consistency": "bsp"}),
        (all_to_all, {"consistency": "async"}),
        (parameter_server, {"consistency": "ssp", "tau": 2}),
        (parameter_server, {"consistency": "bsp"}),
    ],
)
def test_job_one_poisoned_gradient_stays_with_its_node_and_nobody_waits_for_it(job, settings):
    common = {"epochs": 0.5, "batch": 32, "model": "mlp", "normalise": False, "warm_start": 0, "seed": 5}
    graph = job.build(job.Config.parse(common | settings)).insert_after("source", Poison())
    run = MemoryDriver(compile_graph(graph, 3, compute_tasks=1, seed=5)).execute()
    workers = [node for node in run.nodes if "replica" in node.states]
    (made,) = {node.states["clocks"].made for node in workers}
    assert made >= 4
    assert [node.states["clocks"].poisoned for node in workers].count(1) == 1
    for node in workers:
        assert np.isfinite(node.states["replica"].values).all()


class Rows:
    """A data set of the user's own, whose pixels are floats."""

    n_classes, scale = 2, 1.0

    def __init__(self, rows, labels):
        images, self.train_labels, self.test_images, self.test_labels = numbered(rows)
        self.train_images = images.astype(np.float32)
        self.train_labels = np.array(labels)


def with_nan(name, data_dir):
    rows = Rows(5, [0, 1, 0, 1, 0])
    rows.train_images[3, 0, 0, 1] = np.nan
    return rows


def with_label(name, data_dir):
    return Rows(5, [0, 1, 2, 1, 0])


@pytest.mark.parametrize(
    ("loader", "match"),
    [
        ("with_nan", r"row 3 has pixels that are not finite at data 'x', training part; mend the row"),
        ("with_label", r"the label of row 2 must be 0 to 1 \(got 2\) at data 'x', training part"),
    ],
)
def test_open_data_row_that_cannot_be_learnt_from_is_named(loader, match):
    with pytest.raises(DataError, match=match):
        open_data(data(1).model_copy(update={"loader": f"test_quarantine:{loader}", "name": "x"}))
