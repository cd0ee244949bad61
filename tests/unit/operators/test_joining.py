"""What nodes note of each other's words while some die and come back, as each operator hears in its own time."""

from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import EndOfData
from dataflow.testing.operator_harness import Harness
from operators.clocks import Clocks
from operators.course import Course
from operators.joining import Listen, Talk
from operators.kept import Kept
from operators.messages import Word
from operators.roll import Roll

NODE = NodeContext(index=0, members={"worker": (0, 1, 2)})


def listen():
    return Harness(Listen(), node=NODE, states={"roll": Roll(), "clocks": Clocks(cells=2, origins="worker")})


def comes_back(harness, member):
    """A node has died and come back, as all but `Listen` have heard; its welcome's number."""
    roll, clocks = harness.states["roll"], harness.states["clocks"]
    roll.leave(member)
    roll.join(member)
    clocks.join(member)
    return roll.welcome()[1]


def test_listen_notes_where_a_node_begins_and_ends_and_tells_who_waits_for_all():
    hears = listen()
    turn = comes_back(hears, 1)
    hears.left(1)
    hears.joined(1)
    begins, ends = Word("settled", 1, 0, turn, 5), Word("through", 1, 0, number=8)
    hears.send(begins)
    assert (hears.states["clocks"].fresh, hears.states["clocks"].since) == (set(), {1: 5})
    assert (hears.states["roll"].late, hears.states["roll"].inbox) == (set(), [])
    hears.send(ends)
    assert hears.states["clocks"].last == {1: 8}
    assert hears.emitted("settled") == [begins, ends]


def test_listen_takes_no_word_of_a_node_that_died_for_one_of_another_in_its_place():
    hears = listen()
    before = comes_back(hears, 1)
    hears.joined(1)
    turn = comes_back(hears, 1)
    for word in (Word("settled", 1, 0, before, 5), Word("through", 1, 0, number=8), Word("lend", 1, 0, 3)):
        assert hears.send(word) == []
    clocks, roll = hears.states["clocks"], hears.states["roll"]
    assert (clocks.fresh, clocks.last, roll.late, roll.asked) == ({1}, {}, {1}, {})
    hears.joined(1)
    assert hears.send(Word("settled", 1, 0, before, 5)) == []
    hears.send(Word("settled", 1, 0, turn, 6))
    assert clocks.since == {1: 6}


def test_talk_welcomes_a_node_once_it_is_followed_in_the_place_of_the_one_that_died():
    states = {
        "roll": Roll(),
        "course": Course(),
        "window": Kept(receivers="worker"),
        "clocks": Clocks(cells=2, origins="worker"),
    }
    talk = Harness(Talk(), node=NODE, states=states)
    talk.left(1)
    talk.joined(1)
    assert not talk.ready()
    talk.states["roll"].follow(1)
    assert talk.ready()


def test_talk_of_a_node_that_is_stopped_before_it_has_caught_up_says_that_it_makes_none_and_ends():
    node = NodeContext(index=0, members={"worker": (0, 1, 2)}, incarnation=1)
    states = {
        "roll": Roll(),
        "course": Course(),
        "window": Kept(receivers="worker"),
        "clocks": Clocks(cells=2, origins="worker"),
    }
    talk = Harness(Talk(), node=node, states=states)
    assert not talk.ready()
    talk.states["course"].stop()
    assert not talk.ready()  # nobody may be there who has what was learnt
    talk.states["roll"].welcomed(Word("welcome", 1, 0, 7, 5))
    assert talk.ready()
    *said, end = talk.send(Tick(0, 0, 1))
    assert ([(each.to, each.message.kind) for each in said], end) == (
        [(1, "through"), (2, "through"), (0, "through")],
        EndOfData(),
    )
    assert talk.states["roll"].idle
