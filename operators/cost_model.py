"""The cost model: how many partitions, and gradients in a round, keep the exchange within what a node can send and do.

Ako, section 3.2, equation 3, of what nodes measure of themselves while they train: `CostModel.decide` takes in a
measurement and says what is to be used from now on. Pure functions of values; nothing here is specific to a driver.

A node that waits for its link makes few gradients, and would choose few partitions for them if it took that for its
pace: gamma is counted over the time in which nothing holds the node back. What B is: see `operators.known`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from dataflow.reports import Rates
from operators.known import ASSUMED_BANDWIDTH, FULL, Known, Trial, full, may_try, not_full, suspected, tried, undoubted

ASSUMED_PACE = 200.0
"""Gradients per second that a node is taken to compute before it has measured."""

FIRST_EVERY = 2
"""Gradients in a round before the first measurement, at most: a link that does not carry so short ones shows what it
carries."""

FIRST_BANDWIDTH = 5e6
"""Bytes per second that a link is taken to carry before the first measurement, as far as the `longest` span allows.

What floods a slow link is late at the start, when gradients are large, and takes training long to make good.
"""

MOST_EVERY = 8
"""Gradients in a round at most."""

LONGEST = 16
"""Gradients at most until every cell is sent again, where bandwidth does not ask for more; of few nodes see `longest`.

Of eight nodes that train on MNIST (docs/reproductions.md, figure 12), up to 12 partitions of single gradients make no
difference to accuracy that two seeds could tell, and 24 do; of eight with averaged weights, 8 x 4 end 0.2 points below
8 x 2. Of sixteen that train on digits at a constant rate, 16 x 1 end at 95.2 to 97.2%, 16 x 2 at 66.5 to 84.2%.
"""

TOGETHER = 128
"""The same of all nodes together, where these are few: what is on its way to a replica grows with both."""

HEADROOM = 0.9
"""Of a measured B, what is used: below saturation nothing queues."""

_MEMORY = 0.7  # of a measurement, in the sums that the next one is added to
_LESS, _MORE = 0.95, 1.1  # of the load that a choice is best for, what it still fits
_LESS_WORK, _MORE_WORK = 0.9, 1.25  # likewise of the work of exchanging
_MORE_SPAN = 1.25  # of the span that the load asks for in any case, what longer rounds may make of it
_FAR_OFF, _PERSISTS = 1.5, 3  # measurements for which a choice that does not fit is kept, if it is not far off
_FINER = 4  # what is sent is divided by that on trial, at most


def longest(peers: int) -> int:
    """Gradients at most until every cell is sent again, of a node with so many peers; for links that ask for no more.

    Four hosts with 4 x 8 hold their target after 0.6 to 1.3 times as long as with 4 x 4, mostly sooner
    (docs/decisions/0020). It is not for receivers in turn, of which that was not measured.
    """
    return max(LONGEST, TOGETHER // (peers + 1))


class Choice(NamedTuple):
    """What the cost model chooses.

    Args:
        partitions: p, ranges that the model is divided into.
        every: r, gradients in a round.
    """

    partitions: int
    every: int

    @property
    def span(self) -> int:
        """Gradients until every range has had its turn."""
        return self.partitions * self.every


class CostModel(BaseModel):
    """Chooses partitions and rounds.

    Args:
        model_nbytes: m, bytes that all of the model takes when it is sent; in turn, the code of a round.
        cells: cells of the model's layout, and partitions at most that are chosen; in turn, gradients at most until
            each receiver has had its turn.
        partitions: p, if it is fixed.
        every: r, if it is fixed.
        bandwidth: B, bytes that one worker can send in a second; None if it is to be measured.
        in_turn: receivers take turns, and each is sent the codes of all rounds since its last one: p is as many as
            there are, but 16 at most. For codes of so few bytes that it is messages which cost, not what is in them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    model_nbytes: int = Field(gt=0)
    cells: int = Field(default=256, ge=1)
    partitions: int | None = Field(default=None, ge=1)
    every: int | None = Field(default=None, ge=1)
    bandwidth: float | None = Field(default=None, gt=0)
    in_turn: bool = False

    @property
    def live(self) -> bool:
        """Whether anything is to be chosen while the job runs."""
        return self.partitions is None or self.every is None

    def first(self, peers: int) -> Choice:
        """What is used before the first measurement."""
        slow, usual = (self.load(ASSUMED_PACE, peers, HEADROOM * each) for each in (FIRST_BANDWIDTH, ASSUMED_BANDWIDTH))
        choice = self.best(min(slow, max(usual, longest(peers))), FIRST_EVERY, peers)
        # clocks begin with the span of one node alone: under a bound on staleness no longer round would ever begin
        return choice if self.every else choice._replace(every=min(choice.every, FIRST_EVERY))

    def decide(self, known: Known, choice: Choice, rates: Rates, peers: int) -> tuple[Known, Choice]:
        """What is known with one more measurement, and what is used from now on.

        Args:
            known: what was known.
            choice: what has been used since.
            rates: the measurement.
            peers: n - 1, nodes that are sent to.
        """
        sure = known.sure
        known = self.learn(known, choice, rates, peers)
        pace = known.gradients_per_s
        if not (peers and pace):
            return known, choice
        load = self.load(pace, peers, HEADROOM * known.bandwidth)
        if self.fits(choice, load, known.every, peers):
            return replace(known, unfit=0), choice
        unfit = 2 if load > _FAR_OFF * self._relief(choice) and self.partitions is None else 1
        unfit = known.unfit + unfit * (sure if known.fulls == sure else 1)  # it has not been fitting for as long
        if unfit < _PERSISTS:
            return replace(known, unfit=unfit), choice
        return replace(known, unfit=0), self._next(choice, load, known.every, peers)

    def best(self, load: float, work: float, peers: int) -> Choice:
        """The fewest gradients in a round that the processor bears, and the fewest partitions that the link bears then.

        A span beyond the `longest` is for links that ask for it; rounds make it a quarter longer than those do at most.
        In turn, p is no matter of the link, which bears longer rounds.

        Args:
            load: see `load`.
            work: gradients in a round that the processor asks for.
            peers: n - 1.
        """
        wanted = self.every or min(MOST_EVERY, max(1, math.ceil(work - 1e-9)))
        if self.in_turn:
            partitions = self._partitions(load, wanted, peers)
            borne, most = (max(1, span // partitions) for span in (LONGEST, self.cells))
            return Choice(partitions, self.every or max(min(wanted, borne), min(math.ceil(load - 1e-9), most)))
        span = max(longest(peers), _MORE_SPAN * load)
        for every in range(wanted, 0, -1):
            choice = Choice(self._partitions(load, every, peers), every)
            if self.every or every == 1 or choice.span <= span:
                return choice
        raise AssertionError

    def _next(self, choice: Choice, load: float, work: float, peers: int) -> Choice:
        """The best choice after this one, of which `work` was measured.

        Rounds of larger parts take more work, if it is bytes that cost: by as much as they are larger, at most. They
        are to be borne by shorter rounds then, too, or the next measurement would ask for this choice again.
        """
        best = self.best(load, work, peers)
        if best.every < choice.every and best.partitions < choice.partitions:
            return self.best(load, min(choice.every, work * choice.partitions / best.partitions), peers)
        return best

    def fits(self, choice: Choice, load: float, work: float, peers: int) -> bool:
        """Whether a choice would be the best one if link and processor asked for a little less, or more."""
        asked = (load, work), (_LESS * load, _LESS_WORK * work), (_MORE * load, _MORE_WORK * work)
        fitting = [self.best(*each, peers).every for each in asked]
        if not min(fitting) <= choice.every <= max(fitting):
            return False
        least, most = (self._partitions(load * by, choice.every, peers) for by in (_LESS, _MORE))
        return least <= choice.partitions <= most

    def nbytes_s(self, known: Known, choice: Choice, peers: int) -> float:
        """Bytes that a node sends in a second at its own pace: gamma / r m (n - 1) / p; in turn, without the p."""
        return known.gradients_per_s * self.model_nbytes * peers / self._relief(choice)

    def learn(self, known: Known, choice: Choice, rates: Rates, peers: int) -> Known:
        """What is known with one more measurement; see `decide`."""
        # Where a gradient takes longer than a measurement, those without one are part of it.
        keep = _MEMORY if rates.steps else 1.0
        known = replace(
            known,
            steps=keep * (known.steps + rates.steps),
            unblocked_s=keep * (known.unblocked_s + rates.seconds - rates.blocked_s),
            compute_s=keep * (known.compute_s + rates.compute_s),
            exchange_s=keep * (known.exchange_s + rates.exchange_s),
            rounds=keep * (known.rounds + rates.steps / choice.every),
        )
        if known.trial:
            return tried(known, known.trial, rates, peers)
        lags = rates.sent_nbytes < FULL * self._offered(known, choice, rates, peers)
        known = suspected(known, rates, peers, lags=lags)
        known = full(known, rates) if lags and rates.busy_s >= FULL * rates.seconds else not_full(known, rates)
        return self._on_trial(known, choice, rates, peers) if rates.sent_nbytes and may_try(known) else known

    def _on_trial(self, known: Known, choice: Choice, rates: Rates, peers: int) -> Known:
        """A trial of what has just passed for B, or of what makes `_FINER` times as many partitions, if that is more.

        It is of no less than the first trial found. In turn it is the rounds that are longer. Where B is no more
        anyway, or nothing would be other than it is, nothing is tried.
        """
        finer = self.nbytes_s(known, choice, peers) / (HEADROOM * _FINER)
        bandwidth = max(rates.goodput, finer, undoubted(known, rates), known.floor)
        best = self.best(self.load(known.gradients_per_s, peers, HEADROOM * bandwidth), known.every, peers)
        if bandwidth >= known.bandwidth or self.partitions or self._relief(best) <= self._relief(choice):
            return known
        return replace(known, bandwidth=bandwidth, trial=Trial(known.bandwidth, known.meanwhile, peers))

    def _offered(self, known: Known, choice: Choice, rates: Rates, peers: int) -> float:
        """Bytes that the node would have sent in a measurement with nothing to hold it back.

        One that has been slower than usual by itself, since others had the processor, has offered less, too: what did
        not pass then is no matter of the link.
        """
        free_s, usual = rates.seconds - rates.blocked_s, known.gradients_per_s
        pace = min(usual, rates.steps / free_s) if rates.steps and free_s > 0 else usual
        return (pace / usual if usual else 0.0) * self.nbytes_s(known, choice, peers) * rates.seconds

    def load(self, pace: float, peers: int, bandwidth: float = ASSUMED_BANDWIDTH) -> float:
        """Gamma m (n - 1) / B: partitions that the link asks for, with rounds of one gradient.

        Args:
            pace: gamma, gradients per second.
            peers: n - 1.
            bandwidth: B, bytes per second, unless it is given.
        """
        return pace * self.model_nbytes * peers / (self.bandwidth or bandwidth)

    def _partitions(self, load: float, every: int, peers: int) -> int:
        """P, for rounds of so many gradients: as many as there are nodes, at least, where those might be several.

        Each sender's turns begin with another range, so with as many partitions as nodes, while all are in step, no two
        ranges that a node is sent at once are the same. With fewer, what several peers have made in several gradients
        is applied to the same cells at once, which takes training off: of four hosts of a lab at 100 Mbit/s, two epochs
        of MNIST with a cosine, rounds of eight gradients in two parts need a third more images than rounds of four in
        four, the same bytes; of sixteen nodes that are simulated, 16 x 1 train where 8 x 2 mostly do not
        (docs/performance.md). So rounds are of single gradients where two would be too many for as many partitions,
        whatever the processor asks for. Where rounds are of a given length, partitions are fewer if their span were
        beyond the `longest`, but two; of single ones, what the link asks for.
        """
        if self.partitions:
            return self.partitions
        if self.in_turn:
            return max(1, min(peers, LONGEST))
        least = min(peers + 1, LONGEST)
        if every == 1 and (self.every or 2 * least <= longest(peers)):
            least = 1
        elif self.every:
            least = min(least, max(2, longest(peers) // every))
        return min(self.cells, max(least, math.ceil(load / every - 1e-9)))

    def _relief(self, choice: Choice) -> int:
        """What a choice divides a node's traffic by. In turn, a receiver is sent the codes of p rounds, not a p-th."""
        return choice.every if self.in_turn else choice.span
