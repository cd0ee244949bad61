"""Receive: the operators that messages from other nodes enter by."""

from __future__ import annotations

from dataflow.operators_api import Emissions, Operator
from dataflow.ports import In, Out
from operators.messages import Fragment, Weights, Word


class ReceiveFragments(Operator):
    """Takes fragments in, in the order each sender sent them."""

    pool = "network"
    receives = True
    arriving = In(Fragment)
    fragments = Out(Fragment)

    def process(self, fragment: Fragment) -> Emissions:
        """The fragment, as it came."""
        yield self.fragments(fragment)


class ReceiveFromPeers(ReceiveFragments):
    """Takes in fragments for as long as any peer has a word to say: one that comes back may send some."""

    words = In(Word)


class ReceiveWeights(Operator):
    """Takes weights in, in the order each server sent them."""

    pool = "network"
    receives = True
    arriving = In(Weights)
    weights = Out(Weights)

    def process(self, weights: Weights) -> Emissions:
        """The weights, as they came."""
        yield self.weights(weights)
