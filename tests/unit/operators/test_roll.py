import numpy as np

from dataflow.node_context import NodeContext
from operators.messages import Word
from operators.roll import Present, Roll, RollState

MEMBERS = (0, 1, 2, 3)


def joiner(*gone):
    roll = RollState(3, MEMBERS, 1)
    for member in gone:
        roll.leave(member)
    return roll


def welcome(origin, number, *, turn=1):
    return Word("welcome", origin, 3, turn, number)


def test_roll_of_a_first_incarnation_has_nothing_to_do_and_is_over_once_it_makes_no_more():
    roll = RollState(0, MEMBERS, 0)
    assert (roll.settled, roll.due()) == (True, "")
    assert [roll.is_over(closed=closed) for closed in (False, True)] == [False, True]


def test_roll_of_a_node_alone_is_over_at_once():
    assert RollState(0, (0,), 0).is_over(closed=False)


def test_roll_of_a_joiner_goes_from_welcomes_to_settling_in_order():
    roll = joiner(2)
    assert roll.due() == ""
    roll.welcomed(welcome(0, 7, turn=11))
    assert roll.due() == ""
    roll.welcomed(welcome(1, 5, turn=12))
    assert roll.due() == "borrow"
    word = roll.borrow()
    assert (word.to, word.origins.tolist(), word.applied.tolist()) == (0, [0, 1], [7, 5])
    assert roll.due() == ""
    roll.lent = True
    assert roll.due() == "begin"
    assert roll.told() == {0: 11, 1: 12}
    roll.begins(Word("begun", 0, 3, 11, 8))
    roll.begins(Word("begun", 1, 3, 99, 50))  # to somebody who has died
    assert roll.due() == ""
    roll.begins(Word("begun", 1, 3, 12, 9))
    assert roll.due() == "settle"
    assert roll.settle().number == 9
    assert roll.snapshot() == Present(settled=True, gone=frozenset({2}), later=frozenset({3}))


def test_roll_of_a_joiner_whose_lender_dies_borrows_of_the_next_with_another_number():
    roll = joiner(2)
    for origin in (0, 1):
        roll.welcomed(welcome(origin, 5))
    first = roll.borrow()
    roll.leave(0)
    assert roll.due() == "borrow"
    second = roll.borrow()
    assert (first.to, second.to) == (0, 1)
    assert second.turn == first.turn + 1


def test_roll_of_a_joiner_whose_peers_are_all_dead_goes_on_alone():
    assert joiner(0, 1, 2).due() == "alone"


def test_roll_of_a_joiner_whose_peers_are_through_has_nothing_to_do():
    roll = joiner(0, 1)
    roll.end(2)
    assert roll.due() == "idle"
    roll.idle = True
    assert roll.is_over(closed=False)


def test_roll_of_a_joiner_leaves_those_that_join_later_until_it_has_settled():
    roll = joiner(0, 2)
    roll.join(2)
    assert roll.due() == ""
    roll.welcomed(welcome(1, 5))
    roll.borrow()
    roll.lent = True
    roll.told()
    roll.begins(Word("begun", 1, 3, 1, 6))
    roll.settle()
    assert roll.due() == ""  # where gradients are applied nobody has heard of it
    roll.follow(2)
    assert roll.due() == "welcome"
    member, turn = roll.welcome()
    assert (member, roll.due()) == (2, "")
    assert roll.is_current(Word("begin", 2, 3, turn))
    assert not roll.is_current(Word("begin", 2, 3, turn - 1))


def test_roll_is_not_over_while_a_joiner_has_not_settled():
    roll = RollState(0, MEMBERS, 0)
    roll.leave(1)
    roll.join(1)
    roll.welcome()
    assert not roll.is_over(closed=True)
    roll.late.discard(1)
    assert roll.is_over(closed=True)


def test_roll_of_a_node_that_is_through_tells_each_once_it_has_caught_up_and_again_if_it_comes_back():
    roll = RollState(0, MEMBERS, 0)
    roll.leave(1)
    roll.join(1)
    roll.welcome()
    assert roll.unaware(closed=False) == ()
    assert roll.unaware(closed=True) == (2, 3, 0)
    for member in (2, 3, 0):
        roll.has_told(member)
    assert roll.unaware(closed=True) == ()
    roll.late.discard(1)
    assert roll.unaware(closed=True) == (1,)
    roll.leave(2)
    roll.join(2)
    roll.late.discard(2)
    assert roll.unaware(closed=True) == (1, 2)
    assert joiner().unaware(closed=True) == ()


def test_roll_numbers_of_incarnations_differ():
    turns = []
    for incarnation in (0, 1, 2):
        roll = RollState(0, MEMBERS, incarnation)
        roll.join(1)
        turns.append(roll.welcome()[1])
    assert len(set(turns)) == 3


def test_roll_forgets_the_words_of_a_node_that_died():
    roll = RollState(0, MEMBERS, 0)
    roll.inbox.append(Word("begin", 1, 0, 1))
    roll.asked[1] = Word("lend", 1, 0, 1, origins=np.array([0]), applied=np.array([2]))
    roll.leave(1)
    assert (roll.inbox, roll.asked) == ([], {})


def test_roll_tells_words_of_one_that_died_from_those_of_another_in_its_place():
    roll = RollState(0, MEMBERS, 0)
    word = Word("through", 1, 0, number=7)
    assert not roll.has_outlived(word)
    roll.leave(1)
    roll.join(1)
    assert roll.has_outlived(word)
    roll.expect(1)  # whoever hears words has come to those of the other
    assert not roll.has_outlived(word)


def test_present_members_are_those_that_are_there_and_have_caught_up():
    present = Present(settled=True, gone=frozenset({0}), late=frozenset({2}))
    assert present.of(MEMBERS) == (1, 3)


def test_roll_element_is_of_its_role_and_incarnation():
    roll = Roll().create(NodeContext(index=1, members={"worker": (0, 1)}, incarnation=2))
    assert (roll.settled, roll.peers) == (False, (0,))


def test_roll_waits_for_one_that_has_come_back_though_its_words_are_not_awaited_yet():
    roll = RollState(0, MEMBERS, 0)
    roll.end(3)
    roll.leave(3)
    roll.join(3)
    roll.follow(3)
    assert roll.due() == "welcome"
    roll.welcome()
    assert not roll.is_over(closed=True)
    roll.expect(3)
    assert not roll.is_over(closed=True)
    roll.end(3)
    assert roll.is_over(closed=True)


def test_roll_of_a_joiner_does_not_take_one_that_has_come_back_for_one_that_is_through():
    roll = joiner(0, 2)
    roll.end(1)
    roll.leave(1)
    roll.join(1)
    assert roll.due() == "alone"
    roll.expect(1)
    roll.end(1)
    assert roll.due() == "idle"


def test_roll_of_a_joiner_does_not_take_one_whose_death_is_heard_first_where_words_are_for_one_that_is_through():
    roll = joiner(0, 2)
    roll.end(1, died=True)
    assert roll.due() == "alone"
    roll.leave(1)
    assert roll.due() == "alone"


def test_roll_forgets_the_loan_that_one_has_asked_for_which_says_nothing_more():
    roll = RollState(0, MEMBERS, 0)
    roll.asked[3] = Word("lend", 3, 0, 1)
    roll.end(3)
    assert not roll.asked
