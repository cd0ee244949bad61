"""What a node has learnt of its pace and its link, of measurements: B, of which the cost model makes p. Pure functions.

A link that is hardly used does not show what it could carry: only one that always has something waiting, and carries
less than would be offered, is full, and then B is what passed; where the node waits for others meanwhile, it is that on
trial. And what passes in bursts may be more than the link carries for long: a larger B is believed after a while, and
after a longer one each time that it proved wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from dataflow.reports import Rates

ASSUMED_BANDWIDTH = 125e6
"""Bytes per second that a node is taken to be able to send before it has measured: 1 Gbit/s."""

EXCHANGE_SHARE = 0.1
"""Of a node's processor time, what the exchange may take."""

FULL = 0.9
"""A link is full if it is busy for this share of the time, and less than this share of what is offered passes."""

MOSTLY = 0.5
"""A link may be full if it is busy for this share of the time, and the node waited for others for the rest of `FULL`,
at least.

Where all wait for each other's rounds, which come slowly, nobody has anything to send meanwhile. That looks alike if it
is the others who are slow: see `Trial`.
"""

GAIN = 1.3
"""By what a trial makes a node faster, at least, if it is the link that had been holding it back."""

_FULL_MEMORY = 0.5  # of a measurement, in the sums that the next one is added to
_HIGHER, _PATIENCE, _MOST_PATIENCE = 1.25, 4, 64  # of B, what is more than B; and measurements until that is believed
_SILENT = 16  # what B is divided by at most where nothing passes, by 2 for each measurement
_TRIED = 16  # measurements without a full link for which a B that has been raised is not taken for granted
_SURE = 2  # measurements in which the link is full and something passes, until a lower B is believed
_SUSPECT, _MOST_SUSPECT = 6, 384  # measurements in which the link may be full, until that is tried
_SETTLED, _TRIAL, _LONGEST_TRIAL = 3, 10, 120  # measurements of a trial: those that do not count; in all; at most
_STEPS = 8  # gradients at least of which a pace is, before a trial and in it


class Pace(NamedTuple):
    """How fast a node was in a while: gradients that it computed, held back or not, and seconds."""

    steps: int = 0
    seconds: float = 0.0

    def with_measurement(self, rates: Rates) -> Pace:
        """In a longer while."""
        return Pace(self.steps + rates.steps, self.seconds + rates.seconds)

    def gains(self, before: Pace) -> bool:
        """Whether it is faster than another one by `GAIN`."""
        return self.steps * before.seconds > GAIN * before.steps * self.seconds


_NO_TIME = Pace()


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
        higher: measurements in a row, but for those in which nothing was to be sent, in which more passed than B, or in
            which all passes again.
        patience: how many it takes until B is raised: twice as many once a raised one has proved wrong, and half as
            many for each while in which one has not.
        raised: measurements in which something was sent since B was raised, that one included; 0 once the link has been
            found full.
        unfit: how long the present choice has not been fitting, in measurements; counted twice if it is far off.
        peers: n - 1 in the last measurement.
        suspect: in how many measurements the link may have been full, less those in which it was not.
        meanwhile: gradients and seconds of all of these, since there are any.
        until_trial: how many it takes until that is tried.
        trial: of the present B, if it is on trial.
        floor: the first B that a trial has found, which others do not try to lower; 0 if none has.
        ceiling: B before that; once it is about that again, links are well, and trials may find anew what they carry.
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
    peers: int = 0
    suspect: int = 0
    meanwhile: Pace = _NO_TIME
    until_trial: int = _SUSPECT
    trial: Trial | None = None
    floor: float = 0.0
    ceiling: float = 0.0

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


@dataclass(frozen=True, slots=True)
class Trial:
    """A lower B is tried: whether a node that sends less is faster for it.

    If so, it had been waiting for its link. Where its peers are slow themselves, it is not, and nothing was learnt.

    Args:
        bandwidth: B before.
        pace: how fast the node was before.
        peers: n - 1.
        age: measurements since it began.
        meanwhile: how fast the node is, but for the first measurements, in which p changes.
    """

    bandwidth: float
    pace: Pace
    peers: int
    age: int = 0
    meanwhile: Pace = _NO_TIME

    def with_measurement(self, rates: Rates) -> Trial:
        """With one more of them."""
        age = self.age + 1
        return replace(self, age=age, meanwhile=self.meanwhile.with_measurement(rates) if age > _SETTLED else _NO_TIME)


def suspected(known: Known, rates: Rates, peers: int, *, lags: bool) -> Known:
    """What is known with one more measurement in which the link may have been full, or not; `lags`: not all passed.

    It may if it is busy for long and something passes, and the node waits for others while nothing does. They are
    counted anew where others have come or left, of whom the pace may be, and once they were enough for a trial that was
    not made: else what was long ago would count for ever.
    """
    if peers != known.peers or _enough(known):
        known = replace(known, peers=peers, suspect=0)
    waits = rates.busy_s >= MOSTLY * rates.seconds and rates.busy_s + rates.blocked_s >= FULL * rates.seconds
    suspect = max(0, known.suspect + (1 if lags and waits and rates.sent_nbytes else -1))
    meanwhile = (known.meanwhile if known.suspect else _NO_TIME).with_measurement(rates)
    until_trial = known.until_trial if suspect else max(_SUSPECT, known.until_trial // 2)
    return replace(known, suspect=suspect, meanwhile=meanwhile, until_trial=until_trial)


def may_try(known: Known) -> bool:
    """Whether the link may have been full for long, and the node could be faster if it were not."""
    pace = known.meanwhile
    could_gain = known.gradients_per_s * pace.seconds > GAIN * pace.steps
    return _enough(known) and could_gain


def _enough(known: Known) -> bool:
    return known.suspect >= known.until_trial and known.meanwhile.steps >= _STEPS


def undoubted(known: Known, rates: Rates) -> float:
    """Bytes per second below which B does not fall: half of what has passed, while delays are as short as ever.

    Nodes that are far from each other wait for what is on its way as if it queued, and more partitions do not help
    them.
    """
    return known.proven / 2 if _delay_s(rates) <= 2 * known.least_delay_s else 0.0


def tried(known: Known, trial: Trial, rates: Rates, peers: int) -> Known:
    """What is known with one more measurement of a trial: at its end B is what it was before, if that was in vain.

    Where others come or leave meanwhile, of whom the node's pace may be, it ends, and says nothing.
    """
    trial = trial.with_measurement(rates)
    enough = trial.age >= _TRIAL and trial.meanwhile.steps >= _STEPS
    if peers == trial.peers and not enough and trial.age < _LONGEST_TRIAL:
        return replace(known, trial=trial)
    known = replace(known, trial=None, suspect=0, passed=0.0, busy_s=0.0, fulls=0, higher=0)
    if peers != trial.peers:
        return replace(known, bandwidth=trial.bandwidth)
    if enough and trial.meanwhile.gains(trial.pace):
        floor, ceiling = known.floor or known.bandwidth, known.ceiling or trial.bandwidth
        return replace(known, floor=floor, ceiling=ceiling, before=0.0)
    return replace(known, bandwidth=trial.bandwidth, until_trial=min(2 * known.until_trial, _MOST_SUSPECT))


def full(known: Known, rates: Rates) -> Known:
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
    proven = goodput if delay_s > 2 * known.least_delay_s else max(known.proven, goodput)
    return replace(_too_much(known), before=0.0, proven=proven, bandwidth=max(goodput, undoubted(known, rates)))


def _silent(known: Known) -> Known:
    """What a link says on which nothing passes: B may be less, but is what it was if all passes again.

    Not so a B that has just been raised: that was too much.
    """
    if _is_fresh(known):
        return replace(_too_much(known), fulls=0, bandwidth=known.bandwidth / 2)
    before, fulls = known.before or known.bandwidth, known.fulls if known.before else 0
    return replace(known, fulls=fulls, before=before, bandwidth=max(known.bandwidth / 2, before / _SILENT))


def _too_much(known: Known) -> Known:
    """It takes twice as long until B is raised again if it has just been raised to more than the link carries."""
    patience = min(2 * known.patience, _MOST_PATIENCE) if _is_fresh(known) else known.patience
    return replace(known, patience=patience, raised=0)


def _is_fresh(known: Known) -> bool:
    """Whether B has been raised so lately that it may prove wrong."""
    return 0 < known.raised <= _TRIED


def not_full(known: Known, rates: Rates) -> Known:
    """What a link says that carries all it is given: B is that much, at least; after a while what it was, at least."""
    # What is passed in no time that is counted is as if there were no link to wait for.
    goodput = rates.goodput if rates.busy_s or not rates.sent_nbytes else ASSUMED_BANDWIDTH
    more = known.before > 0 or goodput > _HIGHER * known.bandwidth
    # Where rounds are rarer than measurements, nothing is sent in most of these, which says nothing.
    so_far = known.higher if more or not rates.sent_nbytes else 0
    higher = so_far + more
    least_s = _least(known, _delay_s(rates))
    raised = known.raised + 1 if known.raised and rates.sent_nbytes else known.raised
    # A B that has been right for a while, and for another, makes up for one that was wrong.
    right = raised > max(_TRIED, known.raised) and raised % _TRIED == 1
    patience = max(_PATIENCE, known.patience // 2) if right else known.patience
    known = replace(known, passed=0.0, busy_s=0.0, fulls=0, least_delay_s=least_s)
    known = replace(known, higher=higher, raised=raised, patience=patience)
    if higher < patience:
        return known
    bandwidth = max(known.before, min(goodput, 2 * known.bandwidth))
    if _HIGHER * bandwidth >= known.ceiling:
        known = replace(known, floor=0.0, ceiling=0.0)
    return replace(known, bandwidth=bandwidth, before=0.0, higher=0, raised=1)


def _delay_s(rates: Rates) -> float:
    """Mean delay of what was acknowledged, by bytes; 0 if nothing was."""
    total = sum(link.nbytes * link.delay_s for link in rates.links.values())
    return total / rates.sent_nbytes if rates.sent_nbytes else 0.0


def _least(known: Known, delay_s: float) -> float:
    return min(1.01 * known.least_delay_s, delay_s) if delay_s else known.least_delay_s
