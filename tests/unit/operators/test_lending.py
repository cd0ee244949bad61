"""Whose gradients a lender waits for, and what is noted of a loan, while nodes die and come back."""

import numpy as np

from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.clocks import Clocks
from operators.kept import Kept
from operators.lending import Borrow, Lend, Loan
from operators.messages import Piece, Word
from operators.roll import Roll
from operators.vector_state import VectorState

MEMBERS = {"worker": (0, 1, 2, 3)}
CELLS = slice(0, 2)


def vectors():
    return {name: VectorState(np.zeros(2, np.float32)) for name in ("replica", "statistics")}


def lender():
    """Node 0, which node 3 has asked for a loan, in which node 1 is to be applied up to gradient 6."""
    states = {"roll": Roll(), "window": Kept(receivers="worker"), "clocks": Clocks(cells=2, origins="worker")}
    lend = Harness(Lend(), node=NodeContext(index=0, members=MEMBERS), states=vectors() | states)
    lend.states["clocks"].join(3)
    lend.states["clocks"].leave(2)
    asks = Word("lend", 3, 0, 9, origins=np.array([0, 1]), applied=np.array([0, 6]))
    lend.states["roll"].asked[3] = asks
    return lend, asks


def test_lend_waits_until_what_was_asked_for_is_applied():
    lend, _ = lender()
    lend.states["clocks"].advance(1, CELLS, 0, 5)
    assert not lend.ready()
    lend.states["clocks"].advance(1, CELLS, 5, 6)
    assert lend.ready()


def test_lend_does_not_wait_for_a_node_in_the_place_of_the_one_that_welcomed_and_died():
    lend, asks = lender()
    lend.states["clocks"].advance(1, CELLS, 0, 5)
    lend.states["clocks"].join(1)  # it begins once node 3 has welcomed it, which comes behind the loan
    assert lend.ready()
    lend.send(asks)
    assert lend.emitted("pieces")[-1].origins.tolist() == [0]


def test_lend_waits_for_where_a_node_begins_though_gradients_of_it_are_ahead_of_that():
    lend, asks = lender()
    clocks = lend.states["clocks"]
    clocks.join(1)
    clocks.expect(1)
    clocks.advance(1, CELLS, 6, 7)
    assert not lend.ready()
    clocks.begin(1, 6)
    assert lend.ready()
    lend.send(asks)
    last = lend.emitted("pieces")[-1]
    assert dict(zip(last.origins.tolist(), last.applied.tolist(), strict=True)) == {0: [0, 0], 1: [7, 7]}


def test_borrow_takes_nothing_of_a_loan_for_that_of_a_node_that_has_come_since():
    node = NodeContext(index=3, members=MEMBERS, incarnation=1)
    states = {"roll": Roll(), "loan": Loan(), "clocks": Clocks(cells=2, origins="worker")}
    borrow = Harness(Borrow(), node=node, states=vectors() | states)
    clocks, turn = borrow.states["clocks"], borrow.states["roll"].turn
    clocks.join(1)
    applied, last = np.array([[6, 6], [9, 9]]), np.array([-1, 9])
    borrow.send(Piece(0, 3, turn, "clocks", 0, np.zeros(0, np.float32), 9, 9, np.array([0, 1]), last, applied))
    assert borrow.states["roll"].lent
    assert (clocks.fresh, clocks.since, clocks.last) == ({1}, {0: 6}, {})
    assert clocks.applied(1).tolist() == [0, 0]
