"""Which links of a job are broken, and who is to blame. No clock: times come in."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence


class BrokenLinks:
    """Links between two members that one of them has told to be broken, and when they are judged.

    Attributes:
        judge_s: when they are judged; infinite if there is nothing to judge.
    """

    def __init__(self) -> None:
        self.judge_s = math.inf
        self._links: dict[tuple[int, int], tuple[int, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._links)

    def note(self, node: int, peer: int, reason: str, judge_s: float) -> None:
        """Note what a node tells of its link to a peer; the first to tell counts, and the earliest `judge_s`."""
        self._links.setdefault((min(node, peer), max(node, peer)), (node, reason))
        self.judge_s = min(self.judge_s, judge_s)

    def forget(self, node: int) -> None:
        """A node is dead: its links are no fault any more."""
        self._links = {link: told for link, told in self._links.items() if node not in link}

    def first(self) -> tuple[int, str]:
        """Who was the first to tell of a broken link, and why it is."""
        return next(iter(self._links.values()))

    def blame(self, since: Callable[[int], int], names: Sequence[str]) -> tuple[int, str]:
        """The node with most broken links, and the cause of its death in words.

        Among equals that is the one that became a member last: it may be its joining that went wrong, and the others
        have lent it what it has. Of those that became members together it is the one with the higher number.

        Args:
            since: number of the membership with which a node became a member.
            names: of the nodes.
        """
        broken = Counter(node for link in self._links for node in link)
        node = max(broken, key=lambda node: (broken[node], since(node), node))
        links = [link for link in self._links if node in link]
        others = ", ".join(names[sum(link) - node] for link in links)
        teller, reason = self._links[links[0]]
        return node, f"its links to {others} are broken, as {names[teller]} told: {reason}"
