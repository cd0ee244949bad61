"""What operators ask for by name."""

from __future__ import annotations

from dataflow.engine.needs import Asked, asked_by
from dataflow.graph.specs import UseSpec
from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In
from dataflow.state import Writes
from tests.unit.engine.engine_rig import Num


class Draws(Operator):
    numbers = In(Num)

    def process(self, num: Num, rng: object) -> Emissions:
        yield from ()


class Named(Draws):
    """Has a state element of the name that random numbers have."""

    rng = Writes()


USE = UseSpec(name="rng", element="counts", writes=True)


def test_rng_is_random_numbers_unless_a_state_element_of_that_name_is_declared() -> None:
    assert Asked(Draws, ()).draws == {"process"}
    named = Asked(Named, (USE,))
    assert (named.draws, named.arguments["process"]) == (frozenset(), [("rng", "counts", True)])
    assert named.needs("process").writes == {"counts"}


def test_what_an_operator_asks_for_is_looked_up_once_for_all_nodes() -> None:
    assert asked_by(Draws, ()) is asked_by(Draws, ())
