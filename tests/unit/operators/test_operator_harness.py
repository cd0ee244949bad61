from dataclasses import dataclass

import numpy as np
import pytest

from dataflow.errors import OperatorError
from dataflow.message import Message, Sharded
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, Gather, Operator, Sample, random_generator
from dataflow.ports import In, Out
from dataflow.state import Reads, State, StateElement, Writes
from dataflow.testing.operator_harness import Harness


@dataclass(frozen=True, slots=True)
class Number(Message):
    value: int


@dataclass(frozen=True, slots=True)
class Piece(Sharded):
    value: int


@dataclass
class Total(State):
    value: int = 0

    def snapshot(self):
        return Total(self.value)

    def tensors(self):
        return {"value": np.array([self.value])}

    def restore(self, tensors):
        self.value = int(tensors["value"][0])


class Zero(StateElement):
    def create(self, node):
        return Total(100 * node.index)


class AddUp(Operator):
    numbers = In(Number)
    sums = Out(Number)
    total = Writes()
    other = Reads()

    def process(self, number, total, other, node) -> Emissions:
        total.value += number.value
        other.value += 1000  # a snapshot: nobody sees it
        yield Sample("seen", float(number.value))
        yield self.sums(Number(total.value), to=node.index)

    def on_end(self, total) -> Emissions:
        yield self.sums(Number(-total.value))

    def on_left(self, node_, total) -> Emissions:
        total.value -= node_
        yield from ()


class Roll(Operator):
    pieces = In(Piece)
    rolls = Out(Number)

    def process(self, piece, rng) -> Emissions:
        yield self.rolls(Number(int(rng.integers(1 << 30))))


class Collect(Gather):
    pieces = In(Piece)
    sums = Out(Number)
    total = Writes()

    def ready(self, total):
        return total.value < 10

    def process(self, piece, total):
        total.value += 1000  # a snapshot too: parts run at the same time
        return piece.value

    def merge(self, parts, total) -> Emissions:
        total.value += sum(parts)
        yield self.sums(Number(int("".join(map(str, parts)))))


NODE = NodeContext(index=1, members={"worker": (0, 1)}, seed=7)


def add_up():
    return Harness(AddUp(), node=NODE, states={"total": Zero(), "other": Total(5)})


def test_send_gives_live_writes_snapshots_of_reads_and_the_node():
    harness = add_up()
    effects = harness.send(Number(3))
    assert effects[0] == Sample("seen", 3.0)
    assert (effects[1].message, effects[1].to) == (Number(103), 1)
    assert (harness.states["total"].value, harness.states["other"].value) == (103, 5)


def test_emitted_collects_over_messages_and_the_end():
    harness = add_up()
    harness.send(Number(1))
    harness.send(Number(2))
    harness.end()
    assert harness.emitted("sums") == [Number(101), Number(103), Number(-103)]
    assert len(harness.effects) == 5


def test_emitted_unknown_port_raises():
    with pytest.raises(OperatorError, match=r"no such output port \(got sum\).*did you mean 'sums'"):
        add_up().emitted("sum")


def test_left_runs_the_hook():
    harness = add_up()
    assert harness.left(40) == []
    assert harness.states["total"].value == 60


def test_end_and_left_without_hooks_yield_nothing():
    harness = Harness(Roll())
    assert (harness.end(), harness.left(3), harness.ready()) == ([], [], True)


def test_send_rng_is_the_engines_for_operator_node_step_and_shard():
    harness = Harness(Roll(), node=NODE, name="dice")
    (effect,) = harness.send(Piece(5, 1, 2, value=0))
    want = random_generator(7, "dice", 1, 5, 1).integers(1 << 30)
    assert effect.message.value == want


def test_name_left_out_is_the_class_in_snake_case():
    (effect,) = Harness(Roll(), node=NODE).send(Piece(0, 0, 1, value=0))
    assert effect.message.value == random_generator(7, "roll", 1, 0, 0).integers(1 << 30)


def test_gather_merges_in_shard_order_once_all_shards_came():
    harness = Harness(Collect(), states={"total": Total()})
    assert harness.send(Piece(0, 1, 3, value=2)) == []
    assert harness.send(Piece(0, 2, 3, value=3)) == []
    assert [effect.message for effect in harness.send(Piece(0, 0, 3, value=1))] == [Number(123)]
    assert harness.states["total"].value == 6
    assert harness.ready()
    harness.merge([harness.part(Piece(1, 0, 1, value=5))])
    assert harness.emitted("sums") == [Number(123), Number(5)]
    assert not harness.ready()


def test_state_missing_or_unknown_raises():
    with pytest.raises(OperatorError, match=r"uses a state element that the test does not give \(got total\)"):
        Harness(Collect())
    with pytest.raises(OperatorError, match=r"declares no such state element \(got totals\); did you mean 'total'"):
        Harness(Collect(), states={"total": Total(), "totals": Total()})


def test_send_what_the_operator_raises_names_the_line():
    with pytest.raises(OperatorError, match=r"operator 'collect' raised TypeError.*test_operator_harness\.py:"):
        Harness(Collect(), states={"total": Total()}).merge(["a"])


@pytest.mark.parametrize("send", [Harness.send, Harness.part])
def test_send_message_for_no_port_raises(send):
    with pytest.raises(OperatorError, match=r"Collect takes no Number; send one of: Piece"):
        send(Harness(Collect(), states={"total": Total()}), Number(1))


class Forgets(Operator):
    numbers = In(Number)
    doubled = Out(Number)

    def process(self, number) -> None:
        Number(2 * number.value)


def test_send_to_an_operator_that_forgets_to_yield_raises_as_the_engine_does():
    with pytest.raises(OperatorError, match=r"'forgets' returned from process what is no effects \(got None\)"):
        Harness(Forgets()).send(Number(1))
