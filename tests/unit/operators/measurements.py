"""What a node measures that computes 100 gradients a second of a model of 1 MB, for 3 peers, and what it chooses."""

from __future__ import annotations

from dataflow.reports import LinkRates, Rates
from operators.cost_model import CostModel

M, GAMMA, PEERS = 1_000_000, 100, 3
MEASURED = CostModel(model_nbytes=M)


def rates(passed=0.0, busy=0.0, *, steps=50, blocked=0.0, exchange=0.0, delay=0.002, seconds=0.5):
    """A measurement: `passed`, `busy` and `blocked` for each second."""
    link = LinkRates(int(passed * seconds / PEERS), busy * seconds, delay if passed else 0.0)
    return Rates(
        seconds=seconds,
        steps=steps,
        compute_s=0.01 * steps,
        exchange_s=exchange,
        busy_s=busy * seconds,
        blocked_s=blocked * seconds,
        links=dict.fromkeys(range(1, PEERS + 1), link),
    )


def full(bandwidth, choice, *, delay=0.1):
    """What a node measures whose link carries `bandwidth`, and that waits for it for most of the time."""
    share = bandwidth * choice.span / (GAMMA * M * PEERS)
    return rates(bandwidth, 1.0, steps=round(50 * share), blocked=1 - share, delay=delay)


def at_ease(bandwidth, choice, *, delay=0.002):
    """What it measures if the link carries all that is offered."""
    offered = GAMMA * M * PEERS / choice.span
    assert offered <= bandwidth
    return rates(offered, offered / bandwidth, delay=delay)


def world(bandwidth, choice):
    return (at_ease if GAMMA * M * PEERS / choice.span <= bandwidth else full)(bandwidth, choice)


def run(cost, known, choice, bandwidths):
    """The choices after each measurement, on a link that carries these."""
    chosen = []
    for bandwidth in bandwidths:
        known, choice = cost.decide(known, choice, world(bandwidth, choice), PEERS)
        chosen.append(choice)
    return known, chosen
