"""Joining: what nodes say to each other so that one that comes late catches up while nobody pauses.

The order of things is in `operators.roll`. Invariant: of every node that is there, a joiner gets each gradient once:
in the model that it is lent, or in what is sent to it from the number on that it has told.
"""

from __future__ import annotations

from dataflow.errors import BeginAnewError
from dataflow.message import Tick
from dataflow.node_context import NodeContext
from dataflow.operators_api import Emissions, EndOfData, Operator, Sample
from dataflow.ports import In, Out
from dataflow.state import Writes
from operators.clocks import ClocksState
from operators.course import CourseState
from operators.kept import KeptState
from operators.messages import Word
from operators.roll import RollState
from operators.window import WindowState

Outgoing = WindowState | KeptState

_FIX = "it is started again and begins anew; larger mini-batches or a codec make less to be kept"
_NOBODY = "what was learnt is in the job's checkpoints only: see checkpoint_every and ako resume"


class Talk(Operator):
    """Says what is due, while its node trains and for as long as anybody waits for its word.

    Nothing is ever said on `presence`: whoever it leads to stays there as long as anybody has a word to say.
    """

    pool = "network"
    source = True
    sends = True
    ends_itself = True
    words = Out(Word)
    presence = Out(Word)
    roll = Writes()
    course = Writes()
    window = Writes()
    clocks = Writes()

    def ready(self, roll: RollState, course: CourseState, clocks: ClocksState) -> bool:
        """Whether anything is due, or the end."""
        closed = _makes_no_more(course, clocks)
        in_vain = closed and roll.need_not_settle
        return bool(in_vain or roll.due() or roll.unaware(closed=closed)) or roll.is_over(closed=closed)

    def process(
        self, tick: Tick, roll: RollState, course: CourseState, window: Outgoing, clocks: ClocksState, node: NodeContext
    ) -> Emissions:
        """Say what is due; how many gradients there were, once there are no more.

        A node that has not caught up when it is asked to make no more need not, if others have.
        """
        roll.idle = roll.idle or (roll.need_not_settle and _makes_no_more(course, clocks))
        while due := roll.due():
            match due:
                case "answer":
                    yield from self._answer(roll.inbox.pop(0), roll, course, window, clocks)
                case "welcome":
                    member, turn = roll.welcome()
                    number = window.join(member, turn)
                    yield self.words(Word("welcome", node.index, member, turn, number), to=member)
                case "borrow":
                    word = roll.borrow()
                    yield self.words(word, to=word.to)
                case "begin":
                    for member, turn in roll.told().items():
                        applied = clocks.applied(member).copy()
                        yield self.words(Word("begin", node.index, member, turn, applied=applied), to=member)
                case "idle":
                    roll.idle = True
                case _:
                    yield from self._settle(roll, course, window, clocks)
        # At once, though this node stays for those that are late: they may need what others make without its gradients.
        closed = _makes_no_more(course, clocks)
        for member in roll.unaware(closed=closed):
            roll.has_told(member)
            yield self.words(Word("through", node.index, member, number=clocks.made), to=member)
        if roll.is_over(closed=closed):
            if not roll.settled:
                for member in (*roll.peers, roll.node) if closed else roll.peers:
                    yield self.words(Word("through", node.index, member, number=clocks.made), to=member)
            yield EndOfData()

    def on_left(self, member: int, roll: RollState, window: Outgoing, *, ended: bool) -> Emissions:
        """Send a node that has died, or was through before, nothing, and wait for no word of it."""
        roll.leave(member, ended=ended)
        window.leave(member)
        yield from ()

    def on_joined(self, member: int, roll: RollState) -> Emissions:
        """Have a node that comes back welcomed."""
        roll.join(member)
        yield from ()

    def _answer(
        self, word: Word, roll: RollState, course: CourseState, window: Outgoing, clocks: ClocksState
    ) -> Emissions:
        member = word.origin
        match word.kind:
            case "late" if roll.is_welcome(word):
                what = "took so long to catch up that what another node keeps for it became too much"
                raise BeginAnewError(what, got=f"gradient {word.number} of node {member} meanwhile", fix=_FIX)
            case "welcome":
                roll.welcomed(word)
            case "begun":
                roll.begins(word)
                clocks.wait(member, word.span)
            case "begin" if roll.is_current(word) and not window.claim(member, word.turn):
                yield self.words(Word("late", roll.node, member, word.turn, clocks.made), to=member)
            case "begin" if roll.is_current(word):
                clocks.expect(member)
                epoch = course.reached(clocks.made)
                answer = Word("begun", roll.node, member, word.turn, clocks.made, clocks.images, epoch, window.span)
                yield self.words(answer, to=member)

    def _settle(self, roll: RollState, course: CourseState, window: Outgoing, clocks: ClocksState) -> Emissions:
        if not roll.lent:
            what = "nobody is left that could lend the model"
            raise BeginAnewError(what, fix=_NOBODY)
        turns, fastest = roll.turns(), roll.settle()
        if fastest is None:
            # Whoever has lent the model is gone, and all others: go on from that.
            yield Sample("joined_alone", 1.0)
            number, epoch = clocks.made, course.reached(clocks.made)
        else:
            number, epoch, clocks.images = fastest.number, fastest.epoch, fastest.images
        clocks.start(roll.node, number)
        course.start(number, epoch)
        window.start(number)
        for member, turn in (*turns.items(), (roll.node, roll.turn)):
            yield self.words(Word("settled", roll.node, member, turn, number), to=member)


def _makes_no_more(course: CourseState, clocks: ClocksState) -> bool:
    """Whether every mini-batch that was read has become a gradient, or will never be one, and no more are read."""
    return course.closed and (clocks.over or clocks.made >= course.number)


class Listen(Operator):
    """Hears what others say, notes where they begin and end, and passes on what others than `Talk` have to do.

    `begins` are for whoever sends gradients, `loans` for whoever lends the model, `settled`, also where a node is
    through, and of this node as well, for whoever waits for all before it goes on.
    """

    pool = "network"
    receives = True
    words = In(Word)
    begins = Out(Word)
    loans = Out(Word)
    settled = Out(Word)
    roll = Writes()
    clocks = Writes()

    def process(self, word: Word, roll: RollState, clocks: ClocksState) -> Emissions:
        """Take in a word."""
        if roll.has_outlived(word):
            return
        # What is noted in clocks is noted here, where it is known whose word it is: whoever it was passed on to might
        # have heard meanwhile that its origin has died and come back.
        match word.kind:
            case "lend":
                roll.asked[word.origin] = word
                yield self.loans(word)
            case "through":
                clocks.end(word.origin, word.number)
                yield self.settled(word)
            case "settled" if word.origin == roll.node or roll.is_current(word):
                roll.late.discard(word.origin)
                clocks.begin(word.origin, word.number)
                yield self.settled(word)
            case _:
                roll.inbox.append(word)
                if word.kind == "begin" and roll.is_current(word):
                    yield self.begins(word)

    def on_left(self, member: int, roll: RollState, *, ended: bool) -> Emissions:
        """Wait for no word of a node that says nothing more."""
        roll.end(member, died=not ended)
        yield from ()

    def on_joined(self, member: int, roll: RollState) -> Emissions:
        """Hear a node that has come back."""
        roll.expect(member)
        yield from ()
