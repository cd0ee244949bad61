"""Which nodes and links of a job are slow, in sentences.

Slow is what falls behind a quantile of the others by a factor, and behind it at all in each of the newest whiles. Who
waits for a slow node is as slow as that, so nodes are compared by the pace that they have when nothing holds them back.
A link is compared by what it carries while it is busy, with the faster ones among the others: a node whose network is
slow makes all links from and to it slow, which are half of the links of four nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor
from statistics import median
from typing import Generic, TypeAlias, TypeVar

from dataflow.observe.condition import RECENT, MeasuredJob
from dataflow.reports import LinkRates, Rates, rates_between

FACTOR = 1.5
"""How far behind the median of the others a slow node is."""

LINK_FACTOR, FASTER = 2.5, 0.75
"""How far behind what quantile of the others a slow link is. Links of hosts that share few processors, and are alike,
differ by up to twofold in a while."""

FEW = 10
"""Of fewer gradients than this, chance may be what makes them fewer."""

FREE = 0.05
"""A node that made nothing in a while, and was held back for all but this share of it, has no pace in it."""

BUSY = 0.1
"""Share of every while in which a link that is called slow was busy: one that is hardly used holds nobody up."""

BLOCKED = 0.05
"""Share of the time from which on it is worth saying that nodes were held back."""

Key = TypeVar("Key", bound=Hashable)

Link: TypeAlias = tuple[int, int]
"""The node that sends, and the one that is sent to."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What was done in a while, and the seconds it took; 0 seconds if there was nothing to do."""

    done: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Laggard(Generic[Key]):
    """One that is slow: its rate, and what is usual among the others."""

    key: Key
    rate: float
    usual: float


def what_is_slow(job: MeasuredJob) -> list[str]:
    """A sentence about the slow nodes and one about the slow links of a job; none about what is not slow."""
    whiles = {
        node: [rates_between(before, after) for before, after in pairwise(told)]
        for node, told in job.told.items()
        if len(told) == RECENT
    }
    return [*_about_nodes(job, whiles), *_about_links(job, whiles)]


def laggards(
    efforts: Mapping[Key, Sequence[Effort]], *, factor: float = FACTOR, quantile: float = 0.5
) -> list[Laggard[Key]]:
    """Those that are slow, slowest first.

    Args:
        efforts: what each did in each of the same whiles.
        factor: how far behind the others slow is.
        quantile: of their rates, what is usual.
    """
    overall = _Field(
        {key: Effort(sum(e.done for e in each), sum(e.seconds for e in each)) for key, each in efforts.items()}
    )
    whiles = [_Field(dict(zip(efforts, column, strict=True))) for column in zip(*efforts.values(), strict=True)]
    found = [
        Laggard(key, rate, usual)
        for key, rate in overall.rates.items()
        if (usual := overall.usual(key, quantile)) > factor * rate
        and all(each.is_behind(key, quantile) for each in whiles)
    ]
    return sorted(found, key=lambda laggard: laggard.rate)


class _Field(Generic[Key]):
    """The rates of all who took part in a while."""

    def __init__(self, efforts: Mapping[Key, Effort]) -> None:
        self.rates = {key: effort.done / effort.seconds for key, effort in efforts.items() if effort.seconds > 0.0}
        self._ordered = sorted(self.rates.values())

    def usual(self, key: Key, quantile: float) -> float:
        """That quantile of the rates without that of `key`, which took part; 0 if nobody else did."""
        ordered, last = self._ordered, len(self._ordered) - 2
        if last < 0:
            return 0.0
        own = bisect_left(ordered, self.rates[key])
        low, high = floor(quantile * last), ceil(quantile * last)
        return (ordered[low + (low >= own)] + ordered[high + (high >= own)]) / 2.0

    def is_behind(self, key: Key, quantile: float) -> bool:
        """Whether one took part and did so at less than what is usual among the others."""
        return key in self.rates and self.rates[key] < self.usual(key, quantile)


def _about_nodes(job: MeasuredJob, whiles: Mapping[int, Sequence[Rates]]) -> list[str]:
    seconds = {node: sum(each.seconds for each in rates) for node, rates in whiles.items()}
    gathering = {node: rates for node, rates in whiles.items() if job.told[node][-1].steps and seconds[node] > 0.0}
    found = laggards({node: [_pace(each) for each in rates] for node, rates in gathering.items()})
    found = [slow for slow in found if slow.usual * seconds[slow.key] >= FEW]
    if not found:
        return []
    slowest, slow = found[0], {laggard.key for laggard in found}
    text = f"{job.node_name(slowest.key)} is slow: it makes {slowest.rate:.3g} gradients/s when nothing holds it back, "
    text += f"the others {slowest.usual:.3g}"
    blocked = median(
        sum(each.blocked_s for each in rates) / seconds[node] for node, rates in gathering.items() if node not in slow
    )
    if blocked >= BLOCKED:
        text += f"; they were blocked {blocked:.0%} of the time"
    if len(found) > 1:
        more = ", ".join(f"{job.node_name(each.key)} ({each.rate:.3g})" for each in found[1:])
        text += f"; also slow: {more}"
    return [text]


def _about_links(job: MeasuredJob, whiles: Mapping[int, Sequence[Rates]]) -> list[str]:
    efforts, busy = dict[Link, list[Effort]](), set[Link]()
    for node, rates in whiles.items():
        for peer in rates[-1].links:
            links = [each.links.get(peer, LinkRates()) for each in rates]
            if not any(link.busy_s for link in links):
                continue
            efforts[node, peer] = [Effort(link.nbytes, link.busy_s) for link in links]
            if all(link.busy_s >= BUSY * each.seconds for link, each in zip(links, rates, strict=True)):
                busy.add((node, peer))
    found = [slow for slow in laggards(efforts, factor=LINK_FACTOR, quantile=FASTER) if slow.key in busy]
    if not found:
        return []
    slowest, slow = found[0], {laggard.key for laggard in found}
    named, text = _named(slowest.key, slow, set(efforts), job.node_name)
    rate = median(laggard.rate for laggard in found if laggard.key in named)
    text += f" {rate / 1e6:.3g} MB/s, the others {slowest.usual / 1e6:.3g}"
    more = len(slow - named)
    return [f"{text}; also slow: {more} more" if more else text]


def _named(slowest: Link, slow: set[Link], links: set[Link], name: Callable[[int], str]) -> tuple[set[Link], str]:
    """The links to say something about, and how that begins: those of a node that are all slow, or one."""
    source, target = slowest
    for node in (target, source):
        touching = {link for link in links if node in link}
        if touching <= slow:
            return touching, f"the links from and to {name(node)} carry"
    into, out_of = {link for link in links if link[1] == target}, {link for link in links if link[0] == source}
    if len(into) > 1 and into <= slow:
        return into, f"the links to {name(target)} carry"
    if len(out_of) > 1 and out_of <= slow:
        return out_of, f"the links from {name(source)} carry"
    return {slowest}, f"the link {name(source)} -> {name(target)} carries"


def _pace(rates: Rates) -> Effort:
    """The gradients of a while, and the seconds in which nothing held them back."""
    free_s = rates.seconds - rates.blocked_s
    return Effort(rates.steps, free_s if rates.steps or free_s > FREE * rates.seconds else 0.0)
