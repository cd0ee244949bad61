import math

import pytest
from pydantic import ValidationError
from tiny_data import data

from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.testing.operator_harness import Harness
from operators.course import Course
from operators.due import Due, DueInSuccession, Newest, NewestState
from operators.messages import Progress
from operators.roll import Roll, RollState
from operators.source import Source
from operators.warm_up import WarmUp


def due(*, node=None, **fields):
    return Harness(Due(**fields), node=node or NodeContext(), states={"newest": Newest(), "roll": Roll()})


def progress(step, *, images=16, per_epoch=100):
    """After `step` mini-batches of `images` images, out of `per_epoch` in an epoch."""
    return Progress(step=step, images=step * images, epoch=step * images / per_epoch, loss=0.5)


def let_through(harness, messages):
    """The steps at which something was due, before the end."""
    for message in messages:
        harness.send(message)
    return [message.step for message in harness.emitted("due")]


def test_due_by_images_is_the_first_step_to_reach_each_multiple():
    # 112, 208 and 304 images are the first beyond 100, 200 and 300.
    assert let_through(due(every=100), map(progress, range(1, 20))) == [7, 13, 19]


def test_due_by_images_takes_a_step_that_reaches_a_multiple_exactly():
    assert let_through(due(every=32), map(progress, range(1, 7))) == [2, 4, 6]


def test_due_by_images_is_due_once_at_a_step_past_several_multiples():
    assert let_through(due(every=10), [progress(1, images=64), progress(2, images=64)]) == [1, 2]


def test_due_is_nothing_at_the_first_progress_of_a_node_that_has_come_back():
    # By then 800 images had been seen, of which others had done what was due.
    returned = due(every=100, node=NodeContext(incarnation=1))
    assert let_through(returned, map(progress, range(50, 60))) == [57]
    assert let_through(due(every=100), map(progress, range(50, 60))) == [50, 57]


def test_due_by_epoch_is_the_first_step_of_each_whole_number():
    # Epochs 0.16, 0.32, ...: 1.12 at step 7, 2.08 at step 13, 3.04 at step 19.
    assert let_through(due(), map(progress, range(1, 20))) == [7, 13, 19]


def test_due_by_epoch_takes_a_step_that_ends_an_epoch_exactly():
    assert let_through(due(every="epoch"), [progress(step, images=25) for step in range(1, 9)]) == [4, 8]


def test_due_at_the_end_is_not_due_before():
    assert let_through(due(every="end"), map(progress, range(1, 20))) == []


def test_due_lets_the_message_through_unchanged():
    harness = due(every=16)
    harness.send(progress(1))
    assert harness.emitted("due") == [progress(1)]
    assert not harness.emitted("due")[0].final


@pytest.mark.parametrize("every", [1, 16, 10**9, "epoch", "end"])
def test_due_final_always_comes_with_the_newest_progress(every):
    harness = due(every=every)
    for step in range(1, 6):
        harness.send(progress(step))
    before = len(harness.emitted("due"))
    harness.end()
    *others, final = harness.emitted("due")
    assert len(others) == before
    assert final == Progress(step=5, images=80, epoch=0.8, loss=0.5, final=True)
    assert not any(message.final for message in others)


def test_due_in_turn_is_let_through_by_one_node_each_time_and_the_final_by_the_first():
    """With 16 images a step and something due every 32, steps 2, 4, ... 12 are turns 1 to 6 of three nodes."""
    turns = {}
    for rank in range(3):
        harness = due(every=32, node=NodeContext(index=rank, members={"worker": (0, 1, 2)}))
        assert let_through(harness, map(progress, range(1, 13))) == [2, 4, 6, 8, 10, 12]
        turns[rank] = [message.step for message in harness.emitted("in_turn")]
        harness.end()
        finals = [message.final for message in harness.emitted("in_turn")[len(turns[rank]) :]]
        assert finals == ([True] if rank == 0 else [])
    assert turns == {0: [2, 8], 1: [4, 10], 2: [6, 12]}


@pytest.mark.parametrize(
    "warm_up",
    [(WarmUp(nodes=1, epochs=end),) for end in (0.42, 0.44, 0.48, 0.5, 1.07, 3)]
    + [(WarmUp(nodes=1, epochs=0.31), WarmUp(nodes=2, epochs=0.88))],
)
def test_due_in_turn_of_a_warm_up_is_let_through_by_one_node_and_that_has_images(warm_up):
    """Mini-batches of 16 of each node's 96 images, and something due at each of them."""
    nodes, read = [NodeContext(index=rank, members={"worker": (0, 1, 2)}) for rank in range(3)], data(288)
    sources = [
        Harness(
            Source(data=read, batch=16, epochs=2, warm_up=warm_up),
            node=node,
            states={"roll": RollState(node.index, range(3), 0), "course": Course()},
        )
        for node in nodes
    ]
    dues, images, turns = [due(every=16, node=node) for node in nodes], 0, []
    for step in range(12):
        batches = [harness.send(Tick(step, 0, 1))[0].message for harness in sources]
        images += batches[0].of_all
        for rank, (batch, harness) in enumerate(zip(batches, dues, strict=True)):
            sent = harness.send(Progress(step + 1, images, batch.epoch, 0.5, readers=batch.readers))
            if any(effect.port == "in_turn" for effect in sent):
                turns.append((step, rank))
                assert batch.size
    assert [step for step, _ in turns] == list(range(12))
    assert len({rank for _, rank in turns}) > 1 or warm_up[-1].epochs > 2


def test_due_final_comes_even_if_nothing_was_done():
    harness = due()
    harness.end()
    (final,) = harness.emitted("due")
    assert (final.step, final.images, final.epoch, final.final) == (0, 0, 0.0, True)
    assert math.isnan(final.loss)


def test_due_refuses_words_it_does_not_know():
    with pytest.raises(ValidationError):
        Due(every="month")


def test_newest_snapshot_is_the_newest_message_due_or_not():
    harness = due(every=1000)
    harness.send(progress(1))
    harness.send(progress(2))
    assert harness.states["newest"].snapshot() == progress(2)


def test_newest_restores_its_message():
    state = NewestState(progress(5))
    other = Newest().create(NodeContext())
    assert math.isnan(other.progress.loss)
    other.restore(state.tensors())
    assert other.snapshot() == progress(5)
    assert isinstance(other.progress.step, int)


def reduced(indexes, members=(4, 5, 6, 7)):
    """Nodes of a role of which the first has left, and the third has joined and not caught up."""
    nodes = {index: due(node=NodeContext(index=index, members={"worker": members}), every=1) for index in indexes}
    for harness in nodes.values():
        roll = harness.states["roll"]
        roll.leave(4)
        roll.leave(6)
        roll.join(6)
    return nodes


def test_due_turn_and_final_of_nodes_that_have_died_or_not_caught_up_pass_to_the_others():
    nodes, turns = reduced((5, 7)), []
    for images in (1, 2, 3):
        progress = Progress(images, images, 0.0, 0.0)
        turns += [index for index, node in nodes.items() if any(e.port == "in_turn" for e in node.send(progress))]
    assert turns == [5, 7, 5]
    assert [any(effect.port == "in_turn" for effect in node.end()) for node in nodes.values()] == [True, False]


def shares(harness):
    return [(share.turn, share.nodes.tolist(), share.final) for share in harness.emitted("shared")]


def test_due_shared_is_let_through_by_all_who_are_there_and_the_final_by_the_first_alone():
    nodes = {index: due(node=NodeContext(index=index, members={"worker": (4, 5, 7)}), every=1) for index in (4, 7)}
    for harness in nodes.values():
        harness.states["roll"].leave(5)
        harness.send(Progress(3, 2, 0.25, 0.5))
        harness.end()
    assert shares(nodes[4]) == [(2, [4, 7], False), (2, [4], True)]
    assert shares(nodes[7]) == [(2, [4, 7], False)]
    share = nodes[7].emitted("shared")[0]
    assert (share.step, share.epoch, share.loss) == (3, 0.25, 0.5)


def test_due_shared_is_done_in_turn_by_one_alone_while_the_first_of_the_role_is_away():
    nodes = reduced((5, 7))
    for harness in nodes.values():
        for images in (1, 2, 3):
            harness.send(Progress(images, images, 0.0, 0.0))
        harness.end()
    assert shares(nodes[5]) == [(1, [5], False), (3, [5], False), (3, [5], True)]
    assert shares(nodes[7]) == [(2, [7], False)]


def test_due_shared_is_not_for_one_that_has_no_images_in_a_warm_up():
    harness = due(every=1, node=NodeContext(index=1, members={"worker": (0, 1)}))
    harness.send(Progress(1, 1, 0.0, 0.0, readers=1))
    assert shares(harness) == []
    harness.send(Progress(2, 2, 0.0, 0.0))
    assert shares(harness) == [(2, [0, 1], False)]


def finals_in_succession(*left, rank=1):
    """The final messages that a node of three does more with than others, after others have ended or died."""
    node = NodeContext(index=rank, members={"worker": (0, 1, 2)})
    harness = Harness(DueInSuccession(), node=node, states={"newest": Newest(), "roll": Roll()})
    for member, ended in left:
        harness.left(member, ended=ended)
    harness.end()
    return [message.final for message in harness.emitted("in_turn")]


def test_due_final_is_let_through_by_the_next_node_if_the_first_has_died_and_not_if_it_has_ended():
    assert finals_in_succession() == []
    assert finals_in_succession((0, True)) == []
    assert finals_in_succession((0, False)) == [True]
    assert finals_in_succession((0, False), rank=2) == []
    assert finals_in_succession((1, False), (0, False), rank=2) == [True]


def test_due_final_is_not_left_to_a_node_that_has_come_in_the_place_of_one_that_died():
    node = NodeContext(index=1, members={"worker": (0, 1, 2)})
    harness = Harness(DueInSuccession(), node=node, states={"newest": Newest(), "roll": Roll()})
    harness.left(0)
    harness.states["roll"].leave(0)
    harness.states["roll"].join(0)
    harness.states["roll"].late.discard(0)
    harness.end()
    assert [message.final for message in harness.emitted("in_turn")] == [True]


def test_due_final_is_let_through_by_whoever_is_there_if_all_have_died_once():
    node = NodeContext(index=2, members={"worker": (0, 2)}, incarnation=1)
    roll = RollState(2, (0, 2), 1)
    roll.settle()
    harness = Harness(DueInSuccession(), node=node, states={"newest": Newest(), "roll": roll})
    harness.left(0)
    roll.leave(0)
    harness.end()
    assert [message.final for message in harness.emitted("in_turn")] == [True]
