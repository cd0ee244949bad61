"""The cost model: how many partitions, and gradients in a round, keep the exchange within what a node can send and do.

Ako, section 3.2, equation 3, of what nodes measure of themselves while they train: `CostModel.decide` takes in a
measurement and says what is to be used from now on. Pure functions of values; nothing here is specific to a driver.

Three traps are avoided. A node that waits for its link makes few gradients, and would choose few partitions for them if
it took that for its pace: gamma is counted over the time in which nothing holds the node back. A link that is hardly
used does not show what it could carry: only one that always has something waiting, and carries less than would be
offered, is full, and then B is what passed; where the node waits for others meanwhile, it is that on trial. And what
passes in bursts may be more than the link carries for long: a larger B is believed after a while, and after a longer
one each time that it proved wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from dataflow.reports import Rates

ASSUMED_BANDWIDTH = 125e6
"""Bytes per second that a node is taken to be able to send before it has measured: 1 Gbit/s."""

ASSUMED_PACE = 200.0
"""Gradients per second that a node is taken to compute before it has measured."""

FIRST_EVERY = 4
"""Gradients in a round before the first measurement."""

MOST_EVERY = 8
"""Gradients in a round at most."""

LEAST_PARTITIONS = 2
"""Partitions at least, with rounds of several gradients: all that peers have made in a round, applied to the whole of a
replica at once, takes training far off. Four hosts of a lab at 100 Mbit/s, two epochs of MNIST with a cosine: 97.2 to
97.7% with rounds of 16 and 97.6% with rounds of 8 if sent whole, 98.6 and 98.7% with rounds of 8 in 2 and 3 partitions.
"""

LONGEST = 16
"""Gradients at most until every cell is sent again, where bandwidth does not ask for more.

Of eight nodes that train on MNIST (docs/reproductions.md, figure 12), up to 12 partitions of single gradients make no
difference to accuracy that two seeds could tell, and 24 do.
"""

EXCHANGE_SHARE = 0.1
"""Of a node's processor time, what the exchange may take."""

HEADROOM = 0.9
"""Of a measured B, what is used: below saturation nothing queues."""

FULL = 0.9
"""A link is full if something waits for this share of the time, and less than this share of what is offered passes."""

MOSTLY = 0.5
"""A link may be full if something waits for this share of the time, and the node waited for others for the rest of
`FULL`, at least.

Where all wait for each other's rounds, which come slowly, nobody has anything to send meanwhile. That looks alike if it
is the others who are slow: see `Trial`.
"""

_MEMORY, _FULL_MEMORY = 0.7, 0.5  # of a measurement, in the sums that the next one is added to
_LESS, _MORE = 0.95, 1.1  # of the load that a choice is best for, what it still fits
_LESS_WORK, _MORE_WORK = 0.9, 1.25  # likewise of the work of exchanging
_MORE_SPAN = 1.25  # of the span that the load asks for in any case, what longer rounds may make of it
_HIGHER, _PATIENCE, _MOST_PATIENCE = 1.25, 4, 64  # of B, what is more than B; and measurements until that is believed
_SILENT = 16  # what B is divided by at most where nothing passes, by 2 for each measurement
_TRIED = 16  # measurements without a full link for which a B that has been raised is not taken for granted
_SURE = 2  # measurements in which the link is full and something passes, until a lower B is believed
_FAR_OFF, _PERSISTS = 1.5, 3  # measurements for which a choice that does not fit is kept, if it is not far off
_TRIAL = 5  # measurements until a trial ends


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


class Trial(NamedTuple):
    """A lower B that is believed on trial: where it is the link that is slow, smaller parts come sooner.

    Args:
        bandwidth: B before, which it is again if they do not.
        partitions: chosen before.
        delay_s: mean delay before.
        left: measurements until it ends.
        delays_s: mean delays since there are more partitions, but for the first, which is also of what was under way.
    """

    bandwidth: float
    partitions: int
    delay_s: float
    left: int = _TRIAL
    delays_s: tuple[float, ...] = ()

    def with_measurement(self, partitions: int, delay_s: float) -> Trial:
        """With one more of them."""
        of_parts = partitions > self.partitions and delay_s > 0
        return self._replace(left=self.left - 1, delays_s=self.delays_s + ((delay_s,) if of_parts else ()))

    def has_failed(self, partitions: int) -> bool:
        """Whether delays have not become shorter by half of what parts have become smaller by, at least."""
        delays_s = self.delays_s[1:]
        needed = (1 + self.partitions / partitions) / 2
        return bool(delays_s) and sum(delays_s) / len(delays_s) > needed * self.delay_s


@dataclass(frozen=True, slots=True)
class Known:
    """What a node has learnt of itself.

    Args:
        steps, unblocked_s, compute_s, exchange_s, rounds: sums over its measurements, recent ones above all: gradients,
            seconds in which nothing held them back, processor seconds of computing and of exchanging, rounds.
        bandwidth: B, bytes per second.
        passed, busy_s: bytes and busy seconds of the measurements since the link became full; 0 while it is not.
        fulls: measurements in which something passed, since the link became full; once nothing did, since then.
        before: B before nothing passed; 0 if it did, or was found to be all that a link carries since.
        proven: most bytes per second that passed while the link was full, since anything was last seen to queue.
        least_delay_s: shortest mean delay of a measurement; slowly forgotten.
        higher: measurements in a row in which more passed than B, or in which all passes again.
        patience: how many it takes until B is raised.
        raised: measurements since B was raised, that one included; 0 once the link has been found full.
        unfit: how long the present choice has not been fitting, in measurements; counted twice if it is far off.
        trial: of the present B, if it is believed on trial.
    """

    steps: float = 0.0
    unblocked_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    rounds: float = 0.0
    bandwidth: float = ASSUMED_BANDWIDTH
    passed: float = 0.0
    busy_s: float = 0.0
    fulls: int = 0
    before: float = 0.0
    proven: float = 0.0
    least_delay_s: float = math.inf
    higher: int = 0
    patience: int = _PATIENCE
    raised: int = 0
    unfit: int = 0
    trial: Trial | None = None

    @property
    def sure(self) -> int:
        """`fulls` until a lower B is believed: one more where silence is between them."""
        return _SURE + 1 if self.before else _SURE

    @property
    def gradients_per_s(self) -> float:
        """Gamma: gradients that the node would compute in a second if nothing held it back."""
        return self.steps / self.unblocked_s if self.unblocked_s > 0 else 0.0

    @property
    def every(self) -> float:
        """Gradients in a round of which exchanging takes `EXCHANGE_SHARE` of the processor time, as a fraction.

        A round costs what it costs, whatever the number of gradients in it.
        """
        if not (self.compute_s > 0 and self.rounds > 0):
            return 1.0
        exchange_s, compute_s = self.exchange_s / self.rounds, self.compute_s / self.steps
        return exchange_s / compute_s * (1 - EXCHANGE_SHARE) / EXCHANGE_SHARE


class CostModel(BaseModel):
    """Chooses partitions and rounds.

    Args:
        model_nbytes: m, bytes that all of the model takes when it is sent; in turn, the code of a round.
        cells: cells of the model's layout, and partitions at most that are chosen.
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
        every = self.every or FIRST_EVERY
        load = self.load(ASSUMED_PACE, peers, HEADROOM * ASSUMED_BANDWIDTH)
        return Choice(self._partitions(load, every, peers), every)

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
        return replace(known, unfit=0), self.best(load, known.every, peers)

    def best(self, load: float, work: float, peers: int) -> Choice:
        """The fewest gradients in a round that the processor bears, and the fewest partitions that the link bears then.

        A span beyond `LONGEST` is for links that ask for it, and rounds make it a quarter longer than those do at most.
        In turn, p is no matter of the link, which bears longer rounds.

        Args:
            load: see `load`.
            work: gradients in a round that the processor asks for.
            peers: n - 1.
        """
        wanted = self.every or min(MOST_EVERY, max(1, math.ceil(work - 1e-9)))
        if self.in_turn:
            partitions = self._partitions(load, wanted, peers)
            borne = min(wanted, max(1, LONGEST // partitions))
            return Choice(partitions, self.every or max(borne, math.ceil(load - 1e-9)))
        span = max(LONGEST, _MORE_SPAN * load)
        for every in range(wanted, 0, -1):
            choice = Choice(self._partitions(load, every, peers), every)
            if self.every or every == 1 or choice.span <= span:
                return choice
        raise AssertionError

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
        known = _tried(known, choice, rates)
        if rates.sent_nbytes >= FULL * self._offered(known, choice, rates, peers):
            return _not_full(known, rates)
        if rates.busy_s >= FULL * rates.seconds:
            return _full(known, rates)
        can_try = known.trial is None and self.partitions is None and not self.in_turn
        if can_try and _may_be_full(known, rates):
            return _on_trial(known, choice, rates)
        return _not_full(known, rates)

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
        """P, for rounds of so many gradients."""
        if self.partitions:
            return self.partitions
        if self.in_turn:
            return max(1, min(peers, LONGEST))
        return min(self.cells, max(LEAST_PARTITIONS if every > 1 else 1, math.ceil(load / every - 1e-9)))

    def _relief(self, choice: Choice) -> int:
        """What a choice divides a node's traffic by. In turn, a receiver is sent the codes of p rounds, not a p-th."""
        return choice.every if self.in_turn else choice.span


def _may_be_full(known: Known, rates: Rates) -> bool:
    """Whether something waits for long, and the node waits for others while nothing does."""
    always = rates.busy_s >= MOSTLY * rates.seconds and rates.busy_s + rates.blocked_s >= FULL * rates.seconds
    return always and (not rates.sent_nbytes or _delay_s(rates) > 2 * known.least_delay_s)


def _on_trial(known: Known, choice: Choice, rates: Rates) -> Known:
    """What a link says that may be full: B as if it were, on trial."""
    full = _full(known, rates)
    if not rates.sent_nbytes or full.bandwidth >= known.bandwidth:
        return full
    return replace(full, trial=Trial(known.bandwidth, choice.partitions, _delay_s(rates)))


def _tried(known: Known, choice: Choice, rates: Rates) -> Known:
    """What is known with one more measurement of a trial, if there is one.

    If it fails, delays are none of the link's, and such as there are count as short from then on.
    """
    if known.trial is None:
        return known
    trial = known.trial.with_measurement(choice.partitions, _delay_s(rates))
    if trial.left:
        return replace(known, trial=trial)
    if not trial.has_failed(choice.partitions):
        return replace(known, trial=None)
    bandwidth, least_s = max(known.bandwidth, trial.bandwidth), max(trial.delays_s)
    return replace(known, trial=None, bandwidth=bandwidth, least_delay_s=least_s, fulls=0)


def _full(known: Known, rates: Rates) -> Known:
    """What a link says of which nothing more passes: B is what does, if it says so twice.

    Once is not enough: where a peer stands still for a while, what passed before that is little for so long a time.
    """
    known = replace(
        known,
        passed=_FULL_MEMORY * known.passed + rates.sent_nbytes,
        busy_s=_FULL_MEMORY * known.busy_s + rates.busy_s,
        higher=0,
    )
    if not rates.sent_nbytes:
        return _silent(known)
    goodput, delay_s = known.passed / known.busy_s, _delay_s(rates)
    sure, least_s = known.fulls + 1 >= known.sure, _least(known, delay_s)
    known = replace(known, fulls=known.fulls + 1, least_delay_s=least_s)
    if not sure:
        return known
    # Nodes that are far from each other wait for what is on its way as if it queued, and more partitions do not help
    # them: while delays are as short as ever, a link carries what it did.
    proven = goodput if delay_s > 2 * known.least_delay_s else max(known.proven, goodput)
    return replace(_too_much(known), before=0.0, proven=proven, bandwidth=max(goodput, proven / 2))


def _silent(known: Known) -> Known:
    """What a link says on which nothing passes: B may be less, but is what it was if all passes again.

    Not so a B that has just been raised: that was too much.
    """
    if 0 < known.raised <= _TRIED:
        return replace(_too_much(known), fulls=0, bandwidth=known.bandwidth / 2)
    before, fulls = known.before or known.bandwidth, known.fulls if known.before else 0
    return replace(known, fulls=fulls, before=before, bandwidth=max(known.bandwidth / 2, before / _SILENT))


def _too_much(known: Known) -> Known:
    """It takes twice as long until B is raised again if what it had been raised to is more than the link carries."""
    return replace(known, patience=min(2 * known.patience, _MOST_PATIENCE), raised=0) if known.raised else known


def _not_full(known: Known, rates: Rates) -> Known:
    """What a link says that carries all it is given: B is that much, at least; after a while what it was, at least."""
    more = known.before > 0 or rates.goodput > _HIGHER * known.bandwidth
    higher = known.higher + 1 if more else 0
    least_s = _least(known, _delay_s(rates))
    raised = known.raised + 1 if known.raised else 0
    known = replace(known, passed=0.0, busy_s=0.0, fulls=0, higher=higher, raised=raised, least_delay_s=least_s)
    if higher < known.patience:
        return known
    bandwidth = max(known.before, min(rates.goodput, 2 * known.bandwidth))
    return replace(known, bandwidth=bandwidth, before=0.0, higher=0, raised=1)


def _delay_s(rates: Rates) -> float:
    """Mean delay of what was acknowledged, by bytes; 0 if nothing was."""
    total = sum(link.nbytes * link.delay_s for link in rates.links.values())
    return total / rates.sent_nbytes if rates.sent_nbytes else 0.0


def _least(known: Known, delay_s: float) -> float:
    return min(1.01 * known.least_delay_s, delay_s) if delay_s else known.least_delay_s
