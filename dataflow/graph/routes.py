"""Routes: how an edge that crosses nodes picks the receivers of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from dataflow.errors import OperatorError


class Route(StrEnum):
    """The six ways to pick receivers among the members of the target role."""

    ONE_TO_ANY = "one-to-any"
    """One member: the one with the most credit, the lowest node number among equals."""
    BY_OWNER = "by-owner"
    """The member that owns the partition whose number the message's `key` field holds: rank = number mod size."""
    ONE_TO_ALL = "one-to-all"
    """Every member."""
    ALL_TO_ONE = "all-to-one"
    """The member of rank 0."""
    FIRST_TO_ALL = "first-to-all"
    """Every member, of what the sending role's member of rank 0 emits; nobody of what others do."""
    BY_DESTINATION = "by-destination"
    """The node that the emission names: ``self.port(message, to=node)``."""


def receivers(
    route: Route, members: Sequence[int], *, to: int | None, key: int | None, credit: Mapping[int, int]
) -> tuple[int, ...]:
    """Node numbers that a message goes to.

    Args:
        route: the edge's route.
        members: nodes of the target role in rank order, without the sender unless the edge loops back.
        to: destination named by the emission.
        key: partition number held by the message.
        credit: bytes that may be sent to each member now.

    Raises:
        OperatorError: the emission lacks what the route needs, or names a node that is not a member.
    """
    if route in (Route.ONE_TO_ALL, Route.FIRST_TO_ALL):
        return tuple(members)
    if not members:
        return ()
    if route is Route.ALL_TO_ONE:
        return (members[0],)
    if route is Route.ONE_TO_ANY:
        return (max(members, key=lambda node: (credit.get(node, 0), -node)),)
    if route is Route.BY_OWNER:
        if key is None:
            raise OperatorError(
                what="a message on a by-owner edge has no partition number", fix="name its field as key"
            )
        return (members[key % len(members)],)
    if to is None:
        raise OperatorError(
            what="an emission on a by-destination edge names no node", fix="yield port(message, to=node)"
        )
    return (to,) if to in members else ()
