"""All links of one node: messages to and from its peers, each delivered once and in order while both ends live.

Invariant: every method except `listen`, `connect`, `drain` and `close` returns at once, and all callbacks are called
from the event loop, one at a time, in the order in which the frames of a peer were sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import numpy as np

from dataflow.clock import Clock, SystemClock
from dataflow.errors import WireError
from dataflow.message import Message
from dataflow.reports import LinkStatistics
from dataflow.transport.addresses import stays_here
from dataflow.transport.base import Network
from dataflow.transport.busy_links import BusyLinks
from dataflow.transport.incoming_links import IncomingLinks
from dataflow.transport.link_meter import LinkMeters
from dataflow.transport.link_options import DEFAULT_OPTIONS, LinkOptions, PeerStatistics
from dataflow.transport.outgoing_link import OutgoingLink, Surroundings
from dataflow.transport.peers import Identity, Peers


class Links:
    """The links of node `node`.

    Callbacks must not raise: what they raise goes to the event loop's exception handler and costs the link.

    Args:
        network: makes the connections; closed by its owner after the links.
        node: number of this node.
        job: identifier of the job; both ends must agree.
        plan_hash: hash of plan and code bundle; both ends must agree.
        incarnation: how often this node has been started for the job, from 0.
        edge_types: the exact message type of every edge that begins or ends at this node.
        on_message: told (source, edge, message, bytes) of every message; its arrays are read-only.
        on_end: told (source, edge) when a source has ended an edge.
        on_credit: told (peer, edge, bytes) of every grant, once, whatever the connections.
        on_lost: told (peer, reason) when a link is given up, whether it was ever up or not; once per direction.
        rng: draws the jitter of reconnections.
        options: settings.
        clock: measures how long a link is down, how long acknowledgements are held back, and how long messages take.
        sleep: waits for a number of seconds between attempts to reconnect.
    """

    def __init__(
        self,
        network: Network,
        *,
        node: int,
        job: str,
        plan_hash: str,
        incarnation: int,
        edge_types: Mapping[int, type[Message]],
        on_message: Callable[[int, int, Message, int], None],
        on_end: Callable[[int, int], None],
        on_credit: Callable[[int, int, int], None],
        on_lost: Callable[[int, str], None],
        rng: np.random.Generator,
        options: LinkOptions = DEFAULT_OPTIONS,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        identity, clock = Identity(node, job, plan_hash, incarnation), clock or SystemClock()
        self._node, self._edge_types, self._network, self._peers = node, edge_types, network, Peers()
        self._around = Surroundings(network, identity, self._peers, options, on_credit, on_lost, rng, clock, sleep)
        self._counters: dict[int, PeerStatistics] = {}
        self._meters, self._busy = LinkMeters(clock, options.longest_delay_s), BusyLinks(clock)
        self._incoming = IncomingLinks(
            identity,
            self._peers,
            edge_types,
            options,
            self._counters_of,
            on_message=on_message,
            on_end=on_end,
            on_lost=on_lost,
            clock=clock,
        )
        self._outgoing: dict[int, OutgoingLink] = {}
        self._abandoned: set[OutgoingLink] = set()

    async def listen(self) -> str:
        """Accept links of peers; returns the address at which they reach this node."""
        return await self._network.listen(self._incoming.accept)

    async def connect(self, addresses: Mapping[int, str]) -> None:
        """Set up links to peers; returns when all are up. Those that are up already are left alone.

        Args:
            addresses: where the peers listen, by their number.

        Raises:
            WireError: a link cannot be set up; names node, address and reason. The other links stay.
            AuthError: a peer refuses the token.
        """
        self.open(addresses)
        waiting = [asyncio.ensure_future(self._outgoing[peer].up()) for peer in addresses]
        try:
            for up in asyncio.as_completed(waiting):
                await up
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def open(self, addresses: Mapping[int, str]) -> None:
        """Begin to set up links to peers, over which may be sent at once; see `connect`.

        One that was lost stays lost until the membership changes its peer: what it has discarded would be a gap.
        """
        for peer, address in addresses.items():
            if peer not in self._outgoing:
                counters, meter = self._counters_of(peer), self._meters.of(peer)
                self._outgoing[peer] = OutgoingLink(peer, address, self._around, counters, meter)

    def set_membership(self, epoch: int, incarnations: Mapping[int, int]) -> None:
        """Talk only to these incarnations from now on; links with other ones are dropped without `on_lost`.

        A peer that was restarted is refused, and retries, until this names its new incarnation; then `connect` sets
        up the link to it, and grants begin anew. An epoch that is not newer than the last one changes nothing.

        Args:
            epoch: number of the membership, from 1.
            incarnations: incarnation of every member by node number.
        """
        for peer in self._peers.update(epoch, incarnations):
            self._abandon(peer, f"node {peer} is not a member as of epoch {epoch}, or was restarted")
            self._incoming.forget(peer)

    def send(self, peer: int, edge: int, message: Message) -> None:
        """Queue a message; its arrays are copied. On a lost link, or to a node that is no member, it is discarded.

        Raises:
            WireError: there is no link to `peer`, the message is not of the edge's type or too large, or more than
                `max_queued_nbytes` bytes wait.
        """
        expected = self._edge_types.get(edge)
        if type(message) is not expected:
            name = "nothing" if expected is None else expected.__name__
            what = f"edge {edge} of node {self._node} carries {name}, not {type(message).__name__}"
            raise WireError(what, fix="declare the output port with the type that it emits")
        if self._peers.admits(peer):
            self._link(peer).send(edge, message)

    def send_end(self, peer: int, edge: int) -> None:
        """Queue the end of an edge: no more messages follow on it to `peer`, if that is a member.

        Raises:
            WireError: there is no link to `peer`, or more than `max_queued_nbytes` bytes wait.
        """
        if self._peers.admits(peer):
            self._link(peer).send_end(edge)

    def grant(self, peer: int, edge: int, nbytes: int) -> None:
        """Let `peer`, if it is a member, send `nbytes` more bytes on `edge`; may come before it connects."""
        if self._peers.admits(peer):
            self._incoming.grant(peer, edge, nbytes)

    async def drain(self) -> None:
        """Return when the peers have acknowledged all that was sent.

        Raises:
            WireError: a link to a member was given up with frames that were not.
        """
        for link in tuple(self._outgoing.values()):
            try:
                await link.drained()
            except WireError:
                if link not in self._abandoned:
                    raise

    async def close(self) -> None:
        """End all links; what was not drained may be lost."""
        links = self._abandoned.union(self._outgoing.values())
        await asyncio.gather(*(link.stop() for link in links))
        await self._incoming.close()

    def statistics(self) -> Mapping[int, PeerStatistics]:
        """What has passed between this node and each peer until now, by the peer's number."""
        return {peer: replace(counters) for peer, counters in sorted(self._counters.items())}

    def carried(self) -> tuple[dict[int, LinkStatistics], float]:
        """What peers have acknowledged so far, by their number, and seconds in which anything was on its way to any."""
        addresses = {peer: link.address for peer, link in self._outgoing.items()}
        counted_s = self._network.busy_s(addresses.values())
        by_peer = {peer: counted_s[address] for peer, address in addresses.items() if address in counted_s}
        return self._busy.add(self._meters.statistics(), self._meters.busy_s(), by_peer)

    def stay_here(self) -> bool:
        """Whether all links lead to nodes that are reached on this machine alone."""
        return all(stays_here(link.address) for link in self._outgoing.values())

    def _link(self, peer: int) -> OutgoingLink:
        link = self._outgoing.get(peer)
        if link is None:
            what = f"node {self._node} has no link to node {peer}"
            raise WireError(what, fix="connect first")
        return link

    def _abandon(self, peer: int, reason: str) -> None:
        link = self._outgoing.pop(peer, None)
        if link is not None:
            self._abandoned.add(link)
            link.abandon(reason)

    def _counters_of(self, peer: int) -> PeerStatistics:
        return self._counters.setdefault(peer, PeerStatistics())
